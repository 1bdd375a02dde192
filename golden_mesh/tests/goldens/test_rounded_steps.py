"""Where a kernel rounds inside of an op: by numbers at which the step shows. A simulated N150 gives all of these.

The inputs are constants, so a result is one number, but for those of the padding.
"""

import math

import pytest
import torch
import ttnn

from golden_mesh import exact_sums
from golden_mesh.hazards import HazardError
from goldens.support import kernel

B8, BF, F32 = ttnn.bfloat8_b, ttnn.bfloat16, ttnn.float32
IN_L1, SPILLED = (kernel(wide=False, l1_acc=l1_acc) for l1_acc in (True, False))
HIFI2, LOFI = kernel("HiFi2"), kernel("LoFi")
MAMBA, AT_LOFI = "experimental.repeat_and_interleave_eltwise_mul", "math_fidelity=ttnn.MathFidelity.LoFi"

ROWS = {
    # the library has steps of two operands for block floats that broadcast: 129 * 1 is packed to 130
    "lerp(full(-128, B8), full(1, B8), full(1, B8, 32, 1))": 2,
    "lerp(full(-128, B8), full(1, B8), full(1, B8))": 1,
    "addcmul(full(-128, B8), full(3, B8), full(43, B8, 1, 32), value=1.0)": 2,
    # a tie, which the packer rounds away from zero
    "addcmul(full(1, BF), full(2**-8, BF), full(1, BF), value=1.0)": 1 + 2**-7,
    # alpha times a tensor is cut
    "addalpha(full(-0.431640625, BF), full(1.5078125, BF), 0.3)": 0.01953125,
    "subalpha(full(0.828125, BF), full(2.328125, BF), 0.3)": 0.1328125,
    # a number beside bfloat16 is cut
    "where(full(1, BF), 0.3, full(1, BF))": 0.298828125,
    "relu_max(full(2, BF), 1.1)": 1.09375,
    "relu_max(full(2, F32), 1.1)": 1.100000023841858,
    "relu_min(full(-2, BF), 0.3)": 0.298828125,
    "clamp(full(2, BF), -0.7, 1.1)": 1.09375,
    "clamp(full(-2, BF), -0.7, 1.1)": -0.69921875,
    "hardtanh(full(2, BF), min_val=-0.7, max_val=1.1)": 1.09375,
    "fill(full(2, BF), 1.1)": 1.09375,
    "fill(full(2, F32), 1.1)": 1.100000023841858,
    "unary_chain(full(2, BF), [ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU_MAX, 1.1)])": 1.09375,
    # of two float32 to bfloat16 ties go to even
    "subtract(full(1 + 2**-8, F32), full(0, F32), dtype=BF)": 1,
    "subtract(full(1 + 3 * 2**-8, F32), full(0, F32), dtype=BF)": 1 + 2**-6,
    # the sum of squares is rounded to bfloat16 before its root; in float32 squares overflow, and subnormal ones are 0
    "hypot(full(1, BF), full(2**-4, BF))": 1,
    "hypot(full(2**64, F32), full(0, F32))": math.inf,
    "hypot(full(2**-64, F32), full(0, F32))": 0,
    "hypot(full(2**-63, F32), full(0, F32))": 2**-63,
    # LoFi cuts both operands of mamba's product
    f"{MAMBA}(full(1 + 2**-6, BF, 1, 1, 32, 32), full(1, BF, 1, 1, 32, 5120), {AT_LOFI})": 1,
    f"{MAMBA}(full(1, BF, 1, 1, 32, 32), full(1 + 2**-7, BF, 1, 1, 32, 5120), {AT_LOFI})": 1,
    # the quotient 67.9 is rounded to bfloat16 before it is made whole
    "floor_div(full(20.375, BF), 0.3)": 68,
    # float32 beside bfloat16 is cut to it
    "matmul(full(1, BF), full(1 + 2**-8, F32))": 32,
    "matmul(full(1, F32), full(1 + 2**-8, F32))": 32.125,
    "matmul(full(1, F32), full(1 + 2**-8, F32), dtype=BF)": 32,
    # a bias of float32, too; and the sum of one block waits in the result's format for its bias
    "linear(full(1, BF), full(1, BF), bias=full(1 - 2**-9, F32, 1, 32), compute_kernel_config=IN_L1)": 33,
    "linear(full(1, B8), full(129 / 32, BF), bias=full(-128, BF, 1, 32), dtype=B8, compute_kernel_config=IN_L1)": 2,
    # without packer_l1_acc the sum of 129s waits in the result's format after each block
    "matmul(full(3, B8, 64, 256), full(43 / 32, B8, 256, 64), compute_kernel_config=SPILLED)": 1072,
    "matmul(full(3, B8, 64, 256), full(43 / 32, B8, 256, 64), compute_kernel_config=IN_L1)": 1024,
    "addmm(full(0, B8, 64, 64), full(3, B8, 64, 256), full(43 / 32, B8, 256, 64), compute_kernel_config=SPILLED)": 1072,
    # SrcA takes the product back from dest, cut
    "prod(full(1 + 2**-12, F32, 32, 2), dim=-1)": 1,
    # 1 - x and the quotient are rounded to bfloat16 before the logarithm; the product is cut
    "logit(full(0.447265625, BF))": -0.2177734375,
    "hardmish(full(-0.166015625, BF))": -0.1513671875,
    "atan(full(2.296875, BF))": 1.15625,
    "cbrt(full(5, BF))": 1.7109375,
    "log(full(1.265625, BF))": 0.236328125,
    "log1p(full(0.3, BF))": 0.263671875,
    "tanh(full(3.453125, BF))": 1,
    "mish(full(-(2**-12), BF))": -0.00014591217041015625,
    "atanh(full(2**-8, BF))": 0.0038909912109375,
    "erfc(full(0, BF))": 0.99609375,
    "erfinv(full(0.375, BF))": 0.345703125,
    "lgamma(full(1.3, BF))": -0.107421875,
    "multigammaln(full(5, BF))": 12.0625,
    "logaddexp(full(-0.5, BF), full(-1, BF))": -0.0267333984375,
    "xlogy(full(3, F32), full(2, F32))": 2.080766201019287,
    "atan2(full(3, BF), full(-5, BF))": 2.59375,
    "i1(full(100, BF))": 1.1547668213381457e37,
    # SrcB has rows, and takes seven bits with LoFi and HiFi2. SrcA has columns, and takes five with LoFi
    "sum(full(1 + 2**-7, BF), dim=-1, compute_kernel_config=LOFI)": 32,
    "sum(full(1 + 2**-6, BF), dim=-1, compute_kernel_config=LOFI)": 32.5,
    "sum(full(1 + 2**-7, BF), dim=-1, compute_kernel_config=kernel('HiFi3'))": 32.25,
    "sum(full(1 + 2**-6, BF), dim=-2, compute_kernel_config=LOFI)": 32,
    "sum(full(1 + 2**-7, BF), dim=-2, compute_kernel_config=HIFI2)": 32.25,
    # a bfloat16 dest cuts float32
    "sum(full(1.5 + 2**-8, F32), dim=-1, compute_kernel_config=IN_L1)": 48,
    "max(full(1.5 + 2**-8, F32), dim=-1, compute_kernel_config=IN_L1)": 1.5,
    "mean(full(3, BF), dim=-1, scalar=0.5)": 1.5,
    # between the steps of a mean lies bfloat16, and its factor is cut to it; of a sum float32, and 11 bits are left
    "mean(full(1.0078125, BF, 1, 1, 128, 96), dim=(2, 3))": 1.0078125,
    "sum(full(1, BF, 1, 1, 96, 128), dim=(2, 3), scalar=1 + 3 * 2**-9)": 12352,
    "sum(full(1, BF, 1, 1, 96, 128), dim=(2, 3), scalar=1 + 3 * 2**-9, compute_kernel_config=HIFI2)": 12288,
    # a bfloat16 dest rounds each sum of two outer rows, but not of float32: the library adds it as columns
    "sum(full(1, BF, 300, 1, 32, 32), dim=0, compute_kernel_config=IN_L1)": 344,
    "sum(full(1, F32, 300, 1, 32, 32), dim=0, compute_kernel_config=IN_L1)": 300,
    # after each outer dim the sum is packed
    "experimental.fast_reduce_nc(full(1, BF, 3, 257, 32, 32), dims=[0, 1], compute_kernel_config=HIFI2)": 776,
    "moreh_mean(full(1, BF, 3, 257, 32, 32), dim=[0, 1], keepdim=True)": 1.0078125,
    "moreh_norm(full(3, BF, 3, 3, 32, 40), p=2.0, dim=[2, 3], keepdim=True)": 109,
    "moreh_sum(full(1, BF, 3, 257, 32, 32), dim=[0, 1], keepdim=True, compute_kernel_config=HIFI2)": 776,
    # bits that become float32 go through SrcA
    "bitcast(put(torch.full((32, 32), 0x3F801FFF), ttnn.int32), F32)": 1,
    # a limit beside bfloat16 is rounded to it
    "hardshrink_bw(full(1, BF), full(0.8, BF), lambd=0.8)[0]": 0,
}
"""The call -> its result."""


