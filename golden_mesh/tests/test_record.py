"""golden-mesh record keeps each distinct operation once, and replay finds its values again."""

import json
import math
import os
import re
from pathlib import Path

import pytest
import torch
import ttnn

from golden_mesh import replay as replays
from golden_mesh.__main__ import EVERYWHERE
from golden_mesh.errors import GoldenMeshError
from golden_mesh.outputs import signed, write_whole
from golden_mesh.replay import cases, kinds
from golden_mesh.replay.kinds import class_path, fields_of, from_plain, to_plain
from golden_mesh.start.options import parse
from goldens.support import cores, kernel, sdpa_program, sharded

# Per chip, between chips, in place, a repeated call, a mask whose padding counts, and weights on the host.
PROGRAM = """
import torch, ttnn
ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2), l1_small_size=16 << 10)
torch.manual_seed(0)

def put(*shape, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, split=True):
    values = torch.randn(*shape) if dtype != ttnn.int32 else torch.zeros(*shape, dtype=torch.int32)
    mapper = ttnn.ShardTensorToMesh(mesh, dim=0) if split else ttnn.ReplicateTensorToMesh(mesh)
    return ttnn.from_torch(values, dtype=dtype, layout=layout, device=mesh, mesh_mapper=mapper)

x, w = put(2, 1, 32, 64), put(2, 1, 64, 32, dtype=ttnn.bfloat8_b)
config = ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi2, fp32_dest_acc_en=True)
for _ in range(3):
    y = ttnn.linear(x, w, activation="silu", compute_kernel_config=config, memory_config=ttnn.L1_MEMORY_CONFIG)
whole = ttnn.all_gather(y, dim=3, topology=ttnn.Topology.Linear)
position = put(8, dtype=ttnn.int32, layout=ttnn.ROW_MAJOR_LAYOUT, split=False)
ttnn.plus_one(position)
softmax = ttnn.softmax(whole, dim=-1)
q = put(2, 1, 50, 64)
mask = ttnn.from_torch(torch.zeros(1, 1, 50, 50), ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh, pad_value=-1e9)
ttnn.transformer.scaled_dot_product_attention(q, q, q, attn_mask=mask, is_causal=False)
image, kernel = put(2, 1, 64, 32, layout=ttnn.ROW_MAJOR_LAYOUT), ttnn.from_torch(torch.randn(32, 32, 1, 1))
ttnn.conv2d(input_tensor=image, weight_tensor=kernel, device=mesh, in_channels=32, out_channels=32, batch_size=1,
            input_height=8, input_width=8, kernel_size=(1, 1), stride=(1, 1), padding=(0, 0), dtype=ttnn.bfloat16,
            conv_config=ttnn.Conv2dConfig(activation=ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU)),
            return_output_dim=True)
"""
OPS = ["linear", "all_gather", "plus_one", "softmax", "scaled_dot_product_attention", "conv2d"]


def test_values_and_times_of_each_operation_are_found_again(launch, tmp_path):
    """Wrong values and refused calls are in their rows alone."""
    record = tmp_path / "ops.pt"
    done = launch("record", "--system", "N300", "--to", "ops.pt", "-c", PROGRAM)
    assert "6 distinct operations in" in done.stdout and "not recorded" not in done.stdout, done

    def replay(calls: int) -> list[dict]:
        """The rows of a replay on the golden mesh."""
        done = launch("replay", "--system", "N300", "ops.pt", "--json", "rows.jsonl", "--calls", calls)
        assert done.returncode in (0, 1), done.stderr
        return [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]

    rows = replay(calls=1)
    assert [row["op"].split(".")[-1] for row in rows] == OPS
    for row in rows:
        assert not row["failed"], row
        assert row["us"] is None or row["us"] > 0, "a time inside the traces' spread is none"
        assert (row["error"], row["gain"], row["equal"]) == (0, pytest.approx(1), 1), row
    kept = torch.load(record, weights_only=True)
    # The product and its activation are two device operations.
    nodes = ([node for node in each["graph"] if kinds.is_device_operation(node)] for each in kept["ops"])
    names = [[node["params"]["name"].split("Device")[0].removesuffix("Operation") for node in each] for each in nodes]
    assert names[:4] == [["Matmul", "Unary"], ["AllGather"], ["PlusOne"], ["Softmax"]]
    returned = kept["ops"][0]["returned"][0]
    returned["values"] = [2 * values for values in returned["values"]]
    kept["ops"][2]["written"][0][3] += 1  # of eight positions that are all 1
    kept["ops"][3]["arguments"][1]["dim"] = 7
    torch.save(kept, record)
    linear, gather, plus_one, softmax, *_ = replay(calls=0)
    assert (linear["error"], linear["gain"]) == (pytest.approx(0.5), pytest.approx(0.5))
    assert gather["error"] == 0 and gather["us"] is None
    assert plus_one["equal"] == pytest.approx(7 / 8)
    assert softmax["failed"].startswith("RuntimeError: ") and "\n" not in softmax["failed"]


