"""golden-mesh compare: toy programs with a fault in the line marked `# wrong ...`. The report names this line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from golden_mesh.__main__ import environment, split
from golden_mesh.errors import GoldenMeshError

SOURCE = Path(__file__).resolve().parents[1] / "src"
ROWS, WIDTH, INNER = 64, 256, 512


@pytest.fixture
def comparison(golden):
    from golden_mesh.compare import comparing

    with comparing() as comparison:
        yield comparison


def noise(*shape: int, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def kernel(golden, fidelity="HiFi3", wide=True, approximate=False):
    import ttnn

    return ttnn.init_device_compute_kernel_config(
        golden.device.arch(),
        math_fidelity=getattr(ttnn.MathFidelity, fidelity),
        fp32_dest_acc_en=wide,
        math_approx_mode=approximate,
    )


def mlp(golden, *, up_kernel, down_kernel, weights=None):
    """x + down(silu(up(x))), the inner dim split over the chips."""
    import ttnn

    chips = golden.chips
    x = golden.put(noise(1, 1, ROWS, WIDTH))
    up = golden.put(
        [noise(1, 1, WIDTH, INNER, scale=WIDTH**-0.5, seed=1 + i) for i in range(chips)]
    )
    down = noise(chips, 1, INNER, WIDTH, scale=(chips * INNER) ** -0.5, seed=9)
    mapper = ttnn.ShardTensorToMesh(golden.device, dim=0)
    place = dict(device=golden.device, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper)
    down = ttnn.from_torch(down, dtype=weights or ttnn.bfloat16, **place)  # wrong weight
    h = ttnn.linear(x, up, activation="silu", compute_kernel_config=up_kernel)  # wrong fidelity
    y = ttnn.linear(h, down, compute_kernel_config=down_kernel)
    if chips > 1:
        y = ttnn.all_reduce(y)
    return ttnn.add(y, x)


def lofi(golden):
    """LoFi where HiFi3 is needed"""
    mlp(golden, up_kernel=kernel(golden, "LoFi"), down_kernel=kernel(golden))


def four_bits(golden):
    """a bfloat4_b weight"""
    import ttnn

    mlp(golden, up_kernel=kernel(golden), down_kernel=kernel(golden), weights=ttnn.bfloat4_b)


def narrow_norm(golden):
    """a bfloat16 dest in a wide norm"""
    import ttnn

    x = golden.put(noise(1, 1, ROWS, 4096) + 3)
    weight = golden.put(noise(1, 1, 1, 4096) + 1)
    narrow = kernel(golden, wide=False)
    y = ttnn.rms_norm(x, weight=weight, compute_kernel_config=narrow)  # wrong dest
    y = ttnn.rms_norm(y, weight=weight, compute_kernel_config=kernel(golden))
    ttnn.add(x, y)


def approximate_exp(golden):
    """an approximate exp"""
    import ttnn

    scores = golden.put(noise(1, 4, ROWS, ROWS) * 3)
    ttnn.softmax(scores, compute_kernel_config=kernel(golden))
    ttnn.softmax(scores, compute_kernel_config=kernel(golden, approximate=True))  # wrong exp
    ttnn.multiply(scores, 0.125)


def narrow_cache(golden):
    """an 8-bit cache with outlier channels"""
    import ttnn

    keys = noise(1, 2, ROWS, 64)
    keys[..., 5::32] *= 50
    rows = golden.put(keys)
    for dtype in (ttnn.bfloat16, ttnn.bfloat8_b):
        cache = golden.put(torch.zeros(4, 2, 32, 64), dtype=dtype)
        table = golden.put(
            torch.tensor([[2, 1]]).int(), dtype=ttnn.int32, layout=ttnn.ROW_MAJOR_LAYOUT
        )
        packed = ttnn.typecast(rows, dtype)  # wrong cache
        ttnn.experimental.paged_fill_cache(cache, packed, table, batch_idx=0)
    ttnn.add(rows, rows)


FAULTS = {
    lofi: "fidelity", four_bits: "weight", narrow_norm: "dest", approximate_exp: "exp", narrow_cache: "cache"
}  # fmt: skip


def marked(mark: str) -> int:
    """The line of this file that ends with the mark."""
    lines = Path(__file__).read_text().splitlines()
    (line,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"# {mark}")]
    return line


@pytest.mark.parametrize("program", FAULTS, ids=lambda program: program.__doc__)
def test_the_line_with_the_largest_error_is_named(comparison, golden, program):
    from golden_mesh import compare_report

    program(golden)
    named = compare_report.text(comparison, 0.99).splitlines()[3]
    assert f"test_compare.py:{marked(f'wrong {FAULTS[program]}')} " in named


def test_an_exact_program_has_no_error(comparison, golden):
    import ttnn

    x = golden.put(torch.ones(1, 1, 32, 64))
    ttnn.add(ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT), 1.0)
    assert [row.far.relative for row in comparison.rows] == [0, 0, 0]
    assert golden.holds(ttnn.add(x, 1.0), 2)


def test_errors_by_hand(comparison):
    from golden_mesh.differences import error

    found = error(torch.tensor([[1.0, 2.0], [3.0, 6.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 1)
    assert (found.largest, found.place, found.chip, found.nonfinite) == (2, (1, 1), 1, 0)
    assert found.relative == pytest.approx((4 / 30) ** 0.5)
    assert found.gain == pytest.approx(38 / 30)
    assert found.pcc == pytest.approx(0.9561829, abs=1e-6)
    found = error(torch.tensor([1.0, torch.inf, 0]), torch.tensor([1.0, 5.0, torch.nan]), 0)
    assert (found.nonfinite, found.largest, found.place) == (1, 5, (1,))


def test_the_stream_keeps_what_the_program_rounds(comparison, golden):
    """In place, through a view and through a trace's replay: far errors add up, own errors do not."""
    import ttnn

    exact = noise(1, 1, 32, 64)
    x = golden.put(exact)
    ttnn.multiply_(x, 3.0)
    cut = ttnn.typecast(x, ttnn.bfloat8_b)
    again = ttnn.typecast(ttnn.reshape(cut, (1, 1, 64, 32)), ttnn.bfloat16)
    stream = comparison.stream.read(comparison.rows[-1].slot)
    assert torch.equal(stream[0].flatten(), 3 * exact.flatten())
    assert comparison.rows[-1].own.relative == 0 < comparison.rows[-1].far.relative
    assert golden.get(again)[0].shape == (1, 1, 64, 32)


