"""What a decode step launches, counted from ttnn's own graph capture: device operations, not Python calls."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
import ttnn

from models.common.mesh import traces_available
from models.demos.qwen25_7b.config import BF16, BFP8, PERFORMANCE, QWEN25_7B, ParallelPlan
from models.demos.qwen25_7b.config.sampling import Sampling
from models.demos.qwen25_7b.perf.commands.matmuls import decode_plans
from models.demos.qwen25_7b.plans.blocks import attention_table, equal_shares
from models.demos.qwen25_7b.plans.decode_matmul import TILE_BYTES
from models.demos.qwen25_7b.plans.gate_up_plan import GateUpPlan
from models.demos.qwen25_7b.plans.lm_head_plan import column_pieces
from models.demos.qwen25_7b.plans.step_bytes import step_bytes
from models.demos.qwen25_7b.reference.hf import random_weights
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.replica import Replica
from models.demos.qwen25_7b.tt.placement import replicate
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from models.demos.qwen25_7b.weights import Checkpoint

USERS = 32


def device_operations(function) -> list[str]:
    """Names of the device operations that function() launches, in order."""
    function()  # compile, so that what is captured is a step like any other
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
    function()
    nodes = ttnn.graph.end_graph_capture()
    names = [node["params"]["name"] for node in nodes if node["node_type"] == "function_start"]
    return [name.removesuffix("DeviceOperation") for name in names if name.endswith("DeviceOperation")]


@pytest.fixture(scope="module")
def replica(mesh_device, size, queues) -> Replica:
    if size == "tiny":
        source = Checkpoint.open(SMALL_CHECKPOINT)
        config = source.config
    else:
        config = replace(QWEN25_7B, num_hidden_layers=1, vocab_size=4096, bos_token_id=None, eos_token_ids=())
        source = random_weights(config)
    return Replica.load(mesh_device, source, config, BFP8, users=USERS, max_seq_len=128, traced=False, queues=queues)


@pytest.fixture(scope="module")
def model(replica) -> TtTransformer:
    return replica.model


@pytest.fixture(scope="module")
def layer_operations(replica) -> list[str]:
    model = replica.model
    rotation = model.rotary.rotation_decode(replica.inputs.rotary_positions)
    hidden = torch.randn(1, 1, 32, model.config.hidden_size)

    def step():
        x = replicate(hidden, model.mesh_device, memory_config=model.decode.residual_memory)
        model.layers[0].forward_decode(x, rotation, replica.inputs, replica.caches[0])

    return device_operations(step)


def test_a_decode_layer_is_18_operations_and_16_on_one_chip(model, layer_operations):
    """56 cores cannot hold q and k of 32 users apart, so there the two fused ops are four. Gate and up may be one."""
    fused = 0 if model.decode.fused_qk else 2
    joined = GateUpPlan.make(model.config, model.plan, BFP8).joined
    assert len(layer_operations) == (16 if model.plan.tp == 1 else 18) + fused - joined, layer_operations


def test_around_the_layers_are_few_operations(replica, layer_operations):
    """Two look-ups of rotary factors, embedding, norm; product and move of each piece of logits; the choice; counting up
    positions twice. Drawing takes 14 more, which steps of greedy rows do without."""
    model, tables = replica.model, [attention_table(own, replica.width) for own in equal_shares(replica.blocks, USERS)]
    pieces = model.lm_head.pieces
    filled = sum(filler is not None for filler in model.sampler.fillers)
    held = model.sampler.last is not None
    merged = 2 * (len(pieces) * model.plan.tp > 1)
    choice = filled + len(pieces) + 2 * (len(pieces) > 1) + 2 + 2 * (model.plan.tp > 1) + merged + held + 3

    def around(sampling: Sampling) -> int:
        replica.place_sampling([sampling] * USERS)
        replica.place([0] * USERS, [0] * USERS, torch.stack(tables))
        launched = device_operations(lambda: (replica.launch(), replica.read()))
        replica.place_sampling([])
        return len(launched) - len(model.layers) * len(layer_operations)

    assert around(Sampling()) == 4 + 2 * len(pieces) + choice + 2
    assert around(Sampling(1.0)) == 4 + 2 * len(pieces) + choice + 14 + 2


@pytest.mark.parametrize("tp, pieces", [(1, 5), (2, 3), (4, 2), (8, 1)])
def test_pieces_of_the_7bs_vocabulary(tp, pieces):
    assert len(column_pieces(ParallelPlan.make(QWEN25_7B, tp).vocab, BFP8.lm_head.format)) == pieces


def test_a_decode_layer_converts_one_layout(layer_operations):
    """Grouped-query SDPA refuses a sharded output; that one conversion is forced, and no other is there."""
    count = Counter(layer_operations)
    conversions = (
        "InterleavedToSharded",
        "ShardedToInterleaved",
        "Reshard",
        "Tilize",
        "Untilize",
        "Transpose",
        "Typecast",
    )
    assert {name: count[name] for name in conversions if count[name]} == {"InterleavedToSharded": 1}


def test_a_decode_layer_sums_over_the_chips_twice_in_one_operation_each(model, layer_operations):
    collectives = [name for name in layer_operations if "Reduce" in name or "Gather" in name]
    assert collectives == ["AllReduceAsync"] * (0 if model.plan.tp == 1 else 2)


def test_the_all_reduces_of_a_layer_send_the_bytes_that_are_planned(model):
    """Each chip writes its [32, hidden] bfloat16 summand into every other chip's buffer, which is just that large."""
    if model.plan.tp == 1:
        planned = 0
    else:
        planned = 0
        for module in (model.layers[0].attention, model.layers[0].mlp):
            buffer = module.all_reduce.buffer
            whole = buffer.shape[2] * buffer.shape[3] * buffer.element_size()
            planned += whole - whole // model.plan.tp
    assert planned == step_bytes(model.config, model.plan, BFP8, USERS, 0).sent