def test_values_beside_a_record():
    """[here, recorded] -> error of what is finite on both sides, gain, share of equals, not finite on one side."""
    inf, nan = math.inf, math.nan
    for here, recorded, value in (
        ([1.0, 2.0], [1.0, 2.0], (0, 1, 1, 0)),
        ([2.0, inf], [1.0, inf], (1, 2, 0.5, 0)),
        ([1.0, inf, 3.0], [1.0, 2.0, -inf], (0, 1, 1 / 3, 2)),
        ([nan, 1.0], [5.0, 1.0], (0, 1, 0.5, 1)),
        ([7.0, 1.0], [nan, 1.0], (0, 1, 0.5, 1)),
        ([nan, 1.0], [nan, 1.0], (0, 1, 1, 0)),
        ([1.1, -1e9], [1.0, -1e9], (0.1, 1.1, 0.5, 0)),  # a mask beside a score
        ([1.0], [0.0], (inf, 1, 0, 0)),
    ):
        assert replays.compare([torch.tensor(here)], [torch.tensor(recorded)]) == pytest.approx(value), (here, recorded)


def test_one_command_runs_a_programs_operations_on_both(launch, tmp_path):
    """What ttnn opens is another golden mesh here, as the environment says. The record is none of a simulator's."""
    below = {"TT_METAL_SIMULATOR": "/nowhere/libttsim.so"} | {
        "GOLDEN_MESH": "N300",
        "PYTHONPATH": os.pathsep.join([EVERYWHERE, str(Path(EVERYWHERE).parents[1])]),
    }
    done = launch("record", "--system", "N300", "--replay", "rows.json", "-c", PROGRAM, **below)
    assert done.returncode == 0 and "0 of 6 operations differ" in done.stdout, done
    rows = [json.loads(line) for line in (tmp_path / "rows.json").read_text().splitlines()]
    assert [row["op"].split(".")[-1] for row in rows] == OPS and not any(map(replays.differs, rows))
    assert replays.differs(rows[0] | {"gain": 1.002}) and replays.differs(rows[0] | {"not_finite": 1})
    assert replays.differs(rows[0] | {"error": 6e-3}) and replays.differs({"failed": "RuntimeError", "error": None})


def test_a_case_holds_a_repeated_matrix_and_infinities():
    matrix = torch.randn(32, 32)
    assert cases.repeated_tile(matrix.repeat(1, 2, 3, 2)).equal(matrix)
    assert cases.repeated_tile(torch.randn(64, 32)) is None and cases.repeated_tile(torch.ones(32, 31)) is None
    line, *_ = cases.filled(["check(t, EXPECTED)"], {"t": 0, "samples": lambda _: [1.5, -math.inf]})
    assert line == "check(t, [1.5, float('-inf')])"