def full(put, value: float, dtype=BF, *shape: int) -> ttnn.Tensor:
    return put(torch.full(shape or (32, 32), float(value)), dtype)


def result(call: str, put) -> ttnn.Tensor:
    names = globals() | {"put": put, "full": lambda *args: full(put, *args)}
    return eval(f"ttnn.{call}", names)


@pytest.mark.parametrize("call", ROWS)
def test_a_step_rounds_as_on_a_chip(chips, call):
    with exact_sums():
        got = chips.get(result(call, chips.put))[0].double()
    assert (got == ROWS[call]).all(), got.flatten()[0].item()


def test_the_padding_of_a_block_float_takes_part_in_its_exponent(chips):
    x = full(chips.put, -8, B8, 32, 17)
    found = chips.get(ttnn.exp(x))[0]
    assert (found[:, :16] > 3e-4).all() and (found[:, 16] == 0).all()  # beside exp(0)
    with pytest.raises(HazardError, match="the columns of the last, partial block come out 0"):
        ttnn.reciprocal(x)
    padded = ttnn.fill_implicit_tile_padding(x, 1.0)
    assert (chips.get(ttnn.reciprocal(padded))[0] == -0.125).all()


def test_softmax_adds_its_weights_as_the_matrix_engine_does(chips):
    """In groups of eight, each rounded to 2**-10 of the largest: beside 1, seven weights of 0.4 * 2**-10 are lost."""
    x = torch.full((32, 32), -7.84375)
    x[:, 0] = 0
    got = chips.get(ttnn.softmax(chips.put(x, BF), dim=-1, compute_kernel_config=kernel("HiFi3")))[0][:, 0]
    assert (got == torch.tensor(1 / (1 + 24 * math.exp(-7.84375))).bfloat16()).all()


