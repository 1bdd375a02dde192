"""Rotary embedding's frequencies: plain, or stretched for contexts beyond the trained one.

YaRN (arXiv 2309.00071) and Llama 3.1's rule leave fast pairs as they are, and slow down the others.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Mapping, Optional

from ..errors import UserError, is_positive, shown

if TYPE_CHECKING:  # the help of a program imports this module, and torch takes seconds
    import torch

PLAIN_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
YARN_KEYS = {*PLAIN_KEYS, "factor", "original_max_position_embeddings", "attention_factor"}
YARN_KEYS |= {"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}
LLAMA3_NUMBERS = "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"


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
    truncate: bool = True  # whether the ramp begins and ends at whole pairs

    def __post_init__(self):
        for name in ("factor", "original_context", "attention_factor", "beta_fast", "beta_slow"):
            value = getattr(self, name)
            if not is_positive(value) or value >= 2**31:
                raise RopeError(f"YaRN's {name} must be a positive number, got {shown(value)}")

    @property
    def context(self) -> int:
        """Tokens that it stretches the context to."""
        return int(self.factor * self.original_context)


@dataclass(frozen=True, kw_only=True)
class Llama3:
    """Llama 3.1's numbers in config.json. A pair's turns in the trained context decide its frequency.

    - More than high_freq_factor turns: unchanged.
    - Less than low_freq_factor turns: divided by `factor`.
    - Between them: a ramp.

    max_position_embeddings counts the stretched context already.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    attention_factor = 1.0
    context = 0

    def __post_init__(self):
        for name in LLAMA3_NUMBERS:
            if not is_positive(getattr(self, name)):
                raise RopeError(
                    f"rope_scaling of type 'llama3' needs a positive {name}, got {shown(getattr(self, name))}"
                )
        if self.low_freq_factor >= self.high_freq_factor:
            raise RopeError("rope_scaling's low_freq_factor must be less than its high_freq_factor")


RopeScaling = Yarn | Llama3


@dataclass(frozen=True)
class Rope:
    """A model's rotary embedding, and the positions that it is used for."""

    theta: float
    scaling: Optional[RopeScaling]
    context: int  # positions

    def turns(self, head_dim: int) -> "torch.Tensor":
        """[head_dim / 2] float64: radians that each pair turns from position 0 to the context's last."""
        return inverse_frequencies(head_dim, self.theta, self.scaling).double() * (self.context - 1)