def test_operations_become_tests(launch, tmp_path):
    """Each passes on a golden mesh, and fails with another result. The program's exit status stays."""
    done = launch("cases", "--system", "N300", "--to", "test_ops.py", "-c", PROGRAM + "raise SystemExit(3)")
    assert done.returncode == 3 and f"6 operations in {tmp_path}/test_ops.py" in done.stdout, done
    text = (tmp_path / "test_ops.py").read_text()
    assert re.findall(r"def test_\d+_(.*)\(", text) == OPS and "ttnn.DataType.BFLOAT8_B" in text
    (tmp_path / "test_wrong.py").write_text(
        text.replace("activation='silu'", "activation='sigmoid'").replace("dim=-1", "dim=-2")
    )
    done = launch("--system", "N300", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_ops.py", "test_wrong.py")
    assert "2 failed, 10 passed" in done.stdout, done.stdout[-2000:]
    assert parse(["cases", "--to", f"{tmp_path}/test_ops.py", "-c", "0"]).to.name == "test_ops.py"
    with pytest.raises(GoldenMeshError, match="--to .*: the file exists"):
        parse(["cases", "--to", __file__, "-c", "0"])


def test_a_record_of_more_chips_than_the_machine_has_is_one_line(launch, tmp_path):
    torch.save({"mesh": (1, 2), "ring": False, "ops": []}, tmp_path / "ops.pt")
    done = launch("replay", "--system", "N150", "ops.pt")
    assert (done.returncode, done.stderr) == (2, "error: the record is of 1 x 2 chips, this machine has 1\n")


@pytest.mark.parametrize("content", ("no record", {"model.weight": torch.ones(3)}))
def test_a_file_that_is_no_record_is_one_line(tmp_path, content):
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="other.pt is no file of golden-mesh record: .*") as error:
        replays.load(tmp_path / "other.pt")
    assert "\n" not in f"{error.value}"


def plain_op(**changes):
    """An operation of a record, on one chip."""
    how = {name: to_plain(value) for name, value in HOW.items()}
    tensor = how | {"shape": [1, 1, 32, 64], "values": torch.ones(1, 1, 32, 64)}
    op = {"op": "ttnn.relu", "arguments": [("list", [("tensor", 0)]), {}], "tensors": [tensor]}
    return op | {"returned": [], "written": {}, "graph": []} | changes


CORES = ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(3, 0))
SET, MEMORY = cores(4), sharded("WIDTH", (32, 64), 4)
MATMUL = ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig(
    in0_block_w=2, per_core_M=1, per_core_N=3, fused_activation=None
)
KERNEL, ATTENTION = kernel("HiFi3", l1_acc=True), sdpa_program(32, 64)
HOW = dict(dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, memory_config=ttnn.DRAM_MEMORY_CONFIG)
RECORD = {"mesh": (1, 1), "ring": False, "ops": [], "skipped": {}}
NO_OPERATIONS = (
    "ttnn.os.system", "os.system", "ttnn.dump_tensor", "ttnn.load_tensor",
    "ttnn.as_tensor", "ttnn.generic_op", "ttnn.add.function", "ttnn.open_device", "eval",
)  # fmt: skip
NO_CLASSES = (
    "ttnn.os.system", "os.system", "ttnn.pathlib.Path", "ttnn.decorators.FastOperation",
    "ttnn._ttnn.counter_channel.InterProcessCounterChannel", "ttnn._ttnn.tensor.CoreCoord.__class__", "builtins.eval",
)  # fmt: skip
NO_VALUES = [(kind, [name, {"x": 1}]) for kind in ("config", "json", "enum") for name in NO_CLASSES] + [("thing", 1)]
PLACES = {
    "argument": lambda v: plain_op(arguments=[("list", [("tensor", 0), v]), {}]),
    "keyword": lambda v: plain_op(arguments=[("list", []), {"x": v}]),
    "in a tuple": lambda v: plain_op(arguments=[("list", []), {"x": ("tuple", [1, ("list", [v])])}]),
    "of a config": lambda v: plain_op(arguments=[("list", []), {"x": ("config", [class_path(KERNEL), {"y": v}])}]),
    "of cores": lambda v: plain_op(arguments=[("list", []), {"x": ("core set", [("cores", [v])])}]),
    **{key: lambda v, key=key: plain_op(tensors=[plain_op()["tensors"][0] | {key: v}]) for key in HOW},
}


def failure(device, op) -> str:
    """Why an operation of a record did not run."""
    (row,) = replays.replay(device, {"ops": [op]}, 0, lambda line: None)
    return row["failed"]


@pytest.mark.skipif(Path("/dev/tenstorrent").exists(), reason="a card is here")
def test_a_replay_without_a_device_is_one_line_that_names_the_option(launch, tmp_path):
    torch.save(RECORD, tmp_path / "ops.pt")
    done = launch("replay", tmp_path / "ops.pt")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "--system NAME replays" in done.stderr, done.stderr


