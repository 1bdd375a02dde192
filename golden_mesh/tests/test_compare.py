"""golden-mesh compare: toy programs with a fault in the line marked `# wrong ...`. The report names this line."""

import json
from pathlib import Path

import pytest
import torch
import ttnn
from torch.nn import functional as F

from golden_mesh.compare import report as compare_report
from golden_mesh.compare.comparison import WhatIf, comparing
from golden_mesh.compare.differences import error
from golden_mesh.mesh.dispatch import slot_of
from goldens.support import kernel, sdpa_program

ROWS, WIDTH, INNER = 64, 256, 512
ATTENTION = ttnn.transformer.scaled_dot_product_attention


def noise(*shape: int, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def mlp(golden, up_kernel, weights=ttnn.bfloat16):
    """x + down(silu(up(x))), the inner dim split over the chips."""
    chips = golden.chips
    x = golden.put(noise(1, 1, ROWS, WIDTH))
    up = [noise(1, 1, WIDTH, INNER, scale=WIDTH**-0.5, seed=1 + i) for i in range(chips)]
    up = golden.put(up)
    down = noise(chips, 1, INNER, WIDTH, scale=(chips * INNER) ** -0.5, seed=9)
    mapper = ttnn.ShardTensorToMesh(golden.device, dim=0)
    place = dict(device=golden.device, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper)
    down = ttnn.from_torch(down, dtype=weights, **place)  # wrong weight
    h = ttnn.linear(x, up, activation="silu", compute_kernel_config=up_kernel)  # wrong fidelity
    y = ttnn.linear(h, down, compute_kernel_config=kernel("HiFi3"))
    y = ttnn.all_reduce(y) if chips > 1 else y
    return ttnn.add(y, x)


def lofi(golden):
    """LoFi where HiFi3 is needed"""
    mlp(golden, kernel("LoFi"))


def four_bits(golden):
    """a bfloat4_b weight"""
    mlp(golden, kernel("HiFi3"), ttnn.bfloat4_b)


def narrow_norm(golden):
    """a bfloat16 dest in a wide norm"""
    x = golden.put(noise(1, 1, ROWS, 4096) + 3)
    weight = golden.put(noise(1, 1, 1, 4096) + 1)
    y = ttnn.rms_norm(x, weight=weight, compute_kernel_config=kernel("HiFi3", wide=False))  # wrong dest
    y = ttnn.rms_norm(y, weight=weight, compute_kernel_config=kernel("HiFi3"))
    ttnn.add(x, y)


def approximate_exp(golden):
    """an approximate exp"""
    scores = golden.put(noise(1, 4, ROWS, ROWS) * 3)
    ttnn.softmax(scores, compute_kernel_config=kernel("HiFi3"))
    ttnn.softmax(scores, compute_kernel_config=kernel("HiFi3", approximate=True))  # wrong exp
    ttnn.multiply(scores, 0.125)


def narrow_cache(golden):
    """an 8-bit cache with outlier channels, read by an attention with a larger error"""
    keys = noise(1, 2, ROWS, 64)
    keys[..., 5::32] *= 50
    rows, table = golden.put(keys), golden.put_ints([[2, 1]])
    for dtype in (ttnn.bfloat16, ttnn.bfloat8_b):
        cache = golden.put(torch.zeros(4, 2, 32, 64), dtype=dtype)
        packed = ttnn.typecast(rows, dtype)  # wrong cache
        ttnn.experimental.paged_fill_cache(cache, packed, table, batch_idx=0)
    q, v = (golden.put(noise(1, 2, ROWS, 64, seed=seed)) for seed in (1, 2))
    ATTENTION(q, packed, v, compute_kernel_config=kernel("LoFi"))


def attention_exp(golden):
    """an approximate exp in a program config"""
    x, program = golden.put(noise(1, 2, ROWS, 64)), sdpa_program(approximate=True)
    ATTENTION(x, x, x, program_config=program, compute_kernel_config=kernel("HiFi3"))  # wrong attention


# What the report's row of the fault shows beside its line.
FAULTS = {
    lofi: ("fidelity", "LoFi fp32"),
    four_bits: ("weight", "ttnn.from_torch"),
    narrow_norm: ("dest", "HiFi3 bf16"),
    approximate_exp: ("exp", "approx"),
    attention_exp: ("attention", "approx"),
    narrow_cache: ("cache", "by channel"),
}


def marked(mark: str) -> int:
    """The line of this file that ends with the mark."""
    lines = Path(__file__).read_text().splitlines()
    (line,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"# {mark}")]
    return line


