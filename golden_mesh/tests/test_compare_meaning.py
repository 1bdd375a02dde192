"""Faults of meaning in a toy layer: golden-mesh compare brackets each by the values of a torch module."""

import pytest
import torch
from torch import nn

import golden_mesh

ROWS, WIDTH, HEADS, KV_HEADS, DIM, INNER = 64, 256, 4, 2, 64, 512


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * DIM)
        self.k_proj = nn.Linear(WIDTH, KV_HEADS * DIM)
        self.v_proj = nn.Linear(WIDTH, KV_HEADS * DIM)
        self.o_proj = nn.Linear(HEADS * DIM, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = (
            part(x).unflatten(-1, (-1, DIM)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (y * cos + rotate_half(y) * sin for y in (q, k))
        k, v = (y.repeat_interleave(HEADS // KV_HEADS, 1) for y in (k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


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
    layer = Layer()
    with torch.no_grad():
        for norm in (layer.norm, layer.mlp_norm):
            norm.weight.uniform_(0.5, 1.5)
        for projection in (layer.attention.q_proj, layer.attention.k_proj, layer.attention.v_proj):
            projection.bias.normal_()
    return layer


@pytest.fixture(scope="module")
def inputs():
    torch.manual_seed(1)
    angles = torch.outer(torch.arange(ROWS), 1e4 ** -torch.linspace(0, 1, DIM // 2)).repeat(1, 2)
    return torch.randn(1, ROWS, WIDTH), angles.cos()[None, None], angles.sin()[None, None]


def shards(weight: torch.Tensor, chips: int, dim: int) -> list[torch.Tensor]:
    return [part[None, None] for part in weight.chunk(chips, dim)]


def run(golden, layer: Layer, inputs, fault: str) -> None:
    """The layer in ttnn, its heads and its MLP split over the chips."""
    import ttnn

    chips = golden.chips
    x, cos, sin = (golden.put(each.reshape(1, 1, -1, each.shape[-1])) for each in inputs)
    attention, mlp = layer.attention, layer.mlp
    norms = [layer.norm.weight, layer.mlp_norm.weight]
    if fault == "norm":
        norms.reverse()
    norm, mlp_norm = (golden.put(weight.detach().reshape(1, 1, 1, -1)) for weight in norms)

    parts = [attention.q_proj, attention.k_proj, attention.v_proj]
    weights, biases = (
        [part.weight.detach() for part in parts],
        [part.bias.detach() for part in parts],
    )
    if fault == "rotary":  # neighbors as pairs, for an op that has halves as pairs
        order = torch.arange(DIM).view(2, -1).T.flatten()
        for i in range(2):
            weights[i] = weights[i].unflatten(0, (-1, DIM))[:, order].flatten(0, 1)
            biases[i] = biases[i].unflatten(0, (-1, DIM))[:, order].flatten()
    columns = [torch.cat([w.chunk(chips)[chip] for w in weights]).T for chip in range(chips)]
    rows = [torch.cat([b.chunk(chips)[chip] for b in biases]) for chip in range(chips)]
    if fault == "bias":  # of keys and values, on the last chip
        rows[-1] = torch.where(torch.arange(len(rows[-1])) < len(rows[-1]) // 2, rows[-1], 0)
    qkv = golden.put([w[None, None] for w in columns])
    bias = golden.put([b.reshape(1, 1, 1, -1) for b in rows])
    out = attention.o_proj.weight.detach().T
    if fault == "transpose":
        out = out.T
    if fault == "order":
        out = torch.cat(out.chunk(2)[::-1])
    out = golden.put(shards(out, chips, 0))
    gate, up = (
        golden.put(shards(p.weight.detach().T, chips, 1)) for p in (mlp.gate_proj, mlp.up_proj)
    )
    down = golden.put(shards(mlp.down_proj.weight.detach().T, chips, 0))
    caches = [golden.put(torch.zeros(1, KV_HEADS // chips, ROWS, DIM)) for _ in range(2)]

    y = ttnn.rms_norm(x, weight=norm, epsilon=1e-5)
    y = ttnn.linear(y, qkv, bias=bias)
    heads = dict(num_heads=HEADS // chips, num_kv_heads=KV_HEADS // chips, transpose_k_heads=False)
    q, k, v = ttnn.experimental.nlp_create_qkv_heads(y, **heads)
    q = ttnn.experimental.rotary_embedding(q, cos, sin)
    k = ttnn.experimental.rotary_embedding(k, cos, sin)
    if fault == "cache":  # each key a row further on
        k = ttnn.roll(k, 1, 2)
    for cache, values in zip(caches, (k, v)):
        ttnn.fill_cache(cache, values, 0)
    k, v = caches
    y = ttnn.transformer.scaled_dot_product_attention(q, k, v, is_causal=True)
    y = ttnn.experimental.nlp_concat_heads(y)
    y = ttnn.linear(y, out)
    y = ttnn.all_reduce(y) if chips > 1 else y
    x = ttnn.add(x, y)
    y = ttnn.rms_norm(x, weight=mlp_norm, epsilon=1e-5)
    y = ttnn.multiply(ttnn.linear(y, gate, activation="silu"), ttnn.linear(y, up))
    y = ttnn.linear(y, down)
    y = ttnn.all_reduce(y) if chips > 1 else y
    ttnn.add(x, y)


# The fault, the first output of a module that is missing, the operation that is unequal from equal inputs.
FAULTS = {
    "norm": ("norm", "ttnn.rms_norm"),
    "bias": ("attention.k_proj", "ttnn.linear"),
    "rotary": ("attention.o_proj", "ttnn.experimental.rotary_embedding"),
    "cache": ("attention.o_proj", "ttnn.transformer.scaled_dot_product_attention"),
    "transpose": ("attention.o_proj", "ttnn.linear"),
    "order": ("attention.o_proj", "ttnn.linear"),
}


@pytest.fixture
def compared(golden, layer, inputs):
    """compared(fault): the comparison of a run."""
    from golden_mesh.compare import comparing

    def run_with(fault: str):
        with comparing() as comparison:
            with golden_mesh.reference(layer), torch.no_grad():
                layer(*inputs)
            run(golden, layer, inputs, fault)
        return comparison

    return run_with


def test_a_right_program_gives_every_output(compared):
    comparison = compared("")
    assert comparison.reference.bracket(comparison.rows) is None
    assert "every output" in comparison.bracket()[0]
    names = [row.equals for row in comparison.rows]
    for name in (
        "norm",
        "attention.q_proj",
        "attention.o_proj",
        "mlp.up_proj",
        "mlp",
        "the module",
    ):
        assert any(name in each for each in names), name


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_bracketed(compared, fault):
    comparison = compared(fault)
    missing, op = FAULTS[fault]
    found = comparison.reference.bracket(comparison.rows)
    assert found.missing.name == missing
    assert op in [row.op for row in found.suspects]
    assert len(found.suspects) <= 3
    assert found.last_equal.number < found.suspects[0].number


def test_numbers_are_recognized_in_any_order_and_no_others():
    from golden_mesh.torch_values import Fingerprint

    torch.manual_seed(2)
    x = torch.randn(64, 512)
    mine = Fingerprint(x)
    other = torch.nn.functional.pad(x[torch.randperm(64)].T, (0, 7)) * (
        1 + 1e-3 * torch.randn(512, 71)
    )
    assert Fingerprint(other).equals(mine)
    assert not any(Fingerprint(torch.randn(64, 512)).equals(mine) for _ in range(200))
    assert not Fingerprint(x[:60]).equals(mine)
    assert not Fingerprint(x + 0.1 * torch.randn(64, 512)).equals(mine)


def test_without_compare_a_reference_block_does_nothing(layer, inputs):
    with golden_mesh.reference(layer), torch.no_grad():
        assert layer(*inputs).shape == (1, ROWS, WIDTH)