@pytest.mark.skipif(not traces_available(), reason="slow dispatch has no traces")
def test_a_traced_step_is_one_call_and_128_bytes(replica, queues):
    """Between two steps whose users stay, the host sends nothing, starts no operation, and reads a token id a row."""
    replica = Replica(replica.model, replica.caches, traced=True, queues=queues)
    tables = [attention_table(share, replica.width) for share in equal_shares(replica.blocks, USERS)]
    replica.place([0] * USERS, list(range(USERS)), torch.stack(tables))
    replica.launch()  # compiles and captures
    replica.read()
    sent, read = [], []
    write, fetch = replica.queues.write, replica.queues.read
    replica.queues.write = lambda pairs: (sent.extend(pairs), write(pairs))
    replica.queues.read = lambda tensor: (read.append(tensor), fetch(tensor))[1]
    assert device_operations(lambda: (replica.launch(), replica.read())) == []
    replica.close()
    assert not sent and len(read) == 2, "one read a step, of two steps"
    assert {tensor.volume() * tensor.element_size() for tensor in read} == {128}
    assert {len(tensor.device_coords()) for tensor in read} == {1}, "every chip holds the same: one is read"


@pytest.mark.parametrize("recipe", [BFP8, BF16, PERFORMANCE], ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("tp, most", [(1, 0.04), (2, 0.04), (4, 0.08), (8, 0.08)])
def test_a_step_reads_little_more_than_the_model_has(tp, most, recipe):
    """What fills up heads, columns and banks, of all that is streamed; most of it in attention and down, whose share is larger
    where gate and up have 4 bits."""
    step = step_bytes(QWEN25_7B, ParallelPlan.make(QWEN25_7B, tp), recipe, USERS, 0)
    config = QWEN25_7B
    attention, mlp_in, mlp_out, lm_head = (
        TILE_BYTES[group.format] / 1024 for group in (recipe.attention, recipe.mlp_in, recipe.mlp_out, recipe.lm_head)
    )
    heads = 36 * 128 + 28 * 128 + (2 * 4 * 128 if tp == 8 else 0)  # of eight chips two have each KV head
    layer = heads * attention + config.intermediate_size * (2 * mlp_in + mlp_out)
    model = config.hidden_size * (config.num_hidden_layers * layer + config.vocab_size * lm_head) / tp
    assert step.weights - step.padding == pytest.approx(model)
    assert step.padding <= most * (step.weights - step.padding) * (1.3 if recipe == PERFORMANCE else 1)


def test_the_table_of_matmuls_is_what_the_modules_do(model):
    planned = {
        name: plan for name, (plan, _) in decode_plans(model.config, model.plan, BFP8, model.decode.grid).items()
    }
    layer = model.layers[0]
    product = layer.mlp.gate_up
    linears = {
        "QKV": layer.attention.qkv,
        "O": layer.attention.o,
        "down": layer.mlp.down,
        "LM head": model.lm_head.pieces[-1],
    }
    linears |= {"gate + up": product.both} if "gate + up" in planned else {"gate": product.gate, "up": product.up}
    assert {name: linear.decode_plan for name, linear in linears.items()} == planned
