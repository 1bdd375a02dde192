"""Rotary embedding's frequencies: plain, or stretched by YaRN (arXiv 2309.00071) for contexts beyond the trained one."""

import math
from dataclasses import dataclass
from typing import Any, Mapping, Optional

import torch

from models.common.errors import UserError


class RopeError(UserError):
    """A rotary embedding that this port does not compute."""


@dataclass(frozen=True, kw_only=True)
class Yarn:
    """config.json's numbers. Pairs that turn more than beta_fast times in the trained context stay as they are, those that
    turn less than beta_slow times are slowed down by `factor`, those between by a ramp; cos and sin grow by attention_factor.
    """

    factor: float
    original_context: int  # original_max_position_embeddings
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # whether the ramp's ends are whole pairs

    def __post_init__(self):
        for name in ("factor", "original_context", "attention_factor", "beta_fast", "beta_slow"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise RopeError(f"YaRN's {name} must be a positive number, got {value!r}")
        if self.factor < 1:
            raise RopeError(f"YaRN's factor must be 1 or more, got {self.factor!r}")

    @property
    def context(self) -> int:
        """Tokens that it stretches the context to."""
        return int(self.factor * self.original_context)


def yarn_of(fields: Mapping[str, Any]) -> Optional[Yarn]:
    """From config.json's rope_scaling (transformers 4.x) or rope_parameters (5.x); None for plain rotary embedding.

    RopeError for any other kind, by its name.
    """
    scaling = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if not isinstance(scaling, Mapping):
        raise RopeError(f"rope_scaling must be an object, got {scaling!r}")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return None
    if kind != "yarn":
        raise RopeError(f"rope_type must be 'default' or 'yarn', got {kind!r}: no other scaling is computed here")
    if scaling.get("factor") is None:
        raise RopeError("rope_scaling of type 'yarn' has no factor; the model card gives 4.0 for 131072 tokens")
    given = {name: scaling[name] for name in ("beta_fast", "beta_slow", "truncate") if scaling.get(name) is not None}
    return Yarn(
        factor=scaling["factor"],
        original_context=scaling.get("original_max_position_embeddings") or fields.get("max_position_embeddings"),
        attention_factor=_attention_factor(scaling),
        **given,
    )


def _attention_factor(scaling: Mapping[str, Any]) -> float:
    """As given, or what the paper suggests: 0.1 ln(factor) + 1."""
    if scaling.get("attention_factor") is not None:
        return scaling["attention_factor"]
    factor = scaling["factor"]
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 1 <= factor < math.inf:
        raise RopeError(f"YaRN's factor must be a number of 1 or more, got {factor!r}")
    grown, all_grown = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if grown and all_grown:
        return (0.1 * grown * math.log(factor) + 1) / (0.1 * all_grown * math.log(factor) + 1) if factor > 1 else 1.0
    return 0.1 * math.log(factor) + 1 if factor > 1 else 1.0


def inverse_frequencies(head_dim: int, theta: float, yarn: Optional[Yarn]) -> torch.Tensor:
    """[head_dim / 2] float32: radians a position for each rotary pair, in the arithmetic that the model was trained with."""
    slowest = theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    plain = 1.0 / slowest
    if yarn is None:
        return plain
    kept = 1 - _ramp(head_dim, theta, yarn)
    return 1.0 / (yarn.factor * slowest) * (1 - kept) + plain * kept


def _ramp(head_dim: int, theta: float, yarn: Yarn) -> torch.Tensor:
    """[head_dim / 2] float32: 0 where a pair stays as it is, 1 where it is slowed down by all of the factor."""

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(yarn.original_context / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(yarn.beta_fast), pair_that_turns(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    return ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
