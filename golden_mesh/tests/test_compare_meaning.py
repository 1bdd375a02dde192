"""Faults of meaning in a toy layer: golden-mesh compare brackets each by the values of a torch module."""

import pytest
import torch
import ttnn
from torch import nn

import golden_mesh
from golden_mesh.compare.comparison import comparing
from golden_mesh.compare.fingerprints import Fingerprint
from goldens.support import sharded

ROWS, WIDTH, HEADS, KV_HEADS, DIM, INNER = 96, 512, 16, 8, 32, 512


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * DIM)
        self.k_proj = nn.Linear(WIDTH, KV_HEADS * DIM)
        self.v_proj = nn.Linear(WIDTH, KV_HEADS * DIM)
        self.o_proj = nn.Linear(HEADS * DIM, WIDTH, bias=False)

    @property
    def parts(self):
        return self.q_proj, self.k_proj, self.v_proj

    def forward(self, x, cos, sin):
        q, k, v = (part(x).unflatten(-1, (-1, DIM)).transpose(1, 2) for part in self.parts)
        q, k = (y * cos + rotate_half(y) * sin for y in (q, k))
        k, v = (y.repeat_interleave(HEADS // KV_HEADS, 1) for y in (k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp_norm = nn.RMSNorm(WIDTH, 1e-5), nn.RMSNorm(WIDTH, 1e-5)
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


def rotate_half(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


@pytest.fixture(scope="module")
def layer():
    torch.manual_seed(0)
    layer = Layer().requires_grad_(False)
    for norm in (layer.norm, layer.mlp_norm):
        norm.weight.uniform_(0.5, 1.5)
    for projection in layer.attention.parts:
        projection.bias.normal_()
    return layer


@pytest.fixture(scope="module")
def inputs():
    torch.manual_seed(1)
    angles = torch.outer(torch.arange(ROWS), 1e4 ** -torch.linspace(0, 1, DIM // 2)).repeat(1, 2)
    return torch.randn(1, ROWS, WIDTH), angles.cos()[None, None], angles.sin()[None, None]


def run(golden, layer: Layer, inputs, fault: str, chunks=(ROWS,)) -> None:
    """The layer in ttnn, its heads and its MLP split over the chips, and the prompt into chunks of these rows."""
    chips, attention, mlp = golden.chips, layer.attention, layer.mlp

    def put(weight, dim=None):
        """A weight [out, in] as ttnn has it, [1, 1, in, out], split along dim; or a vector on all chips."""
        if dim is None:
            return golden.put(weight.reshape(1, 1, 1, -1))
        return golden.put([part[None, None] for part in weight.T.chunk(chips, dim)])

    def all_reduce(y):
        for _ in range({"forgotten": 0, "twice": 2}.get(fault, 1) if chips > 1 else 0):
            y = ttnn.all_reduce(y)
        return y

    norms = [layer.norm.weight, layer.mlp_norm.weight]
    norm, mlp_norm = map(put, norms[::-1] if fault == "norm" else norms)
    weights, biases = zip(*[(part.weight, part.bias) for part in attention.parts])
    if fault == "rotary":  # neighbors as pairs, for an op that has halves as pairs
        order = torch.arange(DIM).view(2, -1).T.flatten()
        pair = lambda w: w.unflatten(0, (-1, DIM))[:, order].flatten(0, 1)  # noqa: E731
        weights, biases = ([*map(pair, each[:2]), each[2]] for each in (weights, biases))
    columns = [torch.cat([w.chunk(chips)[chip] for w in weights]).T for chip in range(chips)]
    rows = [torch.cat([b.chunk(chips)[chip] for b in biases]) for chip in range(chips)]
    if fault == "bias":  # of keys and values, on the last chip
        rows[-1] = torch.where(torch.arange(len(rows[-1])) < len(rows[-1]) // 2, rows[-1], 0)
    qkv = golden.put([w[None, None] for w in columns])
    bias = golden.put([b.reshape(1, 1, 1, -1) for b in rows])
    out = attention.o_proj.weight
    if fault == "transpose":
        out = out.T
    if fault == "scaled attention":
        out = out * 1.05
    down = mlp.down_proj.weight * (1.05 if fault == "scaled mlp" else 1)
    if fault == "order":
        out = torch.cat(out.chunk(2, 1)[::-1], 1)
    if fault == "shard":  # of the chip before
        out = torch.cat(out.chunk(chips, 1)[-1:] + out.chunk(chips, 1)[:-1], 1)
    others = [golden.put(torch.randn(1, KV_HEADS // chips, ROWS, DIM)) for _ in range(2)]
    caches = [golden.put(torch.zeros(1, KV_HEADS // chips, ROWS, DIM)) for _ in range(2)]

    past = []
    for chunk in zip(*(each.split(list(chunks), -2) for each in inputs)):
        x, cos, sin = (golden.put(each.reshape(1, 1, -1, each.shape[-1])) for each in chunk)
        y = ttnn.rms_norm(x, weight=norm, epsilon=1e-5)
        y = ttnn.linear(y, qkv, bias=bias)
        heads = dict(num_heads=HEADS // chips, num_kv_heads=KV_HEADS // chips, transpose_k_heads=False)
        q, k, v = ttnn.experimental.nlp_create_qkv_heads(y, **heads)
        q, k = (ttnn.experimental.rotary_embedding(each, cos, sin) for each in (q, k))
        if fault == "cache":  # each key a row further on
            k = ttnn.roll(k, 1, 2)
        if len(chunks) > 1:
            past.append((k, v))
            caches = [ttnn.concat(each, dim=2) if len(past) > 1 else each[0] for each in zip(*past)]
        for cache, values in zip(caches, (k, v) if len(chunks) == 1 else ()):
            ttnn.fill_cache(cache, values, 0)
        if fault == "layer":
            caches = others
        hidden = torch.ones(q.shape[2], caches[0].shape[2]).triu(caches[0].shape[2] - q.shape[2] + 1)
        mask = dict(is_causal=False, attn_mask=golden.put(hidden[None, None] * -1e9)) if past else {}
        y = ttnn.transformer.scaled_dot_product_attention(q, *caches, **mask)
        y = ttnn.experimental.nlp_concat_heads(y)
        x = ttnn.add(x, all_reduce(ttnn.linear(y, put(out, 0))))
        y = ttnn.rms_norm(x, weight=mlp_norm, epsilon=1e-5)
        gate = ttnn.linear(y, put(mlp.gate_proj.weight, 1), activation="silu")
        y = ttnn.multiply(gate, ttnn.linear(y, put(mlp.up_proj.weight, 1)))
        ttnn.add(x, all_reduce(ttnn.linear(y, put(down, 0))))


@pytest.fixture
def compared(golden, layer, inputs):
    """compared(fault): the comparison of a run, and of what comes after it. size: of the residual stream beside its
    branches.
    """

    def run_with(fault: str, size: float = 1, chunks=(ROWS,), after=lambda: None):
        x, *rest = inputs
        with comparing() as comparison:
            with golden_mesh.reference(layer):
                layer(size * x, *rest)
            run(golden, layer, (size * x, *rest), fault, chunks)
            after()
        return comparison

    return run_with


@pytest.mark.parametrize("how", ({}, {"size": 100}, {"chunks": (64, 32)}, {"chunks": (32, 64)}), ids=str)
def test_a_right_program_gives_every_output(compared, how):
    comparison = compared("", **how)
    assert comparison.reference.bracket(comparison.rows) is None
    assert "every output" in comparison.bracket()[0]
    names = " ".join(row.equals for row in comparison.rows)
    for name in "norm attention.q_proj attention.o_proj mlp.up_proj mlp".split():
        assert name in names
    assert "the module" in names
    assert ("the module rows 64 to 95" in names) == (how.get("chunks") == (64, 32))


def test_operations_after_the_last_value_are_said_to_be_unjudged(compared, golden):
    _, line = compared("", after=lambda: ttnn.exp(ttnn.neg(golden.full(1)))).bracket()
    assert "not judged: 2 operations, the first" in line and line.endswith("ttnn.neg")


# The fault, the first output of a module that is missing, the operation that is unequal from equal inputs.
FAULTS = {
    "norm": ("norm", "ttnn.rms_norm"),
    "bias": ("attention.k_proj", "ttnn.linear"),
    "rotary": ("attention.o_proj", "ttnn.experimental.rotary_embedding"),
    "cache": ("attention.o_proj", "ttnn.transformer.scaled_dot_product_attention"),
    "transpose": ("attention.o_proj", "ttnn.linear"),
    "order": ("attention.o_proj", "ttnn.linear"),
    "layer": ("attention.o_proj", "ttnn.transformer.scaled_dot_product_attention"),
    "scaled attention": ("attention.o_proj", "ttnn.linear"),
    "scaled mlp": ("mlp.down_proj", "ttnn.linear"),
}
ON_SEVERAL_CHIPS = {  # also the operation that is unequal first
    "forgotten": ("mlp_norm", "ttnn.add"),
    "twice": ("mlp_norm", "ttnn.all_reduce"),
    "shard": ("attention.o_proj", "ttnn.linear"),
}


# Where the residual stream is large a sum hides its branch; a chunk's rows are rows of the reference's values.
SIZES = [(fault, {"size": 100}) for fault in "transpose order cache shard".split()]
SIZES += [(fault, {"size": size}) for fault in ("scaled attention", "scaled mlp") for size in (10, 1000)]
CHUNKS = [(fault, {"chunks": (32, 64)}) for fault in "norm bias rotary transpose order shard".split()]
CHUNKS += [("scaled mlp", {"size": 10, "chunks": (64, 32)})]


@pytest.mark.parametrize("fault, how", [(fault, {}) for fault in FAULTS | ON_SEVERAL_CHIPS] + SIZES + CHUNKS, ids=str)
def test_a_fault_is_bracketed(compared, golden, fault, how):
    if fault in ON_SEVERAL_CHIPS and golden.chips == 1:
        pytest.skip("the program has no such place on one chip")
    comparison = compared(fault, **how)
    missing, op = (FAULTS | ON_SEVERAL_CHIPS)[fault]
    found = comparison.reference.bracket(comparison.rows)
    assert found.missing.name == missing
    assert op in [row.op for row in found.suspects]
    assert len(found.suspects) <= 3
    assert found.last_equal.number < found.suspects[0].number


def test_another_checkpoint_is_named(golden, layer, inputs):
    """No operation gives a value of the reference: the report says so, and names the first one that should."""
    other = Layer().requires_grad_(False)
    with comparing() as comparison:
        with golden_mesh.reference(layer):
            layer(torch.randn(1, ROWS, WIDTH), *inputs[1:])
        run(golden, other, inputs, "")
    line, *more = comparison.bracket()
    assert "no operation gives a value of it: the inputs or the weights may differ" in line
    assert any("ttnn.rms_norm" in each for each in more)


USERS, PAST = 8, 63


class Step(nn.Module):
    """Attention of one token a user to a past, and the residual stream."""

    def __init__(self, layer: Layer, past):
        super().__init__()
        self.norm, self.attention, self.past = layer.norm, layer.attention, list(past)

    def forward(self, x):
        parts, y = self.attention.parts, self.norm(x)
        q, k, v = (part(y).unflatten(-1, (-1, DIM)).transpose(1, 2) for part in parts)
        k, v = (torch.cat(each, 2).repeat_interleave(2, 1) for each in zip(self.past, (k, v)))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.attention.o_proj(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("wrong, size", ((0, 1), (0, 100), (1, 1), (1, 10), (1, 100), (USERS, 1)))
def test_a_step_after_a_prompt_outside_of_the_reference(golden, layer, wrong, size):
    """What ran before the reference's first value counts as right, and the fault has the first place. Keys are scaled.

    wrong: users whose row of the cache is one off. size: of the residual stream beside attention.
    """
    torch.manual_seed(3)
    x, past = size * torch.randn(USERS, 1, WIDTH), torch.randn(3, USERS, KV_HEADS, PAST, DIM)
    step, put = Step(layer, past[:2]), golden.put
    with comparing() as comparison:
        with golden_mesh.reference(step):
            step(x)
        past = past * torch.tensor([2, 1, 1])[:, None, None, None, None]
        prompt = put(nn.functional.pad(-past.flatten(0, 1), (0, 0, 0, 1)))
        *caches, other = ttnn.split(ttnn.neg(prompt), USERS, dim=0)
        caches = [ttnn.neg(ttnn.neg(cache)) for cache in caches]
        ttnn.neg(other)
        x = put(x[None, :, 0][None])
        y = ttnn.rms_norm(x, weight=put(layer.norm.weight.reshape(1, 1, 1, -1)), epsilon=1e-5)
        q, k, v = (
            ttnn.linear(y, put(part.weight.T[None, None]), bias=put(part.bias[None, None, None]))
            for part in layer.attention.parts
        )
        q, k, v = (ttnn.reshape(each, (1, USERS, -1, DIM)) for each in (q, k, v))
        places = [sharded("HEIGHT", (32, DIM), USERS, start) for start in (0, USERS)]
        k, v = map(ttnn.to_memory_config, (ttnn.multiply(k, 2.0), v), places)
        at = golden.put_ints([PAST - 1] * wrong + [PAST] * (USERS - wrong))
        ttnn.experimental.paged_fused_update_cache(caches[0], k, caches[1], v, update_idxs_tensor=at)
        y = ttnn.transformer.scaled_dot_product_attention_decode(
            q, *caches, cur_pos=[PAST] * USERS, scale=DIM**-0.5 / 2
        )
        y = ttnn.reshape(y, (1, 1, USERS, -1))
        ttnn.add(x, ttnn.linear(y, put(layer.attention.o_proj.weight.T[None, None])))
    found = comparison.reference.bracket(comparison.rows)
    if not wrong:
        assert found is None
    else:
        update = "ttnn.experimental.paged_fused_update_cache"
        assert update in [row.op for row in found.suspects]
        assert found.last_equal.op == "ttnn.to_memory_config"


def test_numbers_are_recognized_in_any_order_and_no_others():
    torch.manual_seed(2)
    x = torch.randn(64, 512)
    mine, rounding = Fingerprint(x), 1 + 1e-3 * torch.randn(512, 71)
    other = nn.functional.pad(x[torch.randperm(64)].T, (0, 7)) * rounding
    assert Fingerprint(other).distance(mine) <= 1
    for wrong in (x[:60], x + 0.1 * torch.randn(64, 512), *torch.randn(200, 64, 512)):
        assert Fingerprint(wrong).distance(mine) > 1


def test_without_compare_a_reference_block_does_nothing(layer, inputs):
    with golden_mesh.reference(layer):
        assert layer(*inputs).shape == (1, ROWS, WIDTH)
