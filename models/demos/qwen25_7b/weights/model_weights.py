"""The model's weights, laid out for a plan: which part of which tensor each chip gets. Nothing is read before it is placed.

Fields are named after what a module does with them; the Hugging Face names are spelt out in transforms.py.
"""

from dataclasses import dataclass
from typing import Mapping, Optional

import torch

from ..config import TILE, ParallelPlan, QwenConfig
from . import transforms
from .parts import Part, Table
from .weight import Packing, PieceSource, TensorSource, Weight


@dataclass(frozen=True)
class StateDict:
    """A TensorSource over a model in memory: StateDict(hf_model.state_dict())."""

    tensors: Mapping[str, torch.Tensor]

    def tensor(self, name: str) -> torch.Tensor:
        return self.tensors[name]


@dataclass(frozen=True)
class AttentionWeights:
    """self_attn of one layer; shapes are one chip's."""

    qkv: Weight  # [hidden, (q_heads + 2 * kv_heads) * head_dim]
    qkv_bias: Weight  # [1, (q_heads + 2 * kv_heads) * head_dim]
    o: Weight  # [q_heads * head_dim, hidden]


@dataclass(frozen=True)
class MlpWeights:
    """mlp of one layer; shapes are one chip's."""

    gate: Weight  # [hidden, mlp]
    up: Weight  # [hidden, mlp]
    down: Weight  # [mlp, hidden]


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer."""

    input_norm: Weight  # [hidden / 32, 32], on every chip
    attention: AttentionWeights
    post_attention_norm: Weight  # [hidden / 32, 32], on every chip
    mlp: MlpWeights


class ModelWeights:
    """All weights of a model for a plan.

    source: a Checkpoint, or a state_dict. pieces: whoever makes the chips' tensors of it; default: made of `source` when
    they are asked for, one after the other (loading.Stream works ahead and keeps them on disk).
    """

    def __init__(
        self,
        source: TensorSource | Mapping[str, torch.Tensor],
        config: QwenConfig,
        plan: ParallelPlan,
        pieces: Optional[PieceSource] = None,
    ):
        self.source = StateDict(source) if isinstance(source, Mapping) else source
        self.config = config
        self.plan = plan
        self.pieces = Packing(self.source) if pieces is None else pieces

    @property
    def embedding(self) -> Weight:
        """[vocab_size, hidden], on every chip"""
        return self._weight(Table("model.embed_tokens.weight", (self.config.vocab_size, self.config.hidden_size)))

    @property
    def final_norm(self) -> Weight:
        """[hidden / 32, 32], on every chip"""
        return self._norm("model.norm.weight")

    @property
    def lm_head(self) -> Weight:
        """[hidden, vocab]"""
        return self._weight(*transforms.lm_head_weights(self.config, self.plan))

    def layer(self, i: int) -> LayerWeights:
        return LayerWeights(
            input_norm=self.input_norm(i),
            attention=self.attention(i),
            post_attention_norm=self.post_attention_norm(i),
            mlp=self.mlp(i),
        )

    def input_norm(self, i: int) -> Weight:
        return self._norm(f"{_layer(i)}input_layernorm.weight")

    def post_attention_norm(self, i: int) -> Weight:
        return self._norm(f"{_layer(i)}post_attention_layernorm.weight")

    def attention(self, i: int) -> AttentionWeights:
        common = (_layer(i), self.config, self.plan)
        return AttentionWeights(
            qkv=self._weight(*transforms.qkv_weights(*common)),
            qkv_bias=self._weight(*transforms.qkv_biases(*common)),
            o=self._weight(*transforms.o_weights(*common)),
        )

    def mlp(self, i: int) -> MlpWeights:
        common = (_layer(i), self.config, self.plan)
        return MlpWeights(
            gate=self._weight(*transforms.gate_weights(*common)),
            up=self._weight(*transforms.up_weights(*common)),
            down=self._weight(*transforms.down_weights(*common)),
        )

    def _norm(self, name: str) -> Weight:
        return self._weight(
            Table(name, (self.config.hidden_size // TILE, TILE))
        )  # rows of a tile, as rms_norm reads it

    def _weight(self, *parts: Part) -> Weight:
        return Weight(self.pieces, parts)


def _layer(i: int) -> str:
    return f"model.layers.{i}."
