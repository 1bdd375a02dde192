"""Laws of kernel times, rows of measured operations beside them, and the fit of their constants."""

import re
from collections import defaultdict
from pathlib import Path

import pytest
from qwen25_7b_lab.prices.commands import MEASURED
from qwen25_7b_lab.prices.constants import fits, price
from qwen25_7b_lab.prices.fit import fit_kind, known
from qwen25_7b_lab.prices.judge import judge, table
from qwen25_7b_lab.prices.laws import Case
from qwen25_7b_lab.prices.published import STEPS
from qwen25_7b_lab.prices.rows import case_of, read

# Published microseconds that no fit has seen, and the most that a price may miss them by: a matmul whose row says
# nothing of its dest, a reduce-scatter of tt-metal issue 54687.
PUBLISHED = {
    "a float32 dest": (
        Case("dram_sharded", "wormhole", k=128, n=192, w="bfp8", phases=2, width=4, fp32=True), 111.2, 0.1),
    "a reduce-scatter of eight Blackhole chips, 3 MB": (
        Case("collective", "blackhole", "reduce_scatter", chips=8, ring=True, links=2, bytes=3 << 20, alone=True),
        60.5, 0.2),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_law_has_the_published_times(name):
    case, us, miss = PUBLISHED[name]
    assert price(case).us == pytest.approx(us, rel=miss)


def test_the_sum_of_the_prices_is_a_published_step():
    """No constant but the host's is fitted to them."""
    ratios = sorted(step.ratio for step in STEPS)
    assert 0.9 < ratios[len(ratios) // 2] < 1.05
    assert sum(0.8 <= ratio <= 1.25 for ratio in ratios) >= 0.8 * len(ratios)
    assert 0.68 < ratios[0] and ratios[-1] < 1.35


FULL = dict(
    source="a report", arch="wormhole", machine="N150", phase="decode", users_rows="32", op="matmul", M="32", K="4096",
    N="14336",
    in0_dtype="bf16", in1_dtype="bfp4", fidelity="LoFi", program="dram_sharded", in0_block_w="4", cores="12",
    mem_in0="l1_width", mem_in1="dram_width", device_us="139.5", traced="yes",
)  # fmt: skip
# What differs from FULL, and whether the row has a price.
FILES = {
    "a matmul": ({}, True),
    "no such dtype": (dict(in1_dtype="bfp2"), True),
    "ttnn's names": (dict(in0_dtype="bfloat16", in1_dtype="BFLOAT4_B", arch="wormhole_b0", op="ttnn.matmul"), True),
    "words for numbers": (dict(in0_block_w="four", cores="many"), True),
    "no size": (dict(K=""), False),
    "no architecture": (dict(arch=""), True),
    "another architecture": (dict(arch="grayskull"), False),
    "an unknown operation": (dict(op="FancyNewDeviceOperation"), False),
    "no operation": (dict(op=""), False),
    "a fused collective": (dict(op="AllGatherMinimalMatmulAsyncOp"), False),
    "left out": (dict(left_out="doubtful"), False),
    "a norm": (dict(op="LayerNormDeviceOperation", shape="32x4096"), True),
    "a norm without a shape": (dict(op="rms_norm"), False),
    "an odd shape": (dict(op="add", shape="1x1x? > 3"), True),
    "a gather of a step": (dict(op="all_gather_async", bytes="262144", chips="4", ring="1", links="2"), True),
    "a gather over three chips": (dict(op="all_gather", bytes="196608", chips="3"), False),
    "attention without heads": (dict(op="SDPA", shape="32x128"), False),
}


def written(file: Path, rows: list[dict]) -> Path:
    lines = (rows[0], *(row.values() for row in rows))
    file.write_text("\n".join(",".join(f'"{cell}"' for cell in line) for line in lines))
    return file


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("columns", ["all", "those that are used"])
def test_a_row_of_a_file_has_a_price_or_says_so(tmp_path, name, columns):
    """An absent column counts as empty."""
    changed, priced = FILES[name]
    row = FULL | changed
    row = row if columns == "all" else {column: value for column, value in row.items() if value}
    row.setdefault("op", "")
    file = written(tmp_path / "rows.csv", [row])
    (judged,) = judge(file)
    assert judged.us == 139.5 and bool(judged.price) == priced
    last = table(file).splitlines()[-1]
    assert last.startswith(f"priced {int(priced)} of 1, {'median' if priced else 'no error'}")


READ = {
    "the library's block": (dict(program="auto", in0_block_w=""), dict(width=2)),
    "a prompt": (
        dict(op="SDPA", phase="prefill", tokens="2048", heads="8", q_chunk="256"),
        dict(kind="sdpa_prefill", tiles=64, keys=2048, heads=8, q_chunk=256)),
    "a cache of a step": (
        dict(op="paged_update_cache", kv_heads="2", head_dim="256"), dict(users=32, kv_heads=2, head_dim=256)),
    "a collective of a profiler's report": (
        dict(op="AllGatherAsyncDeviceOperation", bytes="65536", chips="8", ring="1"),
        dict(name="all_gather", ring=True, alone=False)),
    "the reduce-scatter before PR 41522": (
        dict(op="reduce_scatter_async", bytes="1"), dict(name="reduce_scatter_async")),
    "a weight for each of 32 tile rows": (
        dict(M="1024", batch="32", program="1d"), dict(kind="rows_matmul", m=1, batch=32)),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_a_row_is_read_as(tmp_path, name):
    changed, expected = READ[name]
    case = case_of(read(written(tmp_path / "rows.csv", [FULL | changed]))[0])
    assert {field: getattr(case, field) for field in expected} == expected


def test_the_constants_are_those_of_the_measured_rows():
    rows = defaultdict(list)
    for row in known(MEASURED):
        rows[row.case.kind].append(row)
    for (kind, arch), fit in fits().items():
        assert fit.rows == sum(row.case.arch == arch for row in rows[kind])
        assert fit_kind(kind, rows[kind])[arch] == pytest.approx(fit.constants, rel=1e-3), (kind, arch)


def test_the_page_has_the_errors_of_the_fit():
    """Median and 90th percentile of unseen rows, Wormhole and Blackhole."""
    names = "dram_sharded rows_matmul wide_matmul sdpa_decode sdpa_prefill collective norm cache_update binary".split()
    table = (MEASURED.parents[1] / "prices.md").read_text().split("| kind | Wormhole | Blackhole |")[1].split("\n\n")[0]
    for kind, line in zip(names, table.splitlines()[2:], strict=True):
        errors = [fits()[kind, arch] for arch in ("wormhole", "blackhole")]
        written = [int(percent) / 100 for percent in re.findall(r"(\d+) %", line)]
        assert written == pytest.approx([e for fit in errors for e in (fit.median, fit.ninetieth)], abs=0.0051), kind


@pytest.mark.parametrize(
    "text, message", [("a,b\n1,2\n", "needs rows with the columns op and device_us"), ("", "needs rows")]
)
def test_a_file_of_no_rows_is_one_line(python, tmp_path, text, message):
    (tmp_path / "rows.csv").write_text(text)
    done = python("-m", "qwen25_7b_lab.perf", "rows", tmp_path / "rows.csv")
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_constants_are_fitted_again_by_a_command(python, tmp_path):
    """To a file of a few rows: those of one kind on one architecture."""
    rows = [FULL | dict(source=source, in0_block_w=width, device_us=us) for source, width, us in
            (("a", "1", "311"), ("a", "2", "183"), ("b", "4", "139.5"))]  # fmt: skip
    file, to = written(tmp_path / "rows.csv", rows), tmp_path / "constants.csv"
    done = python("-m", "qwen25_7b_lab.perf", "fit", "--to", to, file)
    assert "dram_sharded  wormhole     3       2" in done.stdout, done.stderr
    assert to.read_text().splitlines()[1].startswith("dram_sharded,wormhole,3,2,")