@pytest.mark.parametrize(
    "order, found", [(ttnn.ShardOrientation.ROW_MAJOR, 16 / 64.5**0.5), (ttnn.ShardOrientation.COL_MAJOR, 2)]
)
@pytest.mark.parametrize("norm", [ttnn.rms_norm, ttnn.layer_norm], ids=lambda norm: norm.__name__)
def test_the_lines_of_a_grid_add_their_parts_of_a_row_before_they_meet(chips, norm, order, found):
    """64 + 0.19 + 0.19 is 64 in a bfloat16 dest, 64 + 0.38 is 64.5. Columns of shards do not add first."""
    x = torch.tensor([16.0, 0, 0.875, 0.875]).repeat_interleave(32).expand(32, -1)
    x = x * torch.tensor([1.0, -1]).repeat(64)  # of mean 0
    cores = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 1))])
    spec = ttnn.ShardSpec(cores, (32, 32), order)
    memory = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.L1, spec)
    program = ttnn.LayerNormShardedMultiCoreProgramConfig(
        compute_with_storage_grid_size=(2, 2), subblock_w=1, block_h=1, block_w=1, inplace=False
    )
    x = ttnn.to_memory_config(chips.put(x, BF), memory)
    got = norm(x, epsilon=0.0, program_config=program, memory_config=memory, compute_kernel_config=IN_L1)
    assert (chips.get(got)[0][:, 0] == torch.tensor(found).bfloat16()).all()


def test_the_second_half_of_a_norm_adds_statistics_in_dest(chips):
    """Of four chips: 64 + 0.2 + 0.2 + 0.2 is 64 in a bfloat16 dest."""
    stats = torch.zeros(1, 1, 32, 128)
    stats[..., ::32] = 32 * 4 * torch.tensor([64, 0.2, 0.2, 0.2])
    x = full(chips.put, 16, BF, 1, 1, 32, 32)
    got = ttnn.rms_norm_post_all_gather(x, chips.put(stats, BF), epsilon=0.0, compute_kernel_config=IN_L1)
    assert (chips.get(got)[0] == 2).all()
