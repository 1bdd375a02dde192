"""Mamba's two elementwise ops that change shapes: a state of 32 numbers for each of the inner channels."""

from models.common.golden_mesh.arithmetic import engine
from models.common.golden_mesh.arithmetic.kernel import PHASES, Kernel
from models.common.golden_mesh.registry import golden

STATE = 32


def _kernel(fidelity) -> Kernel:
    return Kernel(PHASES[getattr(fidelity, "name", "HiFi4")], wide=False)


@golden("ttnn.experimental.repeat_and_interleave_eltwise_mul")
def repeat_and_interleave_eltwise_mul(a, b, *, dtype=None, math_fidelity=None, out):
    """a [.., 32], repeated for every channel, times b [.., channels], each element 32 times -> [.., channels * 32].
    Either may come in its full width already."""
    width = out.shape[-1]
    if a.shape[-1] == STATE:
        a = a.repeat(1, 1, 1, width // STATE)
    if b.shape[-1] * STATE == width:
        b = b.repeat_interleave(STATE, -1)
    return engine.multiply(a, b, _kernel(math_fidelity))


@golden("ttnn.experimental.hc_sum_reduce")
def hc_sum_reduce(input, *, dtype=None, math_fidelity=None):
    """[.., channels * 32] -> [.., channels], sums of 32 neighbours."""
    return engine.source_b(input, _kernel(math_fidelity)).unflatten(-1, (-1, STATE)).sum(-1)