def scaling_of(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json's rope_scaling (transformers 4.x) or rope_parameters (5.x); empty if it has none.

    RopeError where transformers 4.x and 5.x read other numbers, or one that is not computed here.
    """
    scaling = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if fields.get("rope_parameters") not in (None, {}, scaling):
        raise RopeError("rope_scaling and rope_parameters differ: remove one of them")
    top, beside = fields.get("rope_theta"), scaling.get("rope_theta")
    if None not in (top, beside) and top != beside:
        raise RopeError(
            f"rope_theta is {shown(top)} at top level, {shown(beside)} beside rope_type: remove one of them"
        )
    for place in (fields, scaling):
        if place.get("partial_rotary_factor") not in (None, 1):
            raise RopeError(
                f"partial_rotary_factor must be 1, got {shown(place['partial_rotary_factor'])}: heads are rotated whole"
            )
    return scaling


def theta_of(fields: Mapping[str, Any]) -> float:
    """The rotary base: in rope_parameters, else at top level, else transformers' default."""
    theta = scaling_of(fields).get("rope_theta", fields.get("rope_theta", 10000.0))
    if not is_positive(theta):
        raise RopeError(f"rope_theta must be a positive number, got {shown(theta)}")
    return theta


def rope_scaling_of(fields: Mapping[str, Any]) -> Optional[RopeScaling]:
    """The scaling's numbers; None for plain rotary embedding. RopeError: another kind, or a key not read."""
    scaling = scaling_of(fields)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = scaling.get("factor")
    plain = kind == "default" or (kind == "linear" and factor == 1)
    if scaling.get("type") not in (None, kind):
        raise RopeError(f"rope_type is {shown(kind)} and type {shown(scaling['type'])}: remove type")
    if not plain and kind not in ("yarn", "llama3"):
        raise RopeError(
            f"rope_type must be 'default', 'yarn' or 'llama3', got {shown(kind)}: no other scaling is computed here"
        )
    read = {
        "default": PLAIN_KEYS,
        "linear": {*PLAIN_KEYS, "factor"},
        "yarn": YARN_KEYS,
        "llama3": {*PLAIN_KEYS, *LLAMA3_NUMBERS},
    }[kind]
    unread = [name for name, value in scaling.items() if name not in read and value is not None]
    if unread:
        raise RopeError(
            f"{', '.join(unread)} beside rope_type {kind!r} would not be read: remove it, if the model was trained "
            "without"
        )
    if plain:
        return None
    if kind == "llama3":
        return Llama3(**{name: scaling.get(name) for name in LLAMA3_NUMBERS})
    if not is_positive(factor) or factor < 1:
        raise RopeError(
            f"rope_scaling of type 'yarn' needs a factor of 1 or more, got {shown(factor)}; "
            "the model card gives 4.0 for 131072 tokens"
        )
    trained = scaling.get("original_max_position_embeddings") or fields.get("max_position_embeddings")
    if fields.get("original_max_position_embeddings") not in (None, trained):
        raise RopeError(
            f"original_max_position_embeddings is {shown(fields['original_max_position_embeddings'])} at top level, "
            f"where it is not read, and {shown(trained)} for YaRN: remove one of them"
        )
    given = {name: scaling[name] for name in ("beta_fast", "beta_slow") if scaling.get(name)}
    return Yarn(
        factor=factor,
        original_context=trained,
        attention_factor=_attention_factor(scaling),
        truncate=bool(scaling.get("truncate", True)),
        **given,
    )


def _attention_factor(scaling: Mapping[str, Any]) -> float:
    """What cos and sin are multiplied by: given, or the paper's, or a quotient of two as DeepSeek's models have it."""
    if scaling.get("attention_factor") is not None:
        return scaling["attention_factor"]
    numerator, denominator = scales = [scaling.get(name) for name in ("mscale", "mscale_all_dim")]
    if not all(scale is None or is_positive(scale) for scale in scales):
        raise RopeError(f"mscale and mscale_all_dim must be positive numbers, got {shown(scales)}")
    growth = 0.1 * math.log(scaling["factor"])
    if numerator is None or denominator is None:
        return growth + 1
    return (growth * numerator + 1) / (growth * denominator + 1)


def inverse_frequencies(head_dim: int, theta: float, scaling: Optional[RopeScaling]) -> "torch.Tensor":
    """[head_dim / 2] float32: radians a position for each rotary pair, in the arithmetic of the training."""
    import torch

    slowest = theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    plain = 1.0 / slowest
    if scaling is None:
        return plain
    if isinstance(scaling, Llama3):
        return _llama3_frequencies(plain, scaling)
    kept = 1 - _ramp(head_dim, theta, scaling)
    return 1.0 / (scaling.factor * slowest) * (1 - kept) + plain * kept


def _llama3_frequencies(plain: "torch.Tensor", scaling: Llama3) -> "torch.Tensor":
    """The operations are in transformers' order, so that every frequency is equal to the last bit."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    wavelength, trained = 2 * math.pi / plain, scaling.original_max_position_embeddings
    kept = (trained / wavelength - low) / (high - low)
    ramp = (1 - kept) * plain / scaling.factor + kept * plain
    frequencies = ramp.where(wavelength >= trained / high, plain)
    return frequencies.where(wavelength <= trained / low, plain / scaling.factor)


def _ramp(head_dim: int, theta: float, yarn: Yarn) -> "torch.Tensor":
    """[head_dim / 2] float32: 0 where a pair stays as it is, 1 where it is slowed down by all of the factor."""
    import torch

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(yarn.original_context / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(yarn.beta_fast), pair_that_turns(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    return ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
