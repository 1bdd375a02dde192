"""Configs of published sizes, cut; tables; small random checkpoints of the other families, with the small one's
tokenizer.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from qwen25_7b_lab.perf import published_models
from transformers import PreTrainedModel

from models.demos.qwen25_7b.config import BFP8, DecoderConfig, Recipe
from models.demos.qwen25_7b.config.rope import rope_scaling_of
from models.demos.qwen25_7b.plans.chip import WORMHOLE, Chip
from models.demos.qwen25_7b.plans.model_table import ModelTable
from models.demos.qwen25_7b.plans.parallel_plan import ParallelPlan
from models.demos.qwen25_7b.reference.hf import hf_config, random_weights
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 = rope_scaling_of({"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 64}})
# of the card of Qwen2.5-7B-Instruct
YARN = rope_scaling_of({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}})
# A logit of bfloat16 weights and activations is this far from float32's, in standard deviations of the logits.
NEAR_TIE = 0.05
# What differs from the small checkpoint.
FAMILIES = {
    "qwen2": {},
    "qwen3": dict(architecture="Qwen3ForCausalLM", qkv_bias=False, head_norms=True, head_dim=64),
    "llama": dict(architecture="LlamaForCausalLM", qkv_bias=False, rope_scaling=LLAMA3, num_attention_heads=16),
    # Heads of 24 in 32 columns; with biases their keys are equalized and centered, too.
    "padded heads": dict(head_dim=24),
    # with attention_bias
    "llama-bias": dict(architecture="LlamaForCausalLM", o_bias=True, num_attention_heads=16),
}


def hf_model(config: DecoderConfig, weights: dict[str, torch.Tensor]) -> PreTrainedModel:
    """The family's ...ForCausalLM in float32 with these weights."""
    with torch.device("meta"):
        model = getattr(transformers, config.architecture)(hf_config(config))
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, assign=True)
    # The rotary embedding's buffers are not in a state dict.
    model.model.rotary_emb = type(model.model.rotary_emb)(hf_config(config))
    return model.eval()


def config_of(family: str, **changes) -> DecoderConfig:
    """The small checkpoint's dims, as the family has them."""
    small = DecoderConfig.from_json(SMALL_CHECKPOINT / "config.json")
    return replace(small, **FAMILIES[family] | changes)


def table_of(config: DecoderConfig, tp: int, recipe: Recipe = BFP8, chip: Chip = WORMHOLE) -> ModelTable:
    """The table of a model on `tp` chips."""
    return ModelTable(config, ParallelPlan.make(config, tp), recipe, chip)


@torch.no_grad()
def save(family: str, directory: Path, seed: int = 0) -> PreTrainedModel:
    """Write a checkpoint of three layers; return Hugging Face's model of it in float32. Llama's head is tied."""
    tied = family == "llama"
    config = config_of(family, num_hidden_layers=3, tie_word_embeddings=tied)
    weights = random_weights(config, seed)
    for name in weights:
        if tied and name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] *= 4  # else a token's own embedding is the likeliest answer
    if tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model = hf_model(config, weights)
    model.tie_weights()
    model.bfloat16().save_pretrained(directory)
    for file in SMALL_CHECKPOINT.glob("*"):
        if file.name.startswith(("tokenizer", "chat_template", "generation_config")):
            shutil.copy(file, directory)
    return model.float()


@torch.no_grad()
def assert_greedy(model, prompt: list[int], answer: list[int], near_tie: float = NEAR_TIE) -> None:
    """Each token is Hugging Face's first choice after the tokens before it, or as good as it."""
    logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    for row, token in zip(logits, answer):
        assert row.max() - row[token] <= near_tie * row.std()


def cut(size: str, *, layers: int | None = None, vocab_size: int = 4096) -> DecoderConfig:
    """Return a size's config with fewer layers, if given, and a smaller vocabulary."""
    config = (published_models.SIZES | published_models.FAMILIES)[size]
    tokens = dict(vocab_size=vocab_size, bos_token_id=None, eos_token_ids=())
    return replace(config, num_hidden_layers=layers or config.num_hidden_layers, **tokens)
