"""Hugging Face's model in float32 as the reference, and random weights with the 7B's outliers."""

import math
from pathlib import Path
from typing import Iterator

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel

from ..config import DecoderConfig
from ..weights.checkpoint import Checkpoint

# config.json's names that DecoderConfig has, too
SAME_FIELDS = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "rms_norm_eps rope_theta max_position_embeddings tie_word_embeddings bos_token_id"
)
K_BIAS_PEAK = 171.0  # the largest K bias of Qwen2.5-7B's layer 0
K_NORM_PEAK = 12.0  # an outlier of a head norm's weight, as Qwen3 has some
# Random values of a larger tensor repeat. A prime number: no row of a matrix begins as another one does.
PERIOD = 4_194_301


def hf_config(config: DecoderConfig) -> PretrainedConfig:
    """transformers' config of the model. sdpa: eager attention in low precision is no reference."""
    return getattr(transformers, config.architecture.replace("ForCausalLM", "Config"))(
        **{name: getattr(config, name) for name in SAME_FIELDS.split()},
        rope_scaling=config.rope_scaling and dict(config.rope_scaling.fields),
        attention_bias=config.o_bias,
        sliding_window=None,
        eos_token_id=list(config.eos_token_ids) or None,
        attn_implementation="sdpa",
    )


def random_weights(config: DecoderConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """A state dict in bfloat16 with Hugging Face's names and the 7B's scales (`random_parts`)."""
    return {name: tensor for part in random_parts(config, seed) for name, tensor in part.items()}


def random_parts(config: DecoderConfig, seed: int = 0) -> Iterator[dict[str, torch.Tensor]]:
    """The tensors of `random_weights`: those outside of the layers, then layer by layer.

    Projections keep the variance of their inputs. Norm weights vary around 1. The K bias of layer 0 has outliers of 171
    in four slow rotary pairs of each head and values around 1 elsewhere. Other layers have no outliers. Norms of K's
    heads have three.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float) -> torch.Tensor:
        count = math.prod(shape)
        values = torch.randn(min(count, PERIOD), generator=generator).mul_(std).bfloat16()
        return values.repeat(-(-count // PERIOD))[:count].view(shape)

    hidden, heads, kv_heads = (config.hidden_size, config.num_attention_heads, config.num_key_value_heads)
    yield {
        "model.embed_tokens.weight": normal(config.vocab_size, hidden, std=1.0),
        "model.norm.weight": 1 + normal(hidden, std=0.1),
        "lm_head.weight": normal(config.vocab_size, hidden, std=hidden**-0.5),
    }
    for i in range(config.num_hidden_layers):
        layer = {
            "input_layernorm.weight": 1 + normal(hidden, std=0.1),
            "post_attention_layernorm.weight": 1 + normal(hidden, std=0.1),
            "self_attn.o_proj.weight": normal(hidden, heads * config.head_dim, std=(heads * config.head_dim) ** -0.5),
            "mlp.gate_proj.weight": normal(config.intermediate_size, hidden, std=hidden**-0.5),
            "mlp.up_proj.weight": normal(config.intermediate_size, hidden, std=hidden**-0.5),
            "mlp.down_proj.weight": normal(hidden, config.intermediate_size, std=config.intermediate_size**-0.5),
        }
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            rows = count * config.head_dim
            layer[f"self_attn.{name}_proj.weight"] = normal(rows, hidden, std=hidden**-0.5)
            if config.qkv_bias:
                layer[f"self_attn.{name}_proj.bias"] = normal(rows, std=1.0)
        if config.o_bias:
            layer["self_attn.o_proj.bias"] = normal(hidden, std=0.1)
        if config.head_norms:
            layer["self_attn.q_norm.weight"] = 1 + normal(config.head_dim, std=0.1)
            layer["self_attn.k_norm.weight"] = norm = 1 + normal(config.head_dim, std=0.1)
            outliers = torch.randperm(config.head_dim, generator=generator)[:3]
            norm[outliers] = K_NORM_PEAK
            layer["self_attn.q_norm.weight"][outliers] /= K_NORM_PEAK
        if i == 0 and config.qkv_bias:
            layer["self_attn.k_proj.bias"] = _peaked_bias(config, layer["self_attn.k_proj.bias"], generator)
        yield {f"model.layers.{i}.{name}": tensor for name, tensor in layer.items()}


def _peaked_bias(config: DecoderConfig, bias: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    heads = bias.clone().view(config.num_key_value_heads, 2, -1)  # [head, half, pair]
    slow = torch.arange(config.head_dim // 2 - 4, config.head_dim // 2)
    signs = torch.randint(0, 2, heads[..., slow].shape, generator=generator) * 2 - 1
    heads[..., slow] = (signs * K_BIAS_PEAK * torch.rand(signs.shape, generator=generator).clamp_min(0.3)).bfloat16()
    return heads.flatten()


def hf_checkpoint(directory: Path) -> PreTrainedModel:
    """Hugging Face's model of a checkpoint in float32, with sdpa: eager attention rounds more.

    Its config is this port's. transformers 4.57 does not read rope_parameters, and ties a head that differs.
    """
    config = Checkpoint.open(directory).config
    model = getattr(transformers, config.architecture)
    return model.from_pretrained(directory, config=hf_config(config), dtype=torch.float32, local_files_only=True).eval()
