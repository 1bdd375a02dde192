"""Rotary embedding's frequencies: plain, or stretched by YaRN (arXiv 2309.00071) for contexts beyond the trained one."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Mapping, Optional

from ..errors import UserError, shown

if TYPE_CHECKING:  # the help of a program imports this module, and torch takes seconds
    import torch


class RopeError(UserError):
    """A rotary embedding that this port does not compute."""


@dataclass(frozen=True, kw_only=True)
class Yarn:
    """YaRN's numbers in config.json. A pair's turns in the trained context decide its frequency.

    - More than beta_fast turns: unchanged.
    - Less than beta_slow turns: divided by `factor`.
    - Between them: a ramp.

    cos and sin are multiplied by attention_factor.
    """

    factor: float
    original_context: int  # original_max_position_embeddings
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self):
        for name in ("factor", "original_context", "attention_factor", "beta_fast", "beta_slow"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 < value < 2**31:
                raise RopeError(f"YaRN's {name} must be a positive number, got {shown(value)}")

    @property
    def context(self) -> int:
        """Tokens that it stretches the context to."""
        return int(self.factor * self.original_context)


@dataclass(frozen=True)
class Rope:
    """A model's rotary embedding, and the positions that it is used for."""

    theta: float
    yarn: Optional[Yarn]
    context: int  # positions

    def turns(self, head_dim: int) -> "torch.Tensor":
        """[head_dim / 2] float64: radians that each pair turns from position 0 to the context's last."""
        frequencies = inverse_frequencies(head_dim, self.theta, self.yarn)
        return frequencies.double() * (self.context - 1)


def yarn_of(fields: Mapping[str, Any]) -> Optional[Yarn]:
    """From config.json's rope_scaling (transformers 4.x) or rope_parameters (5.x); None for plain rotary embedding.

    RopeError for any other kind, by its name.
    """
    scaling = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return None
    if kind != "yarn":
        raise RopeError(
            f"rope_type must be 'default' or 'yarn', got {kind!r}: no other scaling is computed here"
        )
    factor = scaling.get("factor")
    if not isinstance(factor, (int, float)) or factor < 1:
        raise RopeError(
            f"rope_scaling of type 'yarn' needs a factor of 1 or more, got {shown(factor)}; "
            "the model card gives 4.0 for 131072 tokens"
        )
    trained = fields.get("max_position_embeddings")
    given = {name: scaling[name] for name in ("beta_fast", "beta_slow") if scaling.get(name)}
    return Yarn(
        factor=factor,
        original_context=scaling.get("original_max_position_embeddings") or trained,
        # the paper's default
        attention_factor=scaling.get("attention_factor") or 0.1 * math.log(factor) + 1,
        **given,
    )


def inverse_frequencies(head_dim: int, theta: float, yarn: Optional[Yarn]) -> "torch.Tensor":
    """[head_dim / 2] float32: radians a position for each rotary pair, in the arithmetic that the model was trained with."""
    import torch

    slowest = theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    plain = 1.0 / slowest
    if yarn is None:
        return plain
    kept = 1 - _ramp(head_dim, theta, yarn)
    return 1.0 / (yarn.factor * slowest) * (1 - kept) + plain * kept


def _ramp(head_dim: int, theta: float, yarn: Yarn) -> "torch.Tensor":
    """[head_dim / 2] float32: 0 where a pair stays as it is, 1 where it is slowed down by all of the factor."""
    import torch

    def pair_that_turns(times: float) -> float:
        return (
            head_dim
            * math.log(yarn.original_context / (times * 2 * math.pi))
            / (2 * math.log(theta))
        )

    low, high = pair_that_turns(yarn.beta_fast), pair_that_turns(yarn.beta_slow)
    low, high = max(math.floor(low), 0), min(math.ceil(high), head_dim - 1)
    if low == high:
        high += 0.001
    return ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
