"""golden-mesh record keeps each distinct operation once, and replay finds its values again."""

import json

import pytest
import torch
import ttnn

from golden_mesh import replay as replays
from golden_mesh.replay.kinds import fields_of, from_plain, to_plain

# Per chip, between chips, in place, a repeated call, and a mask whose padding counts.
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
"""
OPS = ["linear", "all_gather", "plus_one", "softmax", "scaled_dot_product_attention"]


@pytest.fixture
def record(launch, tmp_path):
    """The file of a recorded PROGRAM."""
    done = launch("record", "--system", "N300", "--to", "ops.pt", "-c", PROGRAM)
    assert "5 distinct operations in" in done.stdout and "not recorded" not in done.stdout, done
    return tmp_path / "ops.pt"


@pytest.fixture
def replay(launch, tmp_path):
    """replay(calls): the rows of a replay on the golden mesh."""

    def replay(calls: int):
        options = ("--json", "rows.json", "--calls", calls)
        done = launch("replay", "--system", "N300", "ops.pt", *options)
        assert done.returncode in (0, 1), done.stderr
        return [json.loads(line) for line in (tmp_path / "rows.json").read_text().splitlines()]

    return replay


def test_values_and_times_of_each_operation_are_found_again(record, replay):
    """Wrong values and refused calls are in their rows alone."""
    rows = replay(calls=1)
    assert [row["op"].split(".")[-1] for row in rows] == OPS
    for row in rows:
        assert not row["failed"] and row["modeled_us"] > 3, row
        assert row["us"] is None or row["us"] > 0, "a time inside the traces' spread is none"
        assert (row["error"], row["gain"], row["equal"]) == (0, pytest.approx(1), 1), row
    # The product and its activation are two device operations.
    names = [(row["device_op"] or "").split(" ")[0] for row in rows]
    assert names[:4] == ["", "AllGather", "PlusOne", "Softmax"]

    kept = torch.load(record, weights_only=True)
    returned = kept["ops"][0]["returned"][0]
    returned["values"] = [2 * values for values in returned["values"]]
    kept["ops"][2]["written"][0][3] += 1  # of eight positions that are all 1
    kept["ops"][3]["arguments"][1]["dim"] = 7
    torch.save(kept, record)
    linear, gather, plus_one, softmax, _ = replay(calls=0)
    assert (linear["error"], linear["gain"]) == (pytest.approx(0.5), pytest.approx(0.5))
    assert gather["error"] == 0 and gather["us"] is None
    assert plus_one["equal"] == pytest.approx(7 / 8)
    assert softmax["failed"].startswith("RuntimeError: ") and "\n" not in softmax["failed"]


@pytest.mark.parametrize("content", ("no record", {"mesh": (1, 2), "ring": False, "ops": [{"op": "ttnn.add"}]}))
def test_a_file_that_is_no_record_is_one_line(tmp_path, content):
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="other.pt is no file of golden-mesh record: .*") as error:
        replays.load(tmp_path / "other.pt")
    assert "\n" not in f"{error.value}"


def test_places_of_equal_values_are_equal(mesh_device):
    """A chip orders equal values otherwise than another one."""
    x, last = torch.ones(1, 1, 32, 64), torch.arange(63, 31, -1).expand(1, 1, 32, 32)
    how = dict(dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, memory_config=ttnn.DRAM_MEMORY_CONFIG)
    tensor = {name: to_plain(value, lambda _: None) for name, value in how.items()}
    tensor |= {"shape": [1, 1, 32, 64], "values": x}
    returned = [{"values": x[..., :32]}, {"values": last}]
    op = {"op": "ttnn.topk", "arguments": [("list", [("tensor", 0), 32]), {}], "tensors": [tensor]}
    op |= {"returned": returned, "written": {}, "modeled": None, "device_op": None}
    assert replays.Replay(mesh_device, op).value().error == 0
    returned[0]["values"] = x[..., :32] * 2
    assert replays.Replay(mesh_device, op).value().error == 0.5


CORES = ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(3, 0))
SET = ttnn.CoreRangeSet([CORES])
SHARD = ttnn.ShardSpec(SET, (32, 64), ttnn.ShardOrientation.ROW_MAJOR)
MEMORY = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.L1, SHARD)
MATMUL = ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig(
    in0_block_w=2, per_core_M=1, per_core_N=3, fused_activation=None
)
KERNEL = ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi3, packer_l1_acc=True)
ATTENTION = ttnn.SDPAProgramConfig(compute_with_storage_grid_size=(8, 8), q_chunk_size=32, k_chunk_size=64)


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 0.5, "silu", [1, (2.0, "x")], ttnn.CoreCoord(3, 2), CORES, SET, ttnn.Topology.Ring, MEMORY, MATMUL],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_every_kind_of_argument_comes_back(value):
    back = from_plain(to_plain(value, lambda _: None))
    assert type(back) is type(value) and (back == value or repr(back) == repr(value))


@pytest.mark.parametrize("config", [KERNEL, ATTENTION], ids=lambda value: type(value).__name__)
def test_every_field_of_a_config_comes_back(config):
    back = from_plain(to_plain(config, lambda _: None))
    assert repr(fields_of(back)) == repr(fields_of(config)) and fields_of(config)


def test_what_is_of_no_kind_is_refused():
    with pytest.raises(TypeError, match="no kind for builtins.object"):
        to_plain(object(), lambda _: None)
    with pytest.raises(ValueError, match="ttnn's classes only, got one of os.system"):
        from_plain(("enum", ["os.system", "x"]))