@pytest.mark.parametrize("name", NO_OPERATIONS)
def test_a_record_runs_ttnns_operations_alone(mesh_device, name):
    refused = failure(mesh_device, plain_op(op=name, arguments=[("list", ["touch ran"]), {}]))
    assert refused.startswith("Refused: ") and name in refused


@pytest.mark.parametrize("place", PLACES)
def test_a_record_makes_values_of_ttnns_classes_alone(mesh_device, place):
    for value in NO_VALUES:
        named = value[1][0] if value[0] != "thing" else "thing"
        refused = failure(mesh_device, PLACES[place](value))
        assert refused.startswith("Refused: ") and named in refused, value


def test_a_name_of_another_machine_stays_in_its_row(mesh_device):
    unknown = PLACES["keyword"](("enum", [class_path(ttnn.bfloat16), "FLOAT9"]))
    assert "of_next_year" in failure(mesh_device, plain_op(op="ttnn.of_next_year"))
    assert "FLOAT9" in failure(mesh_device, unknown) and failure(mesh_device, plain_op()) is None


def test_files_are_replaced_by_their_own_kind_and_whole(tmp_path):
    record = tmp_path / "ops.pt"
    torch.save(RECORD | {"system": "N150"}, record)
    torch.save({"model.weight": torch.ones(3)}, tmp_path / "weights.pt")
    (tmp_path / "empty").touch()
    target = lambda command, path: parse([command, "--to", f"{path}", "-c", "0"]).to  # noqa: E731
    for path in (record, tmp_path / "new.pt", tmp_path / "empty"):
        assert target("record", path) == path
    for path in (tmp_path / "weights.pt", Path(__file__)):
        with pytest.raises(GoldenMeshError, match=f"--to .*{path.name}: the file exists"):
            target("record", path)
    tests, text = tmp_path / "test_ops.py", b'"""The distinct operations of x.'
    tests.write_bytes(signed(text))
    assert target("cases", tests) == tests and signed(tests.read_bytes()) == tests.read_bytes()
    for edited in (tests.read_bytes() + b"# mine\n", b"# mine\n" + tests.read_bytes(), text):
        tests.write_bytes(edited)
        with pytest.raises(GoldenMeshError, match="--to .*test_ops.py: the file exists"):
            target("cases", tests)
    before = record.read_bytes()
    with pytest.raises(GoldenMeshError, match="ops.pt cannot be written: No space left on device"):
        write_whole(record, lambda part: Path("/dev/full").write_text("x"))
    with pytest.raises(KeyError):
        write_whole(record, lambda part: part.write_text("half") and {}["the disk is full"])
    assert record.read_bytes() == before and not list(tmp_path.glob(".*"))
    write_whole(record, lambda part: part.write_text("whole"))
    assert record.read_text() == "whole" and record.stat().st_mode == (tmp_path / "empty").stat().st_mode


def test_places_of_equal_values_are_equal(mesh_device):
    """A chip orders equal values otherwise than another one."""
    x, last = torch.ones(1, 1, 32, 64), torch.arange(63, 31, -1).expand(1, 1, 32, 32)
    returned = [{"values": x[..., :32]}, {"values": last}]
    op = plain_op(op="ttnn.topk", arguments=[("list", [("tensor", 0), 32]), {}], returned=returned)
    assert replays.Replay(mesh_device, op).value().error == 0
    returned[0]["values"] = x[..., :32] * 2
    assert replays.Replay(mesh_device, op).value().error == 0.5


LEAKY_RELU = ttnn.UnaryWithParam(ttnn.UnaryOpType.LEAKY_RELU, 0.1)


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 0.5, "silu", [1, (2.0, "x")], ttnn.CoreCoord(3, 2), CORES, SET, ttnn.Topology.Ring, MEMORY, MATMUL]
    + [LEAKY_RELU, ttnn.Shape([2, 32])],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_argument_comes_back(value):
    back = from_plain(to_plain(value))
    assert type(back) is type(value) and (back == value or repr(back) == repr(value))


@pytest.mark.parametrize("config", [KERNEL, ATTENTION], ids=lambda value: type(value).__name__)
def test_every_field_of_a_config_comes_back(config):
    back = from_plain(to_plain(config))
    assert repr(fields_of(back)) == repr(fields_of(config)) and fields_of(config)


def test_what_is_of_no_kind_is_refused():
    with pytest.raises(TypeError, match="no kind for builtins.object"):
        to_plain(object())
