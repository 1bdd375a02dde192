"""Requests, and the start of the model class as Tenstorrent's vLLM plugin does it."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Optional

import torch
from transformers import AutoConfig

from tests import generation

SLOTS, MAX_LEN, BLOCK, NEW_TOKENS = 32, 512, 64, 12


@dataclass
class TTSamplingParams:
    """Sampling parameters of one request, or lists over all slots, with the plugin's names.

    The defaults are the values of inactive slots.
    """

    temperature: float = 0.0
    top_k: int = 1
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: Optional[int] = None
    num_logprobs: int = -2
    enable_log_probs: bool = False


@dataclass(eq=False)
class Request:
    prompt: list[int]
    new_tokens: int
    sampling: TTSamplingParams = field(default_factory=TTSamplingParams)
    stop_ids: frozenset[int] = frozenset()
    host_until: int = 0  # first tokens of the answer that vLLM's own sampler gives (min_tokens)
    answer: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    cached: int = 0

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.answer

    @property
    def penalized(self) -> bool:
        s = self.sampling
        return (s.presence_penalty, s.frequency_penalty, s.repetition_penalty) != (0, 0, 1)

    @property
    def done(self) -> bool:
        return len(self.answer) >= self.new_tokens or bool(self.answer and self.answer[-1] in self.stop_ids)


def start(mesh_device, checkpoint, host_alone, *, slots, max_len, block, blocks=None, trace=True):
    """Start and warm up the model as the plugin does. Return (model, kv_cache, blocks).

    Prefills compile with the host alone; what they compute means nothing.
    """
    from models.demos.qwen25_7b.vllm.generator_vllm import QwenForCausalLM

    hf = hf_config(checkpoint)
    model = QwenForCausalLM.initialize_vllm_model(
        hf, mesh_device, slots, max_seq_len=max_len, tt_data_parallel=1, optimizations="accuracy"
    )
    chips = mesh_device.get_num_devices()
    sizes = dict(num_devices=chips, tt_data_parallel=1, max_model_len=max_len, max_num_seqs=slots)
    budget = QwenForCausalLM.get_max_tokens_all_users(model_name=hf._name_or_path, **sizes)
    blocks = blocks or -(-(budget + block * slots) // block)
    heads = hf.num_key_value_heads // min(chips, hf.num_key_value_heads)
    shape = blocks, heads, block, checkpoint.config.head_dim
    caches = model.allocate_kv_cache(shape, torch.bfloat16, hf.num_hidden_layers)
    width = min(-(-max_len // block), blocks)
    for enable_trace in (False, True) if trace else (False,):
        with nullcontext() if enable_trace else host_alone():
            model.warmup_model_prefill(kv_cache=caches, enable_trace=enable_trace, can_sample_on_device=True)
        model.warmup_model_decode(
            kv_cache=caches,
            enable_trace=enable_trace,
            max_batch_size=slots,
            num_blocks=width,
            can_sample_on_device=True,
        )
    return model, caches, blocks


def requests(prompts, tokenizer, **options) -> list["Request"]:
    return [Request(list(prompt), NEW_TOKENS, stop_ids=frozenset(tokenizer.stop_ids), **options) for prompt in prompts]


def greedy(hf, prompt, stop_ids, **options) -> list[int]:
    """Return the tokens of Hugging Face's greedy answer."""
    return generation.greedy(hf, prompt, NEW_TOKENS, stop_ids, **options)


def hf_config(checkpoint):
    """transformers' config, with the architecture's name as the plugin writes it."""
    config = AutoConfig.from_pretrained(checkpoint.directory)
    config.architectures = [f"TT{name}" for name in config.architectures]
    return config
