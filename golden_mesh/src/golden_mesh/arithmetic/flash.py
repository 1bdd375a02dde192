"""The steps of flash attention that prefill and decode share.

Keys come in chunks. For each chunk a core computes the scores, the weights relative to the largest score so far, the
sum of the weights, and the product of the weights with the values.

The earlier sums and products are multiplied by exp(old largest - new largest). The scale of the scores is
applied inside exp. It therefore scales an additive mask too.
"""

from functools import partial

import torch
import ttnn

from golden_mesh.arithmetic import engine, special
from golden_mesh.arithmetic.kernel import Kernel
from golden_mesh.arithmetic.parts import in_parts
from golden_mesh.arithmetic.plain import in_float32
from golden_mesh.arithmetic.product import multiply
from golden_mesh.arithmetic.steps import short_exp
from golden_mesh.arithmetic.vector import exp, in_bfloat16_dest, parabolic_exp

_SATURATED = 2**15 - 1  # the most of an int16: the approximate exp of a bfloat16 dest is below 2
BITS = 9  # significant bits of an approximate weight


def exp_is_approximate(program_config: ttnn.SDPAProgramConfig | None) -> bool:
    """Return whether exp is approximate, as in ttnn: only exp_approx_mode=False in a program config makes it exact."""
    return program_config is None or program_config.exp_approx_mode is not False


def hide(scores: torch.Tensor, hidden: torch.Tensor, instead: float = 0.0) -> torch.Tensor:
    """Return scores with -inf added where `hidden`. instead: infinity less infinity."""
    infinite = hidden & (scores == torch.inf) if scores.max() == torch.inf else None
    # masked_fill_ takes several times as long as minimum.
    scores = torch.minimum(scores, torch.where(hidden, -torch.inf, torch.inf), out=scores)
    return scores if infinite is None else scores.masked_fill_(infinite, instead)


def weights(scores, largest, scale: float, kernel: Kernel, approximate: bool) -> torch.Tensor:
    """Return exp((scores - largest) * scale) in float32, as dest holds it.

    The largest scores have eleven bits at most. Where all scores are -inf the weights are 1.
    """
    return in_parts(partial(_weights, scale=scale, kernel=kernel, approximate=approximate), scores, largest)


def _weights(scores, largest, *, scale: float, kernel: Kernel, approximate: bool) -> torch.Tensor:
    if kernel.wide:
        return exp(_below_largest(scores, largest), scale, approximate=approximate)
    difference = engine.subtract(scores, largest)
    if approximate:
        return engine.keep(exp(difference, scale, approximate=True, most=_SATURATED), engine.BFLOAT16)
    scaled = engine.keep(difference * scale, engine.BFLOAT16).bfloat16()
    return in_bfloat16_dest("EXP")(scaled).float()


@in_float32(lambda scores, largest: torch.where(scores == largest, 0, scores - largest))
def _below_largest(scores: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    return engine.below_largest(engine.keep(scores, engine.SRC_B), largest)


def correction(old: torch.Tensor, new: torch.Tensor, scale: float, kernel: Kernel, approximate: bool) -> torch.Tensor:
    """Return exp((old - new) * scale) packed to bfloat16, as float32. approximate: `exp_is_approximate`."""
    if kernel.wide:
        difference = special.repaired(old - new, special.total, old, -new)
        return engine.to_bfloat16(torch.exp(_scaled(difference, scale)))
    exp_of_kernel = short_exp if approximate else parabolic_exp
    return engine.to_nearest_even(exp_of_kernel(_scaled(engine.subtract(old, new), scale)))


def _scaled(difference: torch.Tensor, scale: float) -> torch.Tensor:
    """The kernels have this scale in bfloat16, cut."""
    return difference * engine.cut_number(scale)


def joined(states: list, scale: float, kernel: Kernel) -> tuple[torch.Tensor, torch.Tensor]:
    """Join the results of two cores: [(weights @ v and the sum of weights as a column more, largest score), ...].

    The vector unit subtracts: where both largest scores are -inf, the sum becomes infinity, and the result 0.
    """
    new = torch.maximum(states[0][1], states[1][1])
    scaled = [_scaled(largest - new, scale) for _, largest in states]
    factors = [torch.exp(x) if kernel.wide else engine.to_nearest_even(short_exp(x)) for x in scaled]
    values = [times(s[..., :-1], engine.to_bfloat16(f), kernel) for (s, _), f in zip(states, factors)]
    held = (lambda x: x) if kernel.wide else (lambda x: engine.keep(x, engine.BFLOAT16))
    total = sum(held(s[..., -1:] * f) for (s, _), f in zip(states, factors))
    return torch.cat((engine.add(*values, engine.BFLOAT16), engine.to_bfloat16(held(total))), -1), new


def times(values: torch.Tensor, factor: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """Return values * factor. factor is a column. Both inputs and the result are packed to bfloat16."""
    return engine.to_bfloat16_(multiply(values, factor, kernel, engine.BFLOAT16))


def with_sink(result, total, largest, sink, weight, scale: float, kernel: Kernel, approximate: bool):
    """Return (weights @ v, sums of weights) with a further score for each head: the sink, which has no value.

    result is [..., rows, dim]; total, largest and sink are [..., rows or 1, 1]. The scale multiplies the sink too.
    weight: its weight, of the sink and the largest score.
    """
    new = torch.maximum(largest, engine.keep(sink, engine.BFLOAT16))
    factor = correction(largest, new, scale, kernel, approximate)
    total = engine.add_in_float32_dest(multiply(total, factor, kernel), weight(sink, new))
    return times(result, factor, kernel), total
