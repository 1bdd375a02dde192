"""Tables of examples, comparisons of the chips' values with expected values, and memory configs.

A table has a row for each example: the call -> what torch makes of its inputs, the inputs, and
options of Chips.check. `test_x = examples(TABLE, globals())` tests each row.
"""

from inspect import Parameter, Signature

import pytest
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic.engine import BFLOAT16, keep
from golden_mesh.arithmetic.packer import pack
from values import Golden

# Relative error of a result that was computed in float32 and rounded once. A chip's engine rounds
# by up to 9/16 of a unit in the last place. The test's other order of summation may fall on the
# other side of a tie, and adds as much again.
RELATIVE = {"BFLOAT16": 9 / 8 * 2**-8, "FLOAT32": 2**-20}


def kernel(fidelity="HiFi4", wide=True, approximate=False, l1_acc=False) -> ttnn.WormholeComputeKernelConfig:
    """wide: a float32 dest. l1_acc: sums of blocks wait in float32, in L1."""
    return ttnn.WormholeComputeKernelConfig(
        math_fidelity=getattr(ttnn.MathFidelity, fidelity), math_approx_mode=approximate, fp32_dest_acc_en=wide,
        packer_l1_acc=l1_acc,
    )  # fmt: skip


def sdpa_program(queries=32, keys=32, approximate=False, **options) -> ttnn.SDPAProgramConfig:
    """Chunks of queries and keys. ttnn's own default is the approximate exp."""
    how = dict(compute_with_storage_grid_size=(8, 8), exp_approx_mode=approximate) | options
    return ttnn.SDPAProgramConfig(q_chunk_size=queries, k_chunk_size=keys, **how)


# Cuts no operand and sums in float32. For tests of an op's meaning, not of its precision.
EXACT = kernel()
ROW_MAJOR, TILE = ttnn.ROW_MAJOR_LAYOUT, ttnn.TILE_LAYOUT


class Put:
    """An input of an example with a dtype, layout or memory config of its own."""

    def __init__(self, values, dtype=None, layout=None, memory_config=None):
        self.values = values
        self.how = {"dtype": dtype, "layout": layout, "memory_config": memory_config}


def ints(values, dtype=ttnn.int32) -> Put:
    """Whole numbers for all chips, not in tiles: positions, indices, page tables."""
    return Put(values if callable(values) else torch.as_tensor(values), dtype, ROW_MAJOR)


def bf16(*shape: int) -> torch.Tensor:
    """Random values that bfloat16 holds, in float32."""
    return torch.randn(shape).bfloat16().float()


def cut(x: torch.Tensor) -> torch.Tensor:
    """Values cut to the bits of bfloat16."""
    return keep(x.float(), BFLOAT16)


def packed(x: torch.Tensor) -> torch.Tensor:
    """What a packer makes of bfloat16 in bfloat8_b."""
    return pack(x.bfloat16(), ttnn.bfloat8_b)


