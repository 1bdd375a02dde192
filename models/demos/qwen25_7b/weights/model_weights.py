"""The model's weights, laid out for a plan, read when asked for and never kept.

Fields are named after what a module does with them; the Hugging Face names are spelt out beside them.
A layer of the 7B is 470 MB in bfloat16, of which the MLP is 408 MB: ask for the parts one at a time
where that matters, place them on the device, and let them go.
"""

from dataclasses import dataclass
from typing import Mapping, Protocol

import torch

from ..config import ParallelPlan, QwenConfig
from . import transforms


class TensorSource(Protocol):
    """Whatever finds a tensor by its Hugging Face name, such as a Checkpoint."""

    def tensor(self, name: str) -> torch.Tensor: ...


@dataclass(frozen=True)
class StateDict:
    """A TensorSource over a model in memory: StateDict(hf_model.state_dict())."""

    tensors: Mapping[str, torch.Tensor]

    def tensor(self, name: str) -> torch.Tensor:
        return self.tensors[name]


@dataclass(frozen=True)
class AttentionWeights:
    """self_attn of one layer; see transforms for the order within a chip."""

    qkv: torch.Tensor  # [hidden, tp * (q_heads + 2 * kv_heads) * head_dim]
    qkv_bias: torch.Tensor  # [1, tp * (q_heads + 2 * kv_heads) * head_dim]
    o: torch.Tensor  # [tp * q_heads * head_dim, hidden]


@dataclass(frozen=True)
class MlpWeights:
    """mlp of one layer."""

    gate: torch.Tensor  # [hidden, tp * mlp]
    up: torch.Tensor  # [hidden, tp * mlp]
    down: torch.Tensor  # [tp * mlp, hidden]


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer."""

    input_norm: torch.Tensor  # [hidden]
    attention: AttentionWeights
    post_attention_norm: torch.Tensor  # [hidden]
    mlp: MlpWeights


class ModelWeights:
    """All weights of a model, each read and transformed when it is asked for.

    source: a Checkpoint, or a state_dict.
    """

    def __init__(self, source: TensorSource | Mapping[str, torch.Tensor], config: QwenConfig, plan: ParallelPlan):
        self.source = StateDict(source) if isinstance(source, Mapping) else source
        self.config = config
        self.plan = plan

    @property
    def embedding(self) -> torch.Tensor:
        """[vocab_size, hidden]"""
        return self.source.tensor("model.embed_tokens.weight")

    @property
    def final_norm(self) -> torch.Tensor:
        """[hidden]"""
        return self.source.tensor("model.norm.weight")

    @property
    def lm_head(self) -> torch.Tensor:
        """[hidden, tp * vocab]"""
        return transforms.lm_head_weight(self.source.tensor("lm_head.weight"), self.plan)

    def layer(self, i: int) -> LayerWeights:
        return LayerWeights(
            input_norm=self.input_norm(i),
            attention=self.attention(i),
            post_attention_norm=self.post_attention_norm(i),
            mlp=self.mlp(i),
        )

    def input_norm(self, i: int) -> torch.Tensor:
        """[hidden]"""
        return self._layer_tensor(i, "input_layernorm.weight")

    def post_attention_norm(self, i: int) -> torch.Tensor:
        """[hidden]"""
        return self._layer_tensor(i, "post_attention_layernorm.weight")

    def attention(self, i: int) -> AttentionWeights:
        weights = [self._layer_tensor(i, f"self_attn.{p}_proj.weight") for p in "qkv"]
        biases = [self._layer_tensor(i, f"self_attn.{p}_proj.bias") for p in "qkv"]
        return AttentionWeights(
            qkv=transforms.qkv_weight(*weights, biases[1], self.config, self.plan),
            qkv_bias=transforms.qkv_bias(*biases, self.config, self.plan),
            o=transforms.o_weight(self._layer_tensor(i, "self_attn.o_proj.weight"), self.config, self.plan),
        )

    def mlp(self, i: int) -> MlpWeights:
        return MlpWeights(
            gate=transforms.mlp_in_weight(self._layer_tensor(i, "mlp.gate_proj.weight"), self.plan),
            up=transforms.mlp_in_weight(self._layer_tensor(i, "mlp.up_proj.weight"), self.plan),
            down=transforms.mlp_out_weight(self._layer_tensor(i, "mlp.down_proj.weight"), self.plan),
        )

    def _layer_tensor(self, i: int, name: str) -> torch.Tensor:
        return self.source.tensor(f"model.layers.{i}.{name}")
