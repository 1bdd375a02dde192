"""What is done to q and k between the QKV projection and attention: TtHeadNorms, TtRotary, TtCenteredKeys.

Rotary position embedding is x * cos + (x @ T) * sin over adjacent pairs: rotary_pairs.to_interleaved has reordered the
rows of Wq and Wk. The product with the 32x32 matrix T turns a pair (a, b) into (-b, a).
"""

from typing import Iterator, NamedTuple, Optional

import torch
import ttnn
from torch.nn.functional import pad

from ..config import DecoderConfig
from ..config.rope import rotary_frequencies
from ..plans.grids import TILE
from ..plans.model_table import LayerSpec, Weight
from ..weights.model_weights import BuildShard
from .linear import compute_config
from .model_config import TtModelConfig
from .placement import add_in_place, host_shards, memory_config, place, replicate, to_mesh_rows


class TtHeadNorms:
    """y = x / sqrt(mean(x^2) + eps) * weight for each head of q, k. HF: Qwen3's self_attn.q_norm and k_norm.

    weights: [head_dim / 32, 32], in rotary pairs.
    """

    def __init__(self, mesh_device: ttnn.MeshDevice, layer: LayerSpec, build: BuildShard):
        self.epsilon = layer.dims.rms_norm_eps
        self.kernel = compute_config()
        self.weights = [place(norm, mesh_device, build) for norm in layer.head_norms]

    def forward_decode(self, q: ttnn.Tensor, k: ttnn.Tensor) -> list[ttnn.Tensor]:
        """q and k [1, slots, heads, head_dim], height-sharded -> normalized, on the same cores. Frees q and k.

        rms_norm takes no height-sharded tensor, so that each is interleaved meanwhile.
        """
        normed = []
        for x, weight in zip((q, k), self.weights):
            memory = x.memory_config()
            interleaved = ttnn.to_memory_config(x, ttnn.L1_MEMORY_CONFIG)
            ttnn.deallocate(x)
            normed.append(ttnn.to_memory_config(self._norm(interleaved, weight), memory))
        return normed

    def forward_prefill(self, q: ttnn.Tensor, k: ttnn.Tensor) -> list[ttnn.Tensor]:
        """q and k [B, heads, S / B, head_dim], interleaved in L1 -> normalized, interleaved in L1. Frees q and k."""
        return [self._norm(x, weight) for x, weight in zip((q, k), self.weights)]

    def _norm(self, x: ttnn.Tensor, weight: ttnn.Tensor) -> ttnn.Tensor:
        """Frees x."""
        l1 = ttnn.L1_MEMORY_CONFIG
        y = ttnn.rms_norm(x, weight=weight, epsilon=self.epsilon, memory_config=l1, compute_kernel_config=self.kernel)
        ttnn.deallocate(x)
        return y


class Rotation(NamedTuple):
    """The factors of one decode step or prefill batch, shared by all layers.

    Decode: [1, rotary_users, 32, head_dim] height-sharded, 32 equal rows. Prefill: [1, 1, S, head_dim] in L1.
    """

    cos: ttnn.Tensor
    sin: ttnn.Tensor


