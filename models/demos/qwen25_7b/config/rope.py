"""Rotary embedding's frequencies: plain, or stretched by YaRN (arXiv 2309.00071) for contexts beyond the trained one."""

import math
from dataclasses import dataclass
from typing import Any, Mapping, Optional

import torch

from models.common.errors import UserError


class RopeError(UserError):
    """A rotary embedding that this port does not compute."""


MOST = 2**31 - 1  # of a context


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
    truncate: bool = True  # whether the ramp's ends are whole pairs

    def __post_init__(self):
        _check_number("factor", self.factor, 1, MOST)
        _check_number("original_context", self.original_context, 1, MOST)
        for name in ("attention_factor", "beta_fast", "beta_slow"):
            _check_number(name, getattr(self, name), 1e-6, 1e6)
        if not isinstance(self.truncate, bool):
            raise RopeError(f"YaRN's truncate must be true or false, got {self.truncate!r}")
        if self.context > MOST:
            raise RopeError(f"YaRN's factor times its original context must be at most {MOST}")

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

    def turns(self, head_dim: int) -> torch.Tensor:
        """[head_dim / 2] float64: radians that each pair turns from position 0 to the context's last."""
        frequencies = inverse_frequencies(head_dim, self.theta, self.yarn)
        return frequencies.double() * (self.context - 1)


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
        raise RopeError(
            f"rope_type must be 'default' or 'yarn', got {kind!r}: no other scaling is computed here"
        )
    if scaling.get("factor") is None:
        raise RopeError(
            "rope_scaling of type 'yarn' has no factor; the model card gives 4.0 for 131072 tokens"
        )
    given = {
        name: scaling[name]
        for name in ("beta_fast", "beta_slow", "truncate")
        if scaling.get(name) is not None
    }
    return Yarn(
        factor=scaling["factor"],
        original_context=scaling.get("original_max_position_embeddings")
        or fields.get("max_position_embeddings"),
        attention_factor=_attention_factor(scaling),
        **given,
    )


def _attention_factor(scaling: Mapping[str, Any]) -> float:
    """As given, or what the paper suggests: 0.1 ln(factor) + 1."""
    if scaling.get("attention_factor") is not None:
        return scaling["attention_factor"]
    factor = scaling["factor"]
    _check_number("factor", factor, 1, MOST)
    mscale, mscale_all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and mscale_all_dim:
        for name in ("mscale", "mscale_all_dim"):
            _check_number(name, scaling[name], 1e-6, 1e6)
        return _growth(mscale, factor) / _growth(mscale_all_dim, factor)
    return _growth(1.0, factor)


def _growth(mscale: float, factor: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1


def _check_number(name: str, value: Any, least: float, most: float) -> None:
    # The comparison is false for NaN, too, and works for integers that no float can hold.
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise RopeError(f"YaRN's {name} must be a number in {least:g}..{most:g}, got {value!r}")


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
        return (
            head_dim
            * math.log(yarn.original_context / (times * 2 * math.pi))
            / (2 * math.log(theta))
        )

    low, high = pair_that_turns(yarn.beta_fast), pair_that_turns(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    return ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