class Chips(Golden):
    """A golden mesh that draws values and checks examples."""

    @property
    def count(self) -> int:
        return self.chips

    def draw(self, *shape, scale=1.0) -> list[torch.Tensor]:
        """Random bfloat16 values in float32, different on each chip."""
        return [(torch.randn(shape) * scale).bfloat16().float() for _ in range(self.count)]

    def put(self, values, dtype=None, layout=None, memory_config=None) -> ttnn.Tensor:
        """Put one tensor on all chips, or each tensor of a list on its chip. Integers are int32."""
        if not (values[0] if isinstance(values, list) else values).is_floating_point():
            dtype = dtype or ttnn.int32
            values = [x.int() for x in values] if isinstance(values, list) else values.int()
        how = dict(dtype=dtype or ttnn.bfloat16, layout=layout or TILE, memory_config=memory_config)
        return super().put(values, **how)

    def semaphores(self, count: int) -> list:
        """Semaphores of a collective, on cores that leave the last row free."""
        return [ttnn.create_global_semaphore(self.device, cores(56), 0) for _ in range(count)]

    def put_input(self, value, **how) -> ttnn.Tensor:
        """Put an input of an example (see check)."""
        if isinstance(value, Put):
            value, how = value.values, value.how
        value = value() if callable(value) else value
        return self.put(self.draw(*value) if isinstance(value, tuple) else value, **how)

    def check(
        self, call, want, *inputs, error=None, steps=1, to=None, special=False, in_place=False, names=None, **how
    ):
        """Assert that `call` of tensors is `want` of each chip's values, and changes no tensor.

        - call: a function, or an expression of x, y, z ... and of `names`.
        - want: in torch, of float64 and int64. The tensors of a tuple are compared one by one.
        - inputs: each a shape of random values that differ by chip; one tensor for all chips, or a
          list with one for each; a function that returns one of these; or Put(...).
        - error: 0 for equal bits, or a relative error in norm. None: `steps` roundings to `to`.
        - special: each element is near by itself, also an infinity or NaN (assert_values).
        - in_place: the result goes into the first tensor, and not into a clone of it.
        - how: dtype, layout and memory_config of the inputs.
        """
        tensors = [self.put_input(value, **how) for value in inputs]
        before = [self.get(tensor) for tensor in tensors]
        copies = [ttnn.clone(tensors[0])] if in_place else []
        call, want = (function_of(each, len(inputs), names or {}) for each in (call, want))
        got = call(*tensors)
        wide = [[v.double() if v.is_floating_point() else v.long() for v in x] for x in before]
        wanted = [want(*values) for values in zip(*wide, strict=True)]
        for tensor, values in zip([*copies, *tensors[in_place:]], before):
            for unchanged, value in zip(self.get(tensor), values, strict=True):
                torch.testing.assert_close(unchanged, value, rtol=0, atol=0, equal_nan=True)
        if not isinstance(wanted[0], (tuple, list)):
            got, wanted = [got], [[values] for values in wanted]
        for result, values in zip(tensors[:1] if in_place else got, zip(*wanted), strict=True):
            assert_within(result, list(values), error, steps, to or how.get("dtype"), special)


def function_of(of, count: int, names: dict):
    """A function, or that of an expression of the first `count` of x, y, z, u, v and w.

    It may have `names`, EXACT, the layouts, sharded, cores, cut and packed.
    """
    if not isinstance(of, str):
        return of
    known = {"ttnn": ttnn, "torch": torch, "F": F, "E": ttnn.experimental, "EXACT": EXACT}
    known |= {"TILE": TILE, "ROW_MAJOR": ROW_MAJOR, "sharded": sharded, "cores": cores, "cut": cut, "packed": packed}
    return eval(f"lambda {', '.join('xyzuvw'[:count])}: (\n{of}\n)", known | names)


def examples(table: dict, names: dict, vary: dict = {}, **common):
    """A test of each row of a table: call -> (want, *inputs), or with options of Chips.check.

    vary: option -> values that each row is tested with. common: options of all rows.
    """

    def test(chips, call, **varied):
        want, *inputs = table[call]
        options = inputs.pop() if isinstance(inputs[-1], dict) else {}
        chips.check(call, want, *inputs, names=names, **(common | varied | options))

    names_of = ("chips", "call", *vary)
    test.__signature__ = Signature([Parameter(n, Parameter.KEYWORD_ONLY) for n in names_of])
    for option, values in vary.items():
        test = pytest.mark.parametrize(option, values, ids=str)(test)
    return pytest.mark.parametrize("call", table)(test)