class TtRotary:
    """Tables of cos and sin for positions 0 to max_seq_len - 1, looked up on the device by position."""

    def __init__(self, mesh_device: ttnn.MeshDevice, model_config: TtModelConfig):
        self.decode = model_config.decode
        self.head_dim = model_config.dims.head_width
        self.kernel = compute_config()
        tables = rotary_tables(model_config.dims, model_config.max_seq_len)
        self.cos_and_sin = [replicate(table, mesh_device, layout=ttnn.ROW_MAJOR_LAYOUT) for table in tables]
        matrix = transformation_matrix()
        self.trans_mat_prefill = replicate(matrix, mesh_device)
        self.trans_mat_decode = replicate(
            matrix.repeat(1, 1, self.decode.rotary_users, 1),
            mesh_device,
            memory_config=memory_config(self.decode.rotary_memory(TILE)),
        )

    def rotation_decode(self, positions: ttnn.Tensor) -> Rotation:
        """positions: [1, 32 * rotary_users] uint32 (inputs.expand_rotary_positions)."""
        memory = memory_config(self.decode.rotary_memory(self.head_dim))  # a slot's tile row on its core
        shape = (1, self.decode.rotary_users, TILE, self.head_dim)
        return Rotation(*(ttnn.reshape(rows, shape) for rows in self._look_up(positions, memory)))

    def rotation_prefill(self, positions: ttnn.Tensor) -> Rotation:
        """positions: [1, S] uint32."""
        return Rotation(*map(ttnn.unsqueeze_to_4D, self._look_up(positions, ttnn.L1_MEMORY_CONFIG)))

    def _look_up(self, positions: ttnn.Tensor, memory: ttnn.MemoryConfig) -> Iterator[ttnn.Tensor]:
        """cos and sin of positions [1, n], [1, n, head_dim] each."""
        for table in self.cos_and_sin:
            yield ttnn.embedding(positions, table, layout=ttnn.TILE_LAYOUT, memory_config=memory)

    def forward_decode(self, q: ttnn.Tensor, k: ttnn.Tensor, rotation: Rotation) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """q and k [1, slots, heads, head_dim], height-sharded, one slot a core -> q and k rotated, in the same cores.

        One op rotates both where q and k lie on different cores; else one op each.
        """
        if self.decode.fused_qk:
            return ttnn.experimental.rotary_embedding_llama_fused_qk(
                q, k, rotation.cos, rotation.sin, self.trans_mat_decode, compute_kernel_config=self.kernel
            )
        return tuple(self._rotate(x, rotation, self.trans_mat_decode, is_decode_mode=True) for x in (q, k))

    def forward_prefill(self, q: ttnn.Tensor, k: ttnn.Tensor, rotation: Rotation) -> list[ttnn.Tensor]:
        """q and k [B, heads, S, head_dim], interleaved in L1 -> rotated, all B to the same S positions. Frees both."""
        matrix, l1 = self.trans_mat_prefill, ttnn.L1_MEMORY_CONFIG
        rotated = []
        for x in (q, k):
            rotated.append(self._rotate(x, rotation, matrix, is_decode_mode=False, memory_config=l1))
            ttnn.deallocate(x)
        return rotated

    def _rotate(self, x: ttnn.Tensor, rotation: Rotation, matrix: ttnn.Tensor, **options) -> ttnn.Tensor:
        return ttnn.experimental.rotary_embedding_llama(
            x, rotation.cos, rotation.sin, matrix, compute_kernel_config=self.kernel, **options
        )


