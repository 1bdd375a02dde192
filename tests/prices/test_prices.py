"""Laws of kernel times, rows of measured operations beside them, and the fit of their constants."""

from dataclasses import replace
from pathlib import Path

import pytest
from qwen25_7b_lab.prices.constants import price
from qwen25_7b_lab.prices.laws import LAWS, Case
from qwen25_7b_lab.prices.published import STEPS, layer_cases
from qwen25_7b_lab.prices.rows import case_of, judge, read, table

# Published microseconds on Wormhole chips, and the most that a price may miss them by.
MATMUL = dict(kind="dram_sharded", arch="wormhole", k=128, n=448, w="bfp4", phases=1, width=4)
ATTENTION = dict(kind="sdpa_decode", arch="wormhole", users=32, heads=32, kv_heads=8, keys=31, cores=64)
PUBLISHED = {
    "blocks of 1": (Case(**MATMUL | dict(width=1)), 311.2, 0.1),
    "blocks of 2": (Case(**MATMUL | dict(width=2)), 183.4, 0.1),
    "blocks of 4": (Case(**MATMUL), 139.5, 0.1),
    "float32 dest": (Case(**MATMUL | dict(n=192, w="bfp8", phases=2, fp32=True)), 111.2, 0.1),
    "interleaved": (Case("rows_matmul", "wormhole", k=128, n=448, w="bfp4", width=32, cores=64), 189.2, 0.15),
    "a weight for each of 32 rows": (
        Case("rows_matmul", "wormhole", k=128, n=192, batch=32, w="bfp8", width=2, cores=64), 4250.0, 0.15),
    "norm": (Case("norm", "wormhole", tiles=128, cores=32, sharded=True), 11.1, 0.2),
    "two readers a bank": (
        Case("dram_sharded", "blackhole", k=64, n=160, w="bfp8", phases=1, width=8, readers=2), 27.8, 0.15),
    "attention, q on cores": (Case(**ATTENTION | dict(x_dram=False)), 31.1, 0.25),
    "attention, q in DRAM": (Case(**ATTENTION | dict(cores=32, traced=False)), 118.6, 0.25),
    "a cache of one user": (Case("cache_update", "wormhole", kv_heads=8, x="bfp8"), 13.5, 0.2),
    "a cache of 32 users": (Case("cache_update", "wormhole", users=32, kv_heads=8), 25.7, 0.2),
    "rotary of a prompt": (Case("rotary", "wormhole", tiles=1024, cores=64, prefill=True), 106.7, 0.2),
    "an LM head in a ring of cores": (Case("ring_matmul", "wormhole", k=64, n=501, w="bfp8"), 196.5, 0.2),
    "all-gather of a step": (
        Case("collective", "wormhole", "all_gather", chips=2, bytes=16777216, workers=4), 1012.0, 0.3),
    "all-gather of small tiles on a ring": (
        Case("collective", "wormhole", "all_gather", chips=8, ring=True, x="bfp4", bytes=5898240), 680.0, 0.1),
    "all-gather on a ring of four": (
        Case("collective", "blackhole", "all_gather", chips=4, ring=True, links=2, bytes=524288), 12.9, 0.3),
    "reduce-scatter of eight Blackhole chips, 1 MB (tt-metal issue 54687)": (
        Case("collective", "blackhole", "reduce_scatter", chips=8, ring=True, links=2, bytes=1 << 20, alone=True),
        26.0, 0.1),
    "and 3 MB": (
        Case("collective", "blackhole", "reduce_scatter", chips=8, ring=True, links=2, bytes=3 << 20, alone=True),
        60.5, 0.2),
    "the reduce-scatter of a port's step": (
        Case("collective", "wormhole", "reduce_scatter_async", chips=8, ring=True, bytes=229376), 66.6, 0.1),
    "blocks of the library's choice": (
        Case("rows_matmul", "wormhole", k=128, n=160, w="bfp8", width=2, cores=64), 113.0, 0.1),
    "one block of K on few cores": (
        Case("rows_matmul", "wormhole", k=320, n=20, w="bfp8", width=320, cores=10), 81.0, 0.25),
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


@pytest.mark.parametrize("step", STEPS, ids=lambda s: f"{s.dims.name}-{s.machine}-{s.users}")
def test_every_operation_of_a_published_step_has_a_price(step):
    cases = [case for case, _ in layer_cases(step.dims, step.chips, step.users, 100)]
    assert all(price(case).us > 0 for case in cases)
    assert sum(case.kind == "dram_sharded" for case in cases) == 4


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
    "said to be doubtful": (dict(comment="doubtful: four times slower"), False),
    "several operations": (dict(op="slice", shape="1x6", comment="start not on a tile: untilize, slice"), False),
    "a norm": (dict(op="LayerNormDeviceOperation", shape="32x4096"), True),
    "a norm without a shape": (dict(op="rms_norm"), False),
    "an odd shape": (dict(op="add", shape="1x1x? > 3"), True),
    "a gather of a step": (dict(op="all_gather_async", shape="32x1024>32x4096", comment="4 chips ring, 2 links"), True),
    "a gather over three chips": (dict(op="all_gather", shape="32x1024>32x3072", comment="3 chips"), False),
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


def test_a_row_without_heads_has_those_of_its_source(tmp_path):
    """32 heads of q and 4 of k: by the columns that the source's heads are made of and become."""
    beside = [dict(op="create_qkv_heads_decode", shape="32x5120"), dict(op="nlp_concat_heads_decode", shape="32x4096")]
    rows = [FULL | dict(shape="") | row for row in (dict(op="paged_update_cache"), *beside)]
    case = case_of(rows[0])
    for kept, kv_heads in ((rows[:1], 8), (rows, 4)):
        first = judge(written(tmp_path / "rows.csv", kept))[0]
        assert first.price == price(replace(case, kv_heads=kv_heads)).us


READ = {
    "the library's block": (dict(program="auto", in0_block_w=""), dict(width=2)),
    "shards of a comment": (dict(op="mul_silu", shape="32x14336", comment="48-core shards"), dict(cores=48)),
    "eight chips are a ring": (
        dict(op="all_gather_async", shape="5898240_bytes", machine="T3K", comment="line inferred"), dict(ring=True)),
    "but for a line": (
        dict(op="reduce_scatter_minimal_async", shape="32x256", comment="8 chips line"),
        dict(ring=False, name="reduce_scatter_async")),
    "columns that a port pads": (
        dict(op="topk", shape="32x16032", comment="shape inferred (vocabulary over 8)"), dict(n=512)),
    "the ring of today": (
        dict(op="reduce_scatter_minimal_async", shape="32x256", comment="8 chips new ring"),
        dict(ring=True, name="reduce_scatter")),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_a_row_is_read_as(tmp_path, name):
    changed, expected = READ[name]
    case = case_of(read(written(tmp_path / "rows.csv", [FULL | changed]))[0])
    assert {field: getattr(case, field) for field in expected} == expected


def test_a_report_that_prints_the_whole_grid_has_the_shards_of_its_source(tmp_path):
    """112 tiles before a DRAM-sharded matmul lie on 16 cores, and take seven times a tile's SiLU."""
    binary = FULL | dict(arch="blackhole", op="mul_silu", K="", shape="32x3584", cores="110", device_us="12.3")
    files = [binary], [binary, FULL | dict(K="3584")]
    alone, beside = (judge(written(tmp_path / "rows.csv", rows)) for rows in files)
    assert beside[0].price == pytest.approx(12.3, rel=0.2)
    assert alone[0].price < 0.5 * beside[0].price


def test_every_kind_of_row_has_a_law():
    cases = (
        case_of(FULL | dict(op=op, shape="32x4096")) for op in ("add", "topk", "Embeddings", "reshard", "slice", "SDPA")
    )
    assert all(case.kind in LAWS for case in cases)


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