def pairs(got, want) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return (got, want) of each chip in float64. The shapes must be equal.

    got: a tensor on the device, or one torch tensor a chip. want: one for each chip, or for all.
    """
    if isinstance(got, ttnn.Tensor):
        got = [ttnn.to_torch(shard) for shard in ttnn.get_device_tensors(got)]
    if isinstance(want, torch.Tensor):
        want = [want] * len(got)
    for chip, (g, w) in enumerate(zip(got, want, strict=True)):
        shapes = tuple(g.shape), tuple(w.shape)
        assert shapes[0] == shapes[1], f"chip {chip}: shape {shapes[0]}, not {shapes[1]}"
    return [(g.double(), w.double()) for g, w in zip(got, want)]


def assert_close(got, want, dtype=None, steps: int = 1) -> None:
    """Assert that each chip's values are `want`, rounded to `dtype`. `want` is float32 or float64.

    steps: the number of roundings to `dtype`. Each may have an error relative to the largest value.
    """
    relative = RELATIVE[(dtype or ttnn.bfloat16).name]
    for g, w in pairs(got, want):
        # A long sum's error is relative to its terms. So is the error of terms that are rounded before they are added.
        accumulated = (2e-6 + (steps - 1) * relative / 2) * w.abs().max().item()
        torch.testing.assert_close(g, w, rtol=steps * relative, atol=accumulated)


def assert_values(got, want, dtype=None, steps: int = 1) -> None:
    """Assert that values, also infinities and NaNs, are `want` after `steps` roundings to `dtype`.

    A packer writes NaN as infinity in bfloat16.
    """
    dtype = dtype or ttnn.bfloat16
    for g, w in pairs(got, want):
        if dtype == ttnn.bfloat16:
            w = w.masked_fill(w.isnan(), torch.inf)
        largest = w.nan_to_num(0, 0, 0).abs().max().item()
        held = w.float() if dtype == ttnn.float32 else w.float().bfloat16()
        w = torch.where(held.isinf(), held.double(), w)  # overflow gives infinity
        bounds = dict(rtol=steps * RELATIVE[dtype.name], atol=min(largest, 1) * 2**-22)
        torch.testing.assert_close(g, w, **bounds, equal_nan=True)


def assert_near(got, want, error: float) -> None:
    """Assert a relative error of at most `error` in norm, for ops with many rounded steps."""
    for chip, (g, w) in enumerate(pairs(got, want)):
        off = ((g - w).norm() / w.norm()).item()
        assert off <= error, f"chip {chip}: off by {off:.2e} of the size"


def assert_same(got, want) -> None:
    """Assert that each chip holds exactly `want`."""
    for chip, (g, w) in enumerate(pairs(got, want)):
        assert torch.equal(g, w), f"chip {chip}: differs by up to {(g - w).abs().max()}"


def assert_within(got, want, error, steps: int = 1, dtype=None, special=False) -> None:
    """Assert equal bits (error 0), an error in norm, or `steps` roundings to `dtype` (None)."""
    if error == 0:
        assert_same(got, want)
    elif error is None:
        (assert_values if special else assert_close)(got, want, dtype, steps)
    else:
        assert_near(got, want, error)


def attention(q, k, v, seen=None, added=None, scale=None, sink=None) -> torch.Tensor:
    """Softmax attention of q [B, heads, S, dim] to k and v [B, kv heads, L, dim], in float64.

    seen: the keys that a query sees, [S, L] or [B, 1, S, L]. added: to the scores.
    sink: a score [heads] without a value, which takes part of the weight.
    """
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if added is None else scores + added
    scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
    if sink is not None:
        column = sink.reshape(1, -1, 1, 1) * (q.shape[-1] ** -0.5 if scale is None else scale)
        scores = torch.cat((scores, column.expand(*scores.shape[:-1], 1)), -1)
    return torch.softmax(scores, -1)[..., : k.shape[2]] @ v


def cores(count: int, start: int = 0) -> ttnn.CoreRangeSet:
    """`count` cores of the 8x8 grid row by row, from the `start`-th on."""
    grid = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(7, 7))})
    first = ttnn.CoreCoord(start % 8, start // 8)
    return ttnn.num_cores_to_corerangeset_in_subcoregrids(first, count, grid, row_wise=True)


def sharded(layout: str, shape: tuple[int, int], count: int, start: int = 0, buffer="L1") -> ttnn.MemoryConfig:
    """Layout "HEIGHT" or "WIDTH", shards of `shape` on `count` cores."""
    spec = ttnn.ShardSpec(cores(count, start), shape, ttnn.ShardOrientation.ROW_MAJOR)
    layout = getattr(ttnn.TensorMemoryLayout, f"{layout}_SHARDED")
    return ttnn.MemoryConfig(layout, getattr(ttnn.BufferType, buffer), spec)


def block_sharded(shape: tuple[int, int], columns: int, rows: int, by="ROW_MAJOR") -> ttnn.MemoryConfig:
    """L1, blocks of `shape` on a grid of columns x rows of cores."""
    grid = ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(columns - 1, rows - 1))
    spec = ttnn.ShardSpec(ttnn.CoreRangeSet({grid}), shape, getattr(ttnn.ShardOrientation, by))
    return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.BLOCK_SHARDED, ttnn.BufferType.L1, spec)


def dram_sharded(device, rows: int, columns: int) -> ttnn.MemoryConfig:
    """Width-sharded over the DRAM banks: the layout of a DRAM-sharded matmul's weight and bias."""
    banks = device.dram_grid_size().x
    width = -(-columns // (32 * banks)) * 32
    grid = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(banks - 1, 0))})
    spec = ttnn.ShardSpec(grid, (rows, width), ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.DRAM, spec)
