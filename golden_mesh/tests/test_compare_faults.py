"""golden-mesh compare beside what hides a fault: masks, tables, rows of a constructor; and full memory."""

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import ttnn
from torch import nn

import golden_mesh
from test_compare import noise

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
ROWS, WIDTH = 64, 256


@pytest.fixture
def mlp(comparison, golden):
    """An input, up's weight and bias, and down's weight, on the chips. The reference has the values of this MLP."""
    torch.manual_seed(0)
    up, down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
    x, module = torch.randn(1, ROWS, WIDTH), nn.Sequential(OrderedDict(up=up, silu=nn.SiLU(), down=down))
    with golden_mesh.reference(module), torch.no_grad():
        module(x)
    weights = up.weight.T[None, None], up.bias.reshape(1, 1, 1, -1), down.weight.T[None, None]
    return [golden.put(each.detach()) for each in (x[None], *weights)]


def run_mlp(golden, x, up, bias, down, fault: bool) -> None:
    """The MLP with a table that is looked up and not used, and a result with columns of a mask."""
    table = golden.put(noise(128, WIDTH, seed=5), layout=ttnn.ROW_MAJOR_LAYOUT)
    rows = golden.put(torch.arange(32)[None], dtype=ttnn.uint32, layout=ttnn.ROW_MAJOR_LAYOUT)
    ttnn.embedding(rows, table, layout=ttnn.TILE_LAYOUT)
    h = ttnn.silu(ttnn.linear(x, up, bias=bias))
    y = ttnn.linear(h, ttnn.transpose(down, -2, -1) if fault else down)
    ttnn.concat([y, golden.full(-1e30, 1, 1, ROWS, 32)], dim=-1)


@pytest.mark.parametrize("fault", (False, True))
def test_tables_and_masks_hide_nothing(comparison, golden, mlp, fault):
    run_mlp(golden, *mlp, fault)
    found = comparison.reference.bracket(comparison.rows)
    if not fault:
        assert found is None
        assert comparison.rows[-1].equals == "down"
        return
    assert found.missing.name == "down"
    assert found.last_equal.op == "ttnn.silu"
    assert found.suspects[0].op in ("ttnn.linear", "ttnn.transpose")
    assert "run_mlp" not in comparison.bracket()[0]
    assert all("ttnn.embedding" not in line for line in comparison.bracket())
    (line,) = [each for each in comparison.bracket() if "last equal" in each]
    assert line.count("test_compare_faults.py:") == 2  # the operation's line, and its caller


@pytest.mark.parametrize("stale", (False, True))
def test_a_trace_that_reads_a_stale_input_is_named_though_the_warm_up_was_right(comparison, golden, mlp, stale):
    right, up, bias, down = mlp
    other = golden.put(noise(ROWS, WIDTH, seed=5)[None, None])
    run = lambda x: ttnn.linear(ttnn.silu(ttnn.linear(x, up, bias=bias)), down)  # noqa: E731
    run(right)
    run(other)
    trace, _ = golden.capture(lambda: run(other if stale else right))
    ttnn.execute_trace(golden.device, trace, cq_id=0, blocking=True)
    ttnn.release_trace(golden.device, trace)
    assert ("an earlier run gives values" in comparison.bracket()[0]) == stale
    assert ("every output of its modules is given" in comparison.bracket()[0]) != stale


def test_an_error_of_full_memory_lists_the_live_buffers(golden):
    x = golden.put(torch.ones(1, 1, 1024, 8192), memory_config=ttnn.L1_MEMORY_CONFIG)
    mine = [each for each in golden_mesh.live_buffers() if each.memory == "L1"]
    assert mine[0].shape == (1, 1, 1024, 8192) and f"{Path(__file__).name}:" in mine[0].line
    kept = []
    with pytest.raises(RuntimeError, match="(?s)Out of Memory.*live buffers in L1") as error:
        for _ in range(16):
            kept.append(ttnn.add(x, x, memory_config=ttnn.L1_MEMORY_CONFIG))
    rows = [line for line in str(error.value).splitlines() if " ttnn.add " in line]
    assert len(rows) == len(kept)
    assert all(f"{mine[0].bytes:,} " in row and f" {mine[0].cores} " in row for row in rows)
    kept.clear()
    assert sum(each.bytes for each in golden_mesh.live_buffers()) > 0
    ttnn.deallocate(x)
    assert mine[0] not in golden_mesh.live_buffers()


def test_a_clash_lists_the_circular_buffers(golden):
    x, kept = golden.put(torch.ones(1, 1, 2048, 2048)), []
    for tiles in (4096, 512, 64):  # until L1 is full
        for _ in range(64):
            values = torch.ones(1, 1, 32, 32 * tiles)
            try:
                kept.append(golden.put(values, memory_config=ttnn.L1_MEMORY_CONFIG))
            except RuntimeError:
                break
    golden.device.clear_program_cache()  # a program of the cache reports no circular buffers again
    with pytest.raises(RuntimeError, match="clash") as error:
        ttnn.add(x, x)
    for tensor in kept:  # L1 is full
        ttnn.deallocate(tensor)
    listed = [line for line in str(error.value).splitlines() if line.startswith("circular buffers")]
    assert listed and "bytes =" in listed[0]


@pytest.mark.parametrize("page", ["README.md", "docs/compare.md"])
def test_a_page_shows_what_the_example_prints(launch, page):
    # -O: a process of its own, whose lines have no caller among the tests
    done = launch("compare", "--system", "N150", "broken_mlp.py", options=["-O"], cwd=EXAMPLES)
    block = (
        (EXAMPLES.parent / page)
        .read_text()
        .split("$ golden-mesh compare --system N150 broken_mlp.py\n")[1]
        .split("```")[0]
    )
    first, _, last = block.partition("...\n")
    assert done.stdout.startswith(first) and done.stdout.endswith(last), f"{page}: show this\n{done.stdout}"
