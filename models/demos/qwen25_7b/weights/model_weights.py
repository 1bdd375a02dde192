"""The model's weights on a row of chips, for a split. Nothing is read before it is placed.

Fields are named after their use in a module. Hugging Face's names stand in transforms.py.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Callable, Mapping, Optional, Protocol

import torch

from ..config import QwenConfig
from ..plans.parallel_plan import TILE, ParallelPlan
from . import transforms
from .slices import Projection, ReadTensor, Table, WeightShard, WeightSlice

if TYPE_CHECKING:
    import ttnn

# Gives a weight shard on the host, [1, 1, rows, columns], ready to be sent.
BuildShard = Callable[[WeightShard], "ttnn.Tensor"]


class TensorSource(Protocol):
    """Finds a tensor by its Hugging Face name. A Checkpoint is one."""

    def tensor(self, name: str) -> torch.Tensor: ...


def build_shard(shard: WeightShard, tensor: ReadTensor) -> "ttnn.Tensor":
    """Return the shard on the host, [1, 1, rows, columns], tiled and packed by ttnn's own code."""
    import ttnn  # here, since a checkpoint is opened before the backend of ttnn is chosen

    layout = ttnn.TILE_LAYOUT if shard.tiled else ttnn.ROW_MAJOR_LAYOUT
    values = shard.slice.read(tensor)[None, None]
    return ttnn.from_torch(values, dtype=getattr(ttnn, shard.format), layout=layout)


@dataclass(frozen=True)
class Weight:
    """A weight on a row of chips. A single slice is on every chip."""

    build: BuildShard
    slices: tuple[WeightSlice, ...]  # slices[c] is chip c's; all have one shape

    def __post_init__(self):
        shapes = {weight_slice.shape for weight_slice in self.slices}
        assert len(shapes) == 1, "chips run one program: their slices have one shape"

    @property
    def shape(self) -> tuple[int, int]:
        """Of one chip's slice."""
        return self.slices[0].shape

    def host_tensors(self, format: str, *, tiled: bool) -> "list[ttnn.Tensor]":
        """Return one host tensor a slice. Equal slices share a tensor."""
        shards = self.shards(format, tiled=tiled)
        built = {shard: self.build(shard) for shard in dict.fromkeys(shards)}
        return [built[shard] for shard in shards]

    def shards(self, format: str, *, tiled: bool) -> list[WeightShard]:
        return [WeightShard(weight_slice, format, tiled) for weight_slice in self.slices]

    def narrow(self, first: int, count: int) -> "Weight":
        """Return `count` of each chip's columns, or rows where those are split, from number `first`."""
        return self._map(lambda weight_slice: weight_slice.narrow(first, count))

    def padded(self, extent: int) -> "Weight":
        """Pad each chip's slice with zeros to `extent` columns, or rows where those are split."""
        return self._map(lambda weight_slice: weight_slice.padded(extent))

    def concat(self, other: "Weight") -> "Weight":
        """Append each chip's columns of the other weight."""
        pairs = zip(self.slices, other.slices, strict=True)
        return replace(self, slices=tuple(a.concat(b) for a, b in pairs))

    def _map(self, change: Callable[[Projection], Projection]) -> "Weight":
        return replace(self, slices=tuple(map(change, self.slices)))


@dataclass(frozen=True)
class AttentionWeights:
    """self_attn of one layer; shapes are one chip's."""

    qkv: Weight  # [hidden, (q_heads + 2 * kv_heads) * head_dim]
    qkv_bias: Optional[Weight]  # [1, (q_heads + 2 * kv_heads) * head_dim]
    q_norm: Optional[Weight]  # [head_dim / 32, 32], on every chip
    k_norm: Optional[Weight]  # [head_dim / 32, 32], on every chip
    # [1, kv_heads * head_dim]: the part of K's bias that centered keys leave out of qkv_bias; only of config.centered_layers
    centered_bias: Optional[Weight]
    o: Weight  # [q_heads * head_dim, hidden]


MLP = "gate", "up", "down"


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
    """All weights of a model for a split.

    source: a Checkpoint, or a state_dict. build: gives the chips' tensors; default: built from `source` on request.
    """

    def __init__(
        self,
        source: TensorSource | Mapping[str, torch.Tensor],
        config: QwenConfig,
        parallel: ParallelPlan,
        build: Optional[BuildShard] = None,
    ):
        self.read = source.__getitem__ if isinstance(source, Mapping) else source.tensor
        self.config = config
        self.parallel = parallel
        self.build = build or partial(build_shard, tensor=self.read)

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
        return self._weight(*transforms.lm_head_weights(self.config, self.parallel))

    def layer(self, i: int) -> LayerWeights:
        return LayerWeights(self.input_norm(i), self.attention(i), self.post_attention_norm(i), self.mlp(i))

    def input_norm(self, i: int) -> Weight:
        return self._norm(f"{_layer(i)}input_layernorm.weight")

    def post_attention_norm(self, i: int) -> Weight:
        return self._norm(f"{_layer(i)}post_attention_layernorm.weight")

    def attention(self, i: int) -> AttentionWeights:
        common = (_layer(i), self.config, self.parallel)
        rope = self.config.centering_rope(i)
        biases = transforms.qkv_biases(*common, rope) if self.config.qkv_bias else ()
        norms = [transforms.head_norm(_layer(i), name, self.config) for name in "qk"]
        q_norm, k_norm = map(self._weight, norms) if self.config.head_norms else (None, None)
        return AttentionWeights(
            qkv=self._weight(*transforms.qkv_weights(*common, rope)),
            qkv_bias=self._weight(*biases) if biases else None,
            q_norm=q_norm,
            k_norm=k_norm,
            centered_bias=rope and self._weight(*transforms.centered_biases(*common, rope)),
            o=self._weight(*transforms.o_weights(*common)),
        )

    def mlp(self, i: int) -> MlpWeights:
        slices = (transforms.mlp_weights(_layer(i), name, self.config, self.parallel) for name in MLP)
        return MlpWeights(*(self._weight(*of_chips) for of_chips in slices))

    def _norm(self, name: str) -> Weight:
        # rms_norm reads its weight as rows of a tile
        return self._weight(Table(name, (self.config.hidden_size // TILE, TILE)))

    def _weight(self, *slices: WeightSlice) -> Weight:
        return Weight(self.build, slices)


def _layer(i: int) -> str:
    return f"model.layers.{i}."
