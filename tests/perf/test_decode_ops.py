"""Device operations of a decode step, of one token or several, counted from ttnn's graph capture."""

from dataclasses import replace

import pytest
import ttnn
from qwen25_7b_lab.perf.capture import CONTEXT, capture_step, one_layer_of_each_kind
from qwen25_7b_lab.prices.op_costs import work_of

from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.config.sampling import SamplingParams
from models.demos.qwen25_7b.engine.replica import Replica
from models.demos.qwen25_7b.plans.blocks import attention_tables, equal_shares
from models.demos.qwen25_7b.tt.linear import TtAllReduce
from models.demos.qwen25_7b.tt.mesh import traces_available
from models.demos.qwen25_7b.tt.model_config import TtModelConfig
from models.demos.qwen25_7b.tt.sampler import topk_columns
from tests.perf.conftest import USERS

pytestmark = pytest.mark.usefixtures("without_values")


@pytest.fixture(scope="module")
def planned(mesh_device, config) -> TtModelConfig:
    return TtModelConfig.make(mesh_device, config, BFP8, min_slots=USERS, max_seq_len=CONTEXT)


def test_a_decode_layer_is_16_operations_and_two_all_reduces(planned, step):
    """56 cores are too few for separate q and k of 32 users. Two fused ops become four there.

    Joined gate and up save one op. Grouped-query SDPA refuses a sharded output, so one conversion follows it.
    """
    names, all_reduce = [op.name for op in step.layer], planned.decode.all_reduce
    fused = 0 if planned.decode.fused_qk else 2
    sums = {"all_reduce_async": ["AllReduceAsync"], "reduce_scatter + all_gather": ["ReduceScatter", "AllGather"]}
    collectives = 2 * sums.get(all_reduce.method, [])
    assert len(names) == 16 + len(collectives) + fused - planned.layer(0).joined, names
    assert [name for name in names if "Reduce" in name or "Gather" in name] == collectives
    conversions = "InterleavedToSharded ShardedToInterleaved Reshard Tilize Untilize Transpose Typecast".split()
    assert [name for name in names if name in conversions] == ["InterleavedToSharded"]


def test_few_operations_surround_the_layers(mesh_device, planned, config, step):
    """Count the operations outside the layers.

    - Two look-ups of rotary factors, the embedding and the norm: 4.
    - Matmul and move of each logits shard: 2 a shard.
    - Sampling. Random sampling takes 14 more than greedy sampling.
    - Increments of the positions: 3, with the rows of centered keys.
    """
    shards, parallel = len(planned.logits_shards), planned.parallel
    filled = sum(columns != topk_columns(columns) for _, columns in planned.logits_shards)
    end = max(first + topk_columns(columns) for first, columns in planned.logits_shards)
    held = (parallel.tp - 1) * parallel.vocab + end > config.vocab_size
    joins = 2 * (shards > 1) + 2 * (parallel.tp > 1) + 2 * (shards * parallel.tp > 1)  # of shards, chips, candidates
    around = 4 + 2 * shards + filled + shards + joins + held + 5 + 3
    assert len(step.before + step.after) == around
    random = capture_step(mesh_device, config, BFP8, USERS, sampling=SamplingParams(1.0))
    assert len(random.before + random.after) == around + 14


def test_the_buffers_of_the_all_reduces_hold_the_partial_sums_of_all_chips(mesh_device, planned):
    plan = planned.decode.all_reduce
    sums = [TtAllReduce(mesh_device, planned).decode_sum for _ in range(2)]
    buffers = [each.buffer for each in sums if hasattr(each, "buffer")]
    assert len(buffers) == (2 if plan.method == "all_reduce_async" else 0)
    assert {buffer.volume() for buffer in buffers} <= {plan.chips * 32 * plan.hidden}
    assert len({buffer.buffer_address() for buffer in buffers}) == len(buffers)


@pytest.mark.skipif(not traces_available(), reason="slow dispatch has no traces")
def test_a_traced_step_is_one_call_and_128_bytes(mesh_device, config, queues):
    """Between two steps with unchanged users, the host sends nothing and starts no operation.

    It reads one token id a slot.
    """
    with one_layer_of_each_kind(mesh_device, config, BFP8, USERS, CONTEXT) as untraced:
        replica = Replica(untraced.model, untraced.caches, traced=True, queues=queues)
        tables = attention_tables(equal_shares(replica.blocks, USERS), replica.width)
        replica.inputs.write_slots([0] * USERS, list(range(USERS)), tables)
        replica.launch_decode()  # compiles and captures
        replica.read_tokens()
        replica.queues.transfers.clear()
        ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
        replica.launch_decode()
        replica.read_tokens()
        nodes = ttnn.graph.end_graph_capture()
        replica.close()
    started = [node["params"]["name"] for node in nodes if node["node_type"] == "function_start"]
    assert not [name for name in started if name.endswith("DeviceOperation")]
    assert replica.queues.transfers == {"reads": 1, "bytes read": 128}


def test_each_further_token_is_one_more_cache_update_in_every_layer(mesh_device, checkpoint):
    config = replace(checkpoint.config, num_hidden_layers=1)
    plain, verifying = (capture_step(mesh_device, config, BFP8, 2, tokens) for tokens in (1, 3))
    updates = [sum("UpdateCache" in op.name for op in step.layer) for step in (plain, verifying)]
    assert updates[1] == 3 * updates[0] and len(verifying.layer) - len(plain.layer) == updates[1] - updates[0]
    assert len(verifying.after) == len(plain.after) - 3, "the chips' own positions do not advance"
    attention = next(op for op in verifying.layer if "Sdpa" in op.name)
    here = dict(chips=1, grid_cores=64, users=2, position=100)
    one, three = (work_of(attention, **here, tokens=tokens).scattered for tokens in (1, 3))
    assert three == 3 * one > 0


@pytest.mark.chips(4, 8)
def test_a_grouped_step_reads_each_cache_once(mesh_device, checkpoint):
    """On chips with one KV head of the small checkpoint's four. It gathers the queries of the slots, which is one
    operation more.
    """
    config = replace(checkpoint.config, num_hidden_layers=1)
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
