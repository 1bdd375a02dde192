"""Rotary embedding's frequencies: plain, or stretched by transformers for contexts beyond the trained one.

YaRN (arXiv 2309.00071) and Llama 3.1's rule leave fast pairs as they are, and slow down the others.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Mapping, Optional

from ..errors import UserError, is_positive, shown

if TYPE_CHECKING:  # the help of a program imports this module, and torch takes seconds
    import torch

PLAIN_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
# Positive numbers of rope_scaling, by its rope_type: those that it must have, and those that it may have.
NEEDED = {
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
OPTIONAL = {"yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"), "linear": ("factor",)}


@dataclass(frozen=True)
class RopeScaling:
    """How a context is stretched."""

    fields: tuple[tuple[str, Any], ...]  # names and values of config.json's rope_scaling

    @property
    def context(self) -> int:
        """Tokens that YaRN stretches the context to; 0 for Llama 3, whose max_position_embeddings counts them."""
        fields = dict(self.fields)
        return int(fields["factor"] * fields["original_max_position_embeddings"]) * (fields["rope_type"] == "yarn")


@dataclass(frozen=True)
class Rope:
    """A model's rotary embedding, and the positions that it is used for."""

    theta: float
    scaling: Optional[RopeScaling]
    context: int  # positions

    def turns(self, head_dim: int) -> "torch.Tensor":
        """[head_dim / 2] float64: radians that each pair turns from position 0 to the context's last."""
        return rotary_frequencies(head_dim, self.theta, self.scaling)[0].double() * (self.context - 1)


def scaling_of(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json's rope_scaling (transformers 4.x) or rope_parameters (5.x); empty if it has none.

    UserError where transformers 4.x and 5.x read other numbers, or one that is not computed here.
    """
    scaling = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if fields.get("rope_parameters") not in (None, {}, scaling):
        raise UserError("rope_scaling and rope_parameters differ: remove one of them")
    top, beside = fields.get("rope_theta"), scaling.get("rope_theta")
    if None not in (top, beside) and top != beside:
        raise UserError(
            f"rope_theta is {shown(top)} at top level, {shown(beside)} beside rope_type: remove one of them"
        )
    for place in (fields, scaling):
        if place.get("partial_rotary_factor") not in (None, 1):
            raise UserError(
                f"partial_rotary_factor must be 1, got {shown(place['partial_rotary_factor'])}: heads are rotated whole"
            )
    return scaling


def theta_of(fields: Mapping[str, Any]) -> float:
    """The rotary base: in rope_parameters, else at top level, else transformers' default."""
    theta = scaling_of(fields).get("rope_theta", fields.get("rope_theta", 10000.0))
    if not is_positive(theta):
        raise UserError(f"rope_theta must be a positive number, got {shown(theta)}")
    return theta


def rope_scaling_of(fields: Mapping[str, Any]) -> Optional[RopeScaling]:
    """The scaling's numbers; None for plain rotary embedding. UserError: another kind, or a key not read."""
    scaling = scaling_of(fields)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    plain = kind == "default" or (kind == "linear" and scaling.get("factor") == 1)
    if not (plain or isinstance(kind, str) and kind in NEEDED):
        raise UserError(
            f"rope_type must be 'default', 'yarn' or 'llama3', got {shown(kind)}: no other scaling is computed here"
        )
    needed = NEEDED.get(kind, ())
    numbers, truncate = needed + OPTIONAL.get(kind, ()), ("truncate",) * (kind == "yarn")
    read = {*PLAIN_KEYS, *numbers, *truncate}
    unread = [name for name, value in scaling.items() if name not in read and value is not None]
    if unread:
        raise UserError(
            f"{', '.join(unread)} beside rope_type {kind!r} would not be read: remove it, if the model was trained "
            "without"
        )
    if plain:
        return None
    given = {"rope_type": kind} | {name: scaling[name] for name in numbers if scaling.get(name) is not None}
    if kind == "yarn":
        if not is_positive(scaling.get("factor")) or scaling["factor"] < 1:
            raise UserError(
                f"rope_scaling of type 'yarn' needs a factor of 1 or more, got {shown(scaling.get('factor'))}; "
                "the model card gives 4.0 for 131072 tokens"
            )
        trained = scaling.get("original_max_position_embeddings") or fields.get("max_position_embeddings")
        if fields.get("original_max_position_embeddings") not in (None, trained):
            raise UserError(
                f"original_max_position_embeddings is {shown(fields['original_max_position_embeddings'])} at top "
                f"level, where it is not read, and {shown(trained)} for YaRN: remove one of them"
            )
        given |= {"original_max_position_embeddings": trained, "truncate": bool(scaling.get("truncate", True))}
    for name in numbers:
        value = given.get(name)
        if (name in needed or value is not None) and not (is_positive(value) and value < 2**31):
            raise UserError(f"rope_scaling of type {kind!r} needs a positive {name}, got {shown(value)}")
    if kind == "llama3" and given["low_freq_factor"] >= given["high_freq_factor"]:
        raise UserError("rope_scaling's low_freq_factor must be less than its high_freq_factor")
    return RopeScaling(tuple(given.items()))


def rotary_frequencies(head_dim: int, theta: float, scaling: Optional[RopeScaling]) -> "tuple[torch.Tensor, float]":
    """Radians a position for each rotary pair, [head_dim / 2] float32, and what cos and sin are multiplied by."""
    import torch

    if scaling is None:
        return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim), 1.0
    from transformers import Qwen2Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    fields = dict(scaling.fields)
    return ROPE_INIT_FUNCTIONS[fields["rope_type"]](
        Qwen2Config(head_dim=head_dim, rope_theta=theta, rope_scaling=fields), torch.device("cpu")
    )
