"""Device operations of a decode step, of one token or several, counted from ttnn's graph capture."""

from collections import Counter
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
import torch
import ttnn
from qwen25_7b_lab.perf.capture import capture_step, constant_shard, one_layer_of_each_kind
from qwen25_7b_lab.perf.plan_tables import collectives
from qwen25_7b_lab.prices.op_costs import work_of

from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.config.sampling import SamplingParams
from models.demos.qwen25_7b.engine.replica import Replica
from models.demos.qwen25_7b.engine.sampling import SamplingMode
from models.demos.qwen25_7b.plans.blocks import attention_table, equal_shares
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.tt.mesh import traces_available
from models.demos.qwen25_7b.tt.placement import memory_config, replicate
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint
from tests.families import cut

pytestmark = pytest.mark.usefixtures("without_values")

CENTERING = 2  # operations of centered keys in a layer

USERS = 32


def device_operations(function) -> list[str]:
    """Return the names of the device operations that function() launches, in order."""
    function()  # compile first: the captured run then is a usual step
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
    function()
    nodes = ttnn.graph.end_graph_capture()
    names = [node["params"]["name"] for node in nodes if node["node_type"] == "function_start"]
    return [name.removesuffix("DeviceOperation") for name in names if name.endswith("DeviceOperation")]


@pytest.fixture(scope="module")
def replica(replica_of, mesh_device, size, queues) -> Replica:
    """The small checkpoint's; or of one layer of the 7B, with zeros for weights, as packing others takes seconds."""
    if size == "tiny":
        return replica_of(USERS, 128, BFP8, traced=False)
    how = dict(users=USERS, max_seq_len=128, traced=False, queues=queues)
    build = partial(constant_shard, mesh_device=mesh_device, centered=frozenset({0}))
    with patch("models.demos.qwen25_7b.engine.replica.packed_weights", return_value=build):
        return Replica.load(mesh_device, {}, cut("7B", layers=1), BFP8, **how)


@pytest.fixture(scope="module")
def model(replica) -> TtTransformer:
    return replica.model


@pytest.fixture(scope="module")
def layer_operations(replica) -> list[str]:
    model = replica.model
    rotation = model.rotary.rotation_decode(replica.inputs.decode.rotary_positions)
    hidden = torch.randn(1, 1, 32, model.model_config.dims.hidden_size)

    def step():
        x = replicate(hidden, model.mesh_device, memory_config=memory_config(model.model_config.decode.residual_memory))
        model.layers[0].forward_decode(x, rotation, replica.inputs.decode, replica.caches[0])

    return device_operations(step)


def test_a_decode_layer_is_16_operations_and_two_all_reduces(model, layer_operations):
    """56 cores are too few for separate q and k of 32 users. Two fused ops become four there.

    Joined gate and up save one op. An all-reduce is one op or two. Layer 0 has outlier keys, which take two.
    """
    fused = 0 if model.model_config.decode.fused_qk else 2
    joined = model.model_config.layer(0).joined
    sums = 2 * len(collectives(model.model_config.decode.all_reduce))
    assert len(layer_operations) == 16 + CENTERING + sums + fused - joined, layer_operations


def tables_of(replica) -> torch.Tensor:
    own = equal_shares(replica.blocks, USERS)
    return torch.stack([attention_table(share, replica.width) for share in own])


def test_few_operations_surround_the_layers(replica, layer_operations):
    """Count the operations outside the layers.

    - Two look-ups of rotary factors, the embedding and the norm: 4.
    - Matmul and move of each logits shard: 2 a shard.
    - Sampling. Random sampling takes 14 more than greedy sampling.
    - Increments of the positions: 3, with the rows of centered keys.
    """
    model, tables = replica.model, tables_of(replica)
    shards, tp = len(model.lm_head.shards), model.model_config.parallel.tp
    filled = sum(padding is not None for padding in model.sampler.paddings)
    held = model.sampler.last is not None
    joins = 2 * (shards > 1) + 2 * (tp > 1) + 2 * (shards * tp > 1)  # of shards, chips, candidates
    choice = filled + shards + joins + held + 5

    def around(sampling: SamplingParams) -> int:
        replica.inputs.write_sampling_params([sampling] * USERS)
        replica.inputs.write_slots([0] * USERS, [0] * USERS, tables)
        launched = device_operations(
            lambda: (replica.launch_decode(SamplingMode.of([sampling])), replica.read_tokens())
        )
        replica.inputs.write_sampling_params([])
        uncentered = sum(layer.attention.centered_keys is None for layer in model.layers)
        in_layers = len(model.layers) * len(layer_operations) - uncentered * CENTERING
        return len(launched) - in_layers

    assert around(SamplingParams()) == 4 + 2 * shards + choice + 3
    assert around(SamplingParams(1.0)) == 4 + 2 * shards + choice + 14 + 3


