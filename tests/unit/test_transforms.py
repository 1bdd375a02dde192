"""The chips' weights give the results of Hugging Face's attention, at every tp.

tests/pcc has the other modules. A chip is simulated in float64 by the formulas of the tt modules: one QKV product with
bias, rotary embedding on adjacent pairs, and grouped-query attention over the chip's heads. Partial sums are added over
chips. Hugging Face's module in float64 is the reference.
"""

import pytest
import torch
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

from models.demos.qwen25_7b.config import BF16, DecoderConfig
from models.demos.qwen25_7b.plans.chip import WORMHOLE
from models.demos.qwen25_7b.plans.model_table import ModelTable, Weight
from models.demos.qwen25_7b.plans.parallel_plan import ParallelPlan
from models.demos.qwen25_7b.plans.rotary_pairs import centered_pairs, key_divisors, to_interleaved

TPS = (1, 2, 4, 8)
TOKENS = 19
POSITIONS = torch.linspace(0, 32767, TOKENS).long()
SHAPES = {
    # A head of 8 has 32 columns on a chip.
    "small": dict(hidden_size=96, head_dim=8, intermediate_size=1184, vocab_size=1000),
    # The 7B's heads at their full size, with a narrow residual stream.
    "7b_heads": dict(hidden_size=256, head_dim=128, intermediate_size=2368, vocab_size=2048),
}


@pytest.fixture(scope="module", params=SHAPES)
def hf_model(request):
    """Two layers in float64. K has the 7B's outliers (about 171), the input massive channels."""
    torch.manual_seed(0)
    hf_config = Qwen2Config(
        **SHAPES[request.param],
        num_hidden_layers=2,
        num_attention_heads=28,
        num_key_value_heads=4,
        rope_theta=1e6,
        initializer_range=0.1,
        attn_implementation="sdpa",  # eager attention takes its softmax in float32
    )
    model = Qwen2ForCausalLM(hf_config).double().eval()
    with torch.no_grad():
        for layer in model.model.layers:
            attention = layer.self_attn
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
                projection.bias.normal_()
            k_bias = attention.k_proj.bias
            outliers = torch.randperm(k_bias.numel())[:8]
            k_bias[outliers] = torch.linspace(-171, 171, 8, dtype=torch.float64)
            k_bias.view(4, 2, -1)[..., -1] = 150  # each head's slowest pair
            layer.input_layernorm.weight.normal_(1, 0.1)
            layer.post_attention_layernorm.weight.normal_(1, 0.1)
        yield model


@pytest.fixture(scope="module")
def x(hf_model):
    """[TOKENS, hidden]"""
    x = torch.randn(TOKENS, hf_model.config.hidden_size, dtype=torch.float64)
    x[:, 5] += 50
    return x


def table_of(hf_model, tp: int) -> ModelTable:
    config = DecoderConfig.from_dict(hf_model.config.to_dict())
    return ModelTable(config, ParallelPlan.make(config, tp), BF16, WORMHOLE)


def parts(state: dict[str, torch.Tensor], weight: Weight) -> list[torch.Tensor]:
    """Return each chip's slice of a weight."""
    return [part.read(state.__getitem__) for part in weight.slices]


def assert_same(got, want):
    """Assert equality within 1e-12 of the largest value. float64 sums differ in order."""
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12 * want.abs().max().item())


def rotate_pairs(x, cos, sin):
    """Rotate each pair (2j, 2j + 1) of x [heads, tokens, head_dim].

    cos and sin are [tokens, head_dim / 2].
    """
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)


def in_width(x: torch.Tensor, config, pairs: bool = False) -> torch.Tensor:
    """x [..., head_dim] or its pairs -> with zeros up to the columns of a head on a chip."""
    return torch.nn.functional.pad(x, (0, (config.head_width - config.head_dim) // (1 + pairs)))


def chip_attention(table, x, cos, sin, qkv, bias, centered, o):
    """Return one chip's partial sum [tokens, hidden] and keys [kv_heads, tokens, head_dim].

    centered: the bias that joins keys after the rotation, less a constant.
    """
    config, plan = table.dims, table.parallel
    heads = (x @ qkv + bias).unflatten(1, (-1, config.head_width)).transpose(0, 1)
    q, k, v = heads.split([plan.q_heads, plan.kv_heads, plan.kv_heads])
    q, k = rotate_pairs(q, cos, sin), rotate_pairs(k, cos, sin)
    centered = centered.view(-1, 1, config.head_width)
    k = k + rotate_pairs(centered.expand_as(k), cos, sin) - centered
    how = dict(is_causal=True, scale=config.head_dim**-0.5, enable_gqa=True)
    outputs = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], **how)[0]
    return outputs.transpose(0, 1).flatten(1) @ o, k


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("tp", TPS)
def test_attention_summed_over_chips_is_hugging_faces(hf_model, x, tp, layer):
    """Zero heads, copied KV heads, rotary order and K's outliers change no output.

    This holds at any position. Keys change only by a constant, and by the divisors of outlier pairs.
    """
    table, state = table_of(hf_model, tp), hf_model.state_dict()
    config = table.dims
    cos, sin = hf_model.model.rotary_emb(x, POSITIONS[None])  # [1, TOKENS, head_dim]: halves alike
    cache = DynamicCache()
    want, _ = hf_model.model.layers[layer].self_attn(x[None], (cos, sin), None, past_key_values=cache)
    want_keys = cache.layers[layer].keys[0]  # [kv heads of the model, TOKENS, head_dim]

    ours = table.layer(layer)
    k_bias = hf_model.model.layers[layer].self_attn.k_proj.bias.view(-1, config.head_dim)
    rope = config.centering_rope(layer)
    divisors = torch.stack([key_divisors(head, rope) for head in k_bias])
    assert (divisors > 4).any(), "no pair is an outlier: this would prove nothing"
    constant = k_bias * torch.stack([centered_pairs(head, rope) for head in k_bias])
    # pairs of a head of 8 channels are too fast
    assert constant.any() == (config.head_dim == 128), "no pair is centered"
    tensors = ours.qkv.weight, ours.qkv.bias, ours.centered_bias, ours.o.weight
    cos, sin = (in_width(table[0, :, : config.head_dim // 2], config, pairs=True) for table in (cos, sin))
    total = torch.zeros_like(x)
    for chip, slices in enumerate(zip(*(parts(state, w) for w in tensors), strict=True)):
        out, keys = chip_attention(table, x, cos, sin, *slices)
        total += out
        heads = list(table.parallel.kv_head_of[chip])
        expected = (want_keys[heads] - constant[heads, None]) / divisors[heads, None]
        assert_same(keys, in_width(to_interleaved(expected), config))
    assert_same(total, want[0])


def test_weights_keep_the_checkpoints_dtype(hf_model):
    """A silent float32 copy would double the memory of a load."""
    state = {name: t.bfloat16() for name, t in hf_model.state_dict().items()}
    table = table_of(hf_model, 8)
    layer = table.layer(0)
    held = [row.weight for row in (*layer.linears, *table.lm_head)] + [layer.qkv.bias, layer.centered_bias]
    assert {part.dtype for weight in held for part in parts(state, weight)} == {torch.bfloat16}