def test_a_trace_counts_when_it_runs(comparison, golden):
    import ttnn

    x = golden.put(noise(1, 1, 32, 64))
    ttnn.add(x, x)
    before = len(comparison.rows)
    trace = ttnn.begin_trace_capture(golden.device, cq_id=0)
    y = ttnn.add(x, x)  # captured
    ttnn.end_trace_capture(golden.device, trace, cq_id=0)
    assert len(comparison.rows) == before
    ttnn.execute_trace(golden.device, trace, cq_id=0, blocking=True)
    (row,) = comparison.rows[before:]
    assert row.site.line == marked("captured")
    assert row.own.relative < 1e-2
    ttnn.release_trace(golden.device, trace)
    ttnn.deallocate(y)


def test_a_cache_is_judged_by_what_is_written(comparison, golden):
    import ttnn

    cache = golden.put(torch.full((4, 2, 32, 64), 1e6))
    rows = golden.put(noise(1, 2, 32, 64))
    ttnn.fill_cache(cache, rows, 1)
    row = comparison.rows[-1]
    assert row.op == "ttnn.fill_cache" and row.own.relative == 0
    assert row.far.relative == comparison.rows[-2].far.relative


def test_a_chip_of_several_is_named(comparison, golden):
    import ttnn

    values = [torch.full((1, 1, 32, 32), 1.0) for _ in range(golden.chips)]
    values[-1][0, 0, 3, 4] = 1.001
    golden.put(values)
    (row,) = comparison.rows
    assert (row.far.chip, row.far.place) == (golden.chips - 1, (0, 0, 3, 4))
    ttnn.synchronize_device(golden.device)


def test_random_numbers_are_those_of_a_run_without_compare(golden):
    import ttnn

    from golden_mesh.compare import comparing

    def tokens():
        values = golden.put(noise(1, 1, 32, 64))
        indices = golden.put(
            torch.arange(64).int().repeat(1, 1, 32, 1),
            dtype=ttnn.int32,
            layout=ttnn.ROW_MAJOR_LAYOUT,
        )
        settings = [
            golden.put(torch.full((32,), number), dtype=dtype, layout=ttnn.ROW_MAJOR_LAYOUT)
            for number, dtype in ((32, ttnn.uint32), (1.0, ttnn.bfloat16), (1.0, ttnn.bfloat16))
        ]
        return golden.get(ttnn.sampling(values, indices, *settings, seed=7))[0]

    plain = tokens()
    with comparing():
        assert torch.equal(tokens(), plain)