def test_a_decode_layer_converts_one_layout(layer_operations):
    """Grouped-query SDPA refuses a sharded output. This conversion is the only one."""
    count = Counter(layer_operations)
    conversions = "InterleavedToSharded ShardedToInterleaved Reshard Tilize Untilize Transpose"
    conversions = (*conversions.split(), "Typecast")
    assert {name: count[name] for name in conversions if count[name]} == {"InterleavedToSharded": 1}


def test_a_decode_layer_has_the_planned_all_reduces(model, layer_operations):
    collectives = [name for name in layer_operations if "Reduce" in name or "Gather" in name]
    launched = {
        "none": [],
        "all_reduce_async": ["AllReduceAsync"],
        "reduce_scatter + all_gather": ["ReduceScatter", "AllGather"],
    }
    assert collectives == 2 * launched[model.model_config.decode.all_reduce.method]


def test_the_buffers_of_the_all_reduces_hold_the_partial_sums_of_all_chips(model):
    planned = model.model_config.decode.all_reduce
    layer = model.layers[0]
    sums = [module.all_reduce.decode_sum for module in (layer.attention, layer.mlp)]
    buffers = [each.buffer for each in sums if hasattr(each, "buffer")]
    assert len(buffers) == (2 if planned.method == "all_reduce_async" else 0)
    assert {buffer.volume() for buffer in buffers} <= {planned.chips * 32 * planned.hidden}
    assert len({buffer.buffer_address() for buffer in buffers}) == len(buffers)


@pytest.mark.skipif(not traces_available(), reason="slow dispatch has no traces")
def test_a_traced_step_is_one_call_and_128_bytes(replica, queues):
    """Between two steps with unchanged users, the host sends nothing and starts no operation.

    It reads one token id a slot.
    """
    replica = Replica(replica.model, replica.caches, traced=True, queues=queues)
    replica.inputs.write_slots([0] * USERS, list(range(USERS)), tables_of(replica))
    replica.launch_decode()  # compiles and captures
    replica.read_tokens()
    replica.queues.transfers.clear()
    assert device_operations(lambda: (replica.launch_decode(), replica.read_tokens())) == []
    replica.close()
    assert replica.queues.transfers == {"reads": 2, "bytes read": 2 * 128}, "of two steps"


def test_each_further_token_is_one_more_cache_update_in_every_layer(mesh_device):
    config = replace(Checkpoint.open(SMALL_CHECKPOINT).config, num_hidden_layers=1)
    plain, verifying = (capture_step(mesh_device, config, BFP8, 2, tokens) for tokens in (1, 3))
    updates = [sum("UpdateCache" in op.name for op in step.layer) for step in (plain, verifying)]
    assert updates[1] == 3 * updates[0] and len(verifying.layer) - len(plain.layer) == updates[1] - updates[0]
    assert len(verifying.after) == len(plain.after) - 3, "the chips' own positions do not advance"
    attention = next(op for op in verifying.layer if "Sdpa" in op.name)
    here = dict(chips=1, grid_cores=64, users=2, position=100)
    one, three = (work_of(attention, **here, tokens=tokens).scattered for tokens in (1, 3))
    assert three == 3 * one > 0


@pytest.mark.chips(4, 8)
def test_a_grouped_step_reads_each_cache_once(mesh_device):
    """On chips with one KV head of the small checkpoint's four. It gathers the queries of the slots, which is one
    operation more.
    """
    config = replace(Checkpoint.open(SMALL_CHECKPOINT).config, num_hidden_layers=1)
    lent, grouped = (capture_step(mesh_device, config, BFP8, 2, tokens).layer for tokens in (3, 4))
    updates = [sum("UpdateCache" in op.name for op in layer) for layer in (lent, grouped)]
    assert len(grouped) - updates[1] == len(lent) - updates[0] + 1
    here = dict(chips=1, grid_cores=64, users=2, position=100)
    attention = next(op for op in grouped if "Sdpa" in op.name)
    plain = next(op for op in capture_step(mesh_device, config, BFP8, 2).layer if "Sdpa" in op.name)
    reads = [work_of(op, **here, tokens=t).scattered for op, t in ((plain, 1), (attention, 4))]
    queries = attention.inputs[0].bytes  # in DRAM, as the grouped op takes them
    assert 0 < reads[0] == reads[1] - queries
    long = replace(config, max_position_embeddings=32768)
    for context, groups in ((16384, 1), (32768, 2)):  # beyond that, scores of 8 tokens exceed L1
        with one_layer_of_each_kind(mesh_device, long, BFP8, 1, context, 8) as replica:
            assert replica.groups == groups