class TtCenteredKeys:
    """The outlier pairs of K's bias, added after the rotation without the constant that softmax ignores.

    k + R(position) b - R(0) b, where b is the bias that QKV leaves out and R the rotation.
    plans/rotary_pairs.py chooses the pairs. docs/numerics.md has the error with and without.

    The cache thus holds Hugging Face's keys less R(0) b, divided by the divisors of equalized pairs.

    table: [kv_heads * max_seq_len, head_dim] a chip, in DRAM. Row h * max_seq_len + p is KV head h's at position p.
    """

    def __init__(self, table: ttnn.Tensor):
        self.table = table

    @classmethod
    def make(
        cls, mesh_device: ttnn.MeshDevice, bias: Optional[Weight], build: BuildShard, model_config: TtModelConfig
    ) -> "Optional[TtCenteredKeys]":
        """None for a layer without centered pairs. bias: LayerSpec.centered_bias."""
        if bias is None:
            return None
        host = host_shards(bias, build)
        biases = [ttnn.to_torch(shard).view(-1, model_config.dims.head_width) for shard in host]
        if not any(of_chip.any() for of_chip in biases):
            return None
        rows = (centered_rows(model_config.dims, of_chip, model_config.max_seq_len) for of_chip in biases)
        tables = [ttnn.from_torch(x[None, None], dtype=ttnn.bfloat16, layout=ttnn.ROW_MAJOR_LAYOUT) for x in rows]
        joined = to_mesh_rows(tables, mesh_device, dim=2)
        return cls(ttnn.to_device(joined, mesh_device, memory_config=ttnn.DRAM_MEMORY_CONFIG))

    def forward_decode(self, k: ttnn.Tensor, key_rows: ttnn.Tensor) -> ttnn.Tensor:
        """k [1, slots, kv_heads, head_dim], height-sharded, rotated -> centered in place.

        key_rows: [1, 32 * slots] uint32 (inputs.decode_key_rows).
        """
        rows = self._look_up(key_rows, k.memory_config())  # [1, 32 * slots, head_dim]
        _, slots, kv_heads, head_dim = k.shape
        rows = ttnn.reshape(rows, (1, slots, kv_heads, head_dim), (1, slots, TILE, head_dim))
        return add_in_place(k, rows)

    def forward_prefill(self, k: ttnn.Tensor, key_rows: ttnn.Tensor) -> ttnn.Tensor:
        """k [B, kv_heads, S / B, head_dim], interleaved in L1, rotated -> centered in place.

        key_rows: [1, B * kv_heads * S / B] uint32 (inputs.prefill_key_rows).
        """
        rows = self._look_up(key_rows, ttnn.L1_MEMORY_CONFIG)  # [1, B * kv_heads * S / B, head_dim]
        return add_in_place(k, ttnn.reshape(rows, tuple(k.shape)))

    def _look_up(self, key_rows: ttnn.Tensor, memory: ttnn.MemoryConfig) -> ttnn.Tensor:
        return ttnn.embedding(key_rows, self.table, layout=ttnn.TILE_LAYOUT, memory_config=memory)


def centered_rows(config: DecoderConfig, bias: torch.Tensor, positions: int) -> torch.Tensor:
    """R(position) b - R(0) b: bias [heads, head_dim] in rotary pairs -> [heads * positions, head_dim] bfloat16.

    In float64, from the angles of the rotary tables, rounded once. R includes YaRN's attention factor.
    """
    heads, pairs = len(bias), config.head_width // 2
    bias = bias.double().view(heads, 1, pairs, 2)
    angles, size = rotary_angles(config, positions)
    angles = angles.double()
    table = torch.zeros(heads, positions, pairs, 2, dtype=torch.bfloat16)
    for pair in bias.any(dim=-1).any(dim=0).flatten().nonzero().flatten().tolist():
        a, b = bias[..., pair, 0], bias[..., pair, 1]
        sin = angles[:, pair].sin()
        less = 2 * (angles[:, pair] / 2).sin() ** 2  # 1 - cos
        table[..., pair, 0] = size * (-less * a - sin * b)
        table[..., pair, 1] = size * (sin * a - less * b)
    return table.view(heads * positions, config.head_width)


def rotary_tables(config: DecoderConfig, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin, [1, 1, positions, head_dim] float32.

    Each frequency stands twice, once for each element of a pair. The arithmetic is float32, as in Hugging Face's tables
    and in the model's training.
    """
    angles, size = rotary_angles(config, positions)
    return tuple((f(angles) * size).repeat_interleave(2, dim=-1)[None, None] for f in (torch.cos, torch.sin))


def rotary_angles(config: DecoderConfig, positions: int) -> tuple[torch.Tensor, float]:
    """[positions, head_width / 2] float32, in radians: position times the pair's frequency; 0 for pairs of zeros. And
    what cos and sin are multiplied by."""
    frequencies, size = rotary_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    frequencies = pad(frequencies, (0, config.head_width // 2 - len(frequencies)))
    return torch.outer(torch.arange(positions, dtype=torch.float32), frequencies), size


def transformation_matrix() -> torch.Tensor:
    """T [1, 1, 32, 32]: (x @ T)[2j] = -x[2j + 1], (x @ T)[2j + 1] = x[2j]."""
    matrix = torch.zeros(1, 1, TILE, TILE)
    even = torch.arange(0, TILE, 2)
    matrix[..., even, even + 1] = 1
    matrix[..., even + 1, even] = -1
    return matrix