def test_command_line(tmp_path):
    program = tmp_path / "program.py"
    program.write_text((Path(SOURCE).parent / "examples/perceptron.py").read_text())
    command = [sys.executable, f"{SOURCE}/golden_mesh", "compare", "--system", "N150"]
    command += ["--json", "out.json", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert lines[1].startswith("correlation")
    assert lines[2].startswith("compare: 6 operations against float32. None falls below PCC 0.99")
    assert len(lines) <= 22
    operations = json.loads((tmp_path / "out.json").read_text())["operations"]
    assert [each["op"] for each in operations][3:] == ["ttnn.linear", "ttnn.linear", "ttnn.add"]


@pytest.mark.parametrize("arguments", (["--below", "2"], ["--json"], ["--links", "1"]))
def test_a_wrong_option_is_refused(arguments):
    with pytest.raises(GoldenMeshError, match=arguments[0]):
        split(["compare", *arguments, "-c", "pass"])


def test_without_compare_nothing_of_it_is_loaded():
    program = "import ttnn, sys; assert 'golden_mesh.compare' not in sys.modules"
    choice, command = split(["--system", "N150", "-c", program])
    done = subprocess.run(
        [sys.executable, *command],
        env=environment(choice, dict(os.environ)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    "setting, program",
    (("fidelity=HiFi4", lofi), ("dest=float32", narrow_norm), ("dtype=bfloat16", four_bits)),
)
def test_what_another_setting_would_give(comparison, golden, setting, program):
    from golden_mesh.compare import WhatIf

    comparison.what_if = WhatIf(setting)
    program(golden)
    worst = max(comparison.rows, key=lambda row: row.own.relative)
    assert worst.what_if.relative < worst.own.relative / 4


OPS = {
    "add": lambda ttnn, F, x, w: (ttnn.add(x[0], 0.3), x[1] + 0.3),
    "multiply": lambda ttnn, F, x, w: (
        ttnn.multiply(x[0], x[0], input_tensor_a_activations=[ttnn.UnaryOpType.SILU]),
        F.silu(x[1]) * x[1],
    ),
    "gelu": lambda ttnn, F, x, w: (ttnn.gelu(x[0]), F.gelu(x[1])),
    "rsqrt": lambda ttnn, F, x, w: (ttnn.rsqrt(ttnn.abs(x[0])), x[1].abs().rsqrt()),
    "mean": lambda ttnn, F, x, w: (ttnn.mean(x[0], -1), x[1].mean(-1)),
    "softmax": lambda ttnn, F, x, w: (ttnn.softmax(x[0]), x[1].softmax(-1)),
    "layer_norm": lambda ttnn, F, x, w: (
        ttnn.layer_norm(x[0], epsilon=1e-5),
        F.layer_norm(x[1], (64,)),
    ),
    "rms_norm": lambda ttnn, F, x, w: (
        ttnn.rms_norm(x[0], epsilon=1e-5),
        F.rms_norm(x[1], (64,), eps=1e-5),
    ),
    "linear": lambda ttnn, F, x, w: (
        ttnn.linear(x[0], w[0], activation="silu"),
        F.silu(x[1] @ w[1]),
    ),
    "attention": lambda ttnn, F, x, w: (
        ttnn.transformer.scaled_dot_product_attention(x[0], x[0], x[0]),
        F.scaled_dot_product_attention(x[1], x[1], x[1], is_causal=True),
    ),
    "pow": lambda ttnn, F, x, w: (ttnn.pow(x[0], 3), x[1] ** 3),
    "sum": lambda ttnn, F, x, w: (ttnn.sum(x[0], -2), x[1].sum(-2)),
    "in place": lambda ttnn, F, x, w: (ttnn.multiply_(x[0], 0.3), x[1] * 0.3),
}


@pytest.mark.parametrize("op", OPS)
def test_the_stream_is_float32(comparison, golden, op):
    """Of tensors that no bfloat16 holds: an op that rounds anything is 1e-3 off."""
    import ttnn
    from torch.nn import functional as F

    from golden_mesh.dispatch import slot_of

    x, w = noise(1, 2, ROWS, 64), noise(64, 64, seed=1)
    result, expected = OPS[op](ttnn, F, (golden.put(x), x), (golden.put(w), w))
    (stream, *_) = comparison.stream.read(slot_of(result))
    assert stream.dtype == torch.float32
    torch.testing.assert_close(stream.reshape(expected.shape), expected, rtol=1e-4, atol=2e-5)
    assert not comparison.without
