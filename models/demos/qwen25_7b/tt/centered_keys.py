"""TtCenteredKeys: the outlier pairs of K's bias, added after the rotation without the constant that softmax ignores.

plans/rotary_pairs.py chooses the pairs. docs/numerics.md has the error with and without.
"""

from typing import Optional

import torch
import ttnn

from ..config import DecoderConfig
from ..plans.grids import TILE
from ..plans.model_table import Weight
from ..weights.model_weights import BuildShard
from .model_config import TtModelConfig
from .placement import add_and_free, host_shards, to_mesh_rows
from .rotary import rotary_angles


class TtCenteredKeys:
    """k + R(position) b - R(0) b, where b is the bias that QKV leaves out and R the rotation.

    The cache thus holds Hugging Face's keys less R(0) b, divided by the divisors of equalized pairs.

    table: [kv_heads * max_seq_len, head_dim] a chip, in DRAM. Row h * max_seq_len + p is KV head h's at position p
    (inputs.KeyTable).
    """

    def __init__(self, table: ttnn.Tensor):
        self.table = table

    @classmethod
    def make(
        cls, mesh_device: ttnn.MeshDevice, bias: Optional[Weight], build: BuildShard, model_config: TtModelConfig
    ) -> "Optional[TtCenteredKeys]":
        """None for a layer without centered pairs. bias: Layer.centered_bias."""
        if bias is None:
            return None
        host = host_shards(bias, build)
        biases = [ttnn.to_torch(shard).view(-1, model_config.config.head_width) for shard in host]
        if not any(of_chip.any() for of_chip in biases):
            return None
        tables = [
            ttnn.from_torch(
                centered_rows(model_config.config, of_chip, model_config.max_seq_len)[None, None],
                dtype=ttnn.bfloat16,
                layout=ttnn.ROW_MAJOR_LAYOUT,
            )
            for of_chip in biases
        ]
        joined = to_mesh_rows(tables, mesh_device, dim=2)
        return cls(ttnn.to_device(joined, mesh_device, memory_config=ttnn.DRAM_MEMORY_CONFIG))

    def forward_decode(self, k: ttnn.Tensor, key_rows: ttnn.Tensor) -> ttnn.Tensor:
        """k [1, slots, kv_heads, head_dim], height-sharded, rotated -> centered, on the same cores. Frees k.

        key_rows: [1, 32 * slots] uint32 (KeyTable.decode_rows).
        """
        memory = k.memory_config()
        rows = self._look_up(key_rows, memory)  # [1, 32 * slots, head_dim]
        _, slots, kv_heads, head_dim = k.shape
        rows = ttnn.reshape(rows, (1, slots, kv_heads, head_dim), (1, slots, TILE, head_dim))
        return add_and_free(k, rows, memory)

    def forward_prefill(self, k: ttnn.Tensor, key_rows: ttnn.Tensor) -> ttnn.Tensor:
        """k [B, kv_heads, S / B, head_dim], interleaved in L1, rotated -> centered. Frees k.

        key_rows: [1, B * kv_heads * S / B] uint32 (KeyTable.prefill_rows).
        """
        memory = ttnn.L1_MEMORY_CONFIG
        rows = self._look_up(key_rows, memory)  # [1, B * kv_heads * S / B, head_dim]
        return add_and_free(k, ttnn.reshape(rows, tuple(k.shape)), memory)

    def _look_up(self, key_rows: ttnn.Tensor, memory: ttnn.MemoryConfig) -> ttnn.Tensor:
        return ttnn.embedding(key_rows, self.table, layout=ttnn.TILE_LAYOUT, memory_config=memory)


def centered_rows(config: DecoderConfig, bias: torch.Tensor, positions: int) -> torch.Tensor:
    """R(position) b - R(0) b: bias [heads, head_dim] in rotary pairs -> [heads * positions, head_dim] bfloat16.

    In float64, from the angles of the rotary tables, rounded once. R includes YaRN's attention factor.
    """
    heads, pairs = len(bias), config.head_width // 2
    bias = bias.double().view(heads, 1, pairs, 2)
    angles = rotary_angles(config, positions).double()
    size = config.rope_scaling.attention_factor if config.rope_scaling else 1.0
    table = torch.zeros(heads, positions, pairs, 2, dtype=torch.bfloat16)
    for pair in bias.any(dim=-1).any(dim=0).flatten().nonzero().flatten().tolist():
        a, b = bias[..., pair, 0], bias[..., pair, 1]
        sin = angles[:, pair].sin()
        less = 2 * (angles[:, pair] / 2).sin() ** 2  # 1 - cos
        table[..., pair, 0] = size * (-less * a - sin * b)
        table[..., pair, 1] = size * (sin * a - less * b)
    return table.view(heads * positions, config.head_width)