@pytest.mark.parametrize("program", FAULTS, ids=lambda program: program.__doc__)
def test_the_line_with_the_largest_error_is_named(comparison, golden, program):
    program(golden)
    mark, shown = FAULTS[program]
    named = compare_report.text(comparison, 0.99).splitlines()[3]
    assert f"test_compare.py:{marked(f'wrong {mark}')} " in named and shown in named
    assert comparison.rows[-1].site.dram > 0


@pytest.mark.parametrize(
    "setting, program", (("fidelity=HiFi4", lofi), ("dest=float32", narrow_norm), ("dtype=bfloat16", four_bits))
)
def test_what_another_setting_would_give(comparison, golden, setting, program):
    comparison.what_if = WhatIf(setting)
    program(golden)
    worst = max(comparison.rows, key=lambda row: row.own.relative)
    assert worst.what_if.relative < worst.own.relative / 4


def test_errors_by_hand():
    found = error(torch.tensor([[1.0, 2.0], [3.0, 6.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 1)
    assert (found.largest, found.place, found.chip, found.nonfinite) == (2, (1, 1), 1, 0)
    assert found.relative == pytest.approx((4 / 30) ** 0.5)
    assert found.gain == pytest.approx(38 / 30)
    assert found.pcc == pytest.approx(0.9561829, abs=1e-6)
    found = error(torch.tensor([1.0, torch.inf, 0]), torch.tensor([1.0, 5.0, torch.nan]), 0)
    assert (found.nonfinite, found.largest, found.place) == (1, 5, (1,))


def test_the_stream_keeps_what_the_program_rounds(comparison, golden):
    """In place, through a view and through a trace's replay: far errors add up, own errors do not."""
    exact = noise(1, 1, 32, 64)
    x = golden.put(exact)
    ttnn.multiply_(x, 3.0)
    cut = ttnn.typecast(x, ttnn.bfloat8_b)
    ttnn.typecast(ttnn.reshape(cut, (1, 1, 64, 32)), ttnn.bfloat16)
    stream = comparison.stream.read(comparison.rows[-1].slot)
    assert torch.equal(stream[0].flatten(), 3 * exact.flatten())
    assert comparison.rows[-1].own.relative == 0 < comparison.rows[-1].far.relative


def test_a_trace_counts_when_it_runs(comparison, golden):
    x = golden.put(noise(1, 1, 32, 64))
    ttnn.add(x, x)
    before = len(comparison.rows)
    trace, y = golden.capture(lambda: ttnn.add(x, x))  # captured
    assert len(comparison.rows) == before
    ttnn.execute_trace(golden.device, trace, cq_id=0, blocking=True)
    (row,) = comparison.rows[before:]
    assert row.site.line == marked("captured") and row.own.relative < 1e-2
    ttnn.release_trace(golden.device, trace)
    ttnn.deallocate(y)


def test_a_cache_is_judged_by_what_is_written(comparison, golden):
    cache = golden.put(torch.full((4, 2, 32, 64), 1e6))
    ttnn.fill_cache(cache, golden.put(noise(1, 2, 32, 64)), 1)
    row = comparison.rows[-1]
    assert row.op == "ttnn.fill_cache" and row.own.relative == 0
    assert row.far.relative == comparison.rows[-2].far.relative


def test_a_chip_of_several_is_named(comparison, golden):
    values = [torch.full((1, 1, 32, 32), 1.0) for _ in range(golden.chips)]
    values[-1][0, 0, 3, 4] = 1.001
    golden.put(values)
    (row,) = comparison.rows
    assert (row.far.chip, row.far.place) == (golden.chips - 1, (0, 0, 3, 4))


def test_random_numbers_are_those_of_a_run_without_compare(golden):
    def tokens():
        rows = dict(layout=ttnn.ROW_MAJOR_LAYOUT)
        values, indices = (golden.put(noise(1, 1, 32, 64)), golden.put_ints(torch.arange(64).repeat(1, 1, 32, 1)))
        settings = golden.full(32, 32, dtype=ttnn.uint32, **rows), golden.full(1.0, 32, **rows)
        return golden.get(ttnn.sampling(values, indices, *settings, settings[1], seed=7))[0]

    plain = tokens()
    with comparing():
        assert torch.equal(tokens(), plain)


def test_command_line(launch, tmp_path):
    """And without compare nothing of it is loaded."""
    program = (Path(__file__).resolve().parents[1] / "examples/perceptron.py").read_text()
    (tmp_path / "program.py").write_text(
        program + "\nimport sys; print('golden_mesh.compare.comparison' in sys.modules)\n"
    )
    done = launch("compare", "--system", "N150", "--json", "out.json", "program.py")
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert lines[1].startswith("correlation") and lines[2] == "True"
    assert lines[3].startswith("compare: 6 operations against float32. None falls below PCC 0.99")
    assert len(lines) <= 23
    operations = json.loads((tmp_path / "out.json").read_text())["operations"]
    assert [each["op"] for each in operations][3:] == ["ttnn.linear", "ttnn.linear", "ttnn.add"]
    assert launch("--system", "N150", "program.py").stdout.splitlines()[2:] == ["False"]


SILU = [ttnn.UnaryOpType.SILU]
# In ttnn and in torch, of x [1, 2, 64, 64] and w [64, 64].
OPS = {
    "add": (lambda x, w: ttnn.add(x, 0.3), lambda x, w: x + 0.3),
    "multiply": (lambda x, w: ttnn.multiply(x, x, input_tensor_a_activations=SILU), lambda x, w: F.silu(x) * x),
    "gelu": (lambda x, w: ttnn.gelu(x), lambda x, w: F.gelu(x)),
    "rsqrt": (lambda x, w: ttnn.rsqrt(ttnn.abs(x)), lambda x, w: x.abs().rsqrt()),
    "mean": (lambda x, w: ttnn.mean(x, -1), lambda x, w: x.mean(-1)),
    "sum": (lambda x, w: ttnn.sum(x, -2), lambda x, w: x.sum(-2)),
    "softmax": (lambda x, w: ttnn.softmax(x), lambda x, w: x.softmax(-1)),
    "layer_norm": (lambda x, w: ttnn.layer_norm(x, epsilon=1e-5), lambda x, w: F.layer_norm(x, (64,))),
    "rms_norm": (lambda x, w: ttnn.rms_norm(x, epsilon=1e-5), lambda x, w: F.rms_norm(x, (64,), eps=1e-5)),
    "linear": (lambda x, w: ttnn.linear(x, w, activation="silu"), lambda x, w: F.silu(x @ w)),
    "attention": (
        lambda x, w: ATTENTION(x, x, x), lambda x, w: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    ),
    "pow": (lambda x, w: ttnn.pow(x, 3), lambda x, w: x**3),
    "in place": (lambda x, w: ttnn.multiply_(x, 0.3), lambda x, w: x * 0.3),
}  # fmt: skip


@pytest.mark.parametrize("op", OPS)
def test_the_stream_is_float32(comparison, golden, op):
    """Of tensors that no bfloat16 holds: an op that rounds anything is 1e-3 off."""
    x, w = noise(1, 2, ROWS, 64), noise(64, 64, seed=1)
    run, expect = OPS[op]
    result, expected = run(golden.put(x), golden.put(w)), expect(x, w)
    (stream, *_) = comparison.stream.read(slot_of(result))
    assert stream.dtype == torch.float32
    torch.testing.assert_close(stream.reshape(expected.shape), expected, rtol=1e-4, atol=2e-5)
    assert not comparison.without


def test_the_operation_that_makes_infinities_is_named(golden, comparison):
    """A mask of -inf is none."""
    x, mask = golden.put(noise(1, 1, 32, 64)), golden.put(torch.full((1, 1, 32, 64), -torch.inf))
    ttnn.add_(ttnn.add(x, mask), x)
    assert "infinite" not in compare_report.text(comparison, 0.9)
    ttnn.add(ttnn.reciprocal(ttnn.multiply(x, 0.0)), x)
    named = compare_report.text(comparison, 0.9).splitlines()[1]
    assert "ttnn.reciprocal" in named and "2,048 values" in named
