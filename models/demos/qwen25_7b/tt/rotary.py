"""TtRotary: rotary position embedding, x * cos + (x @ T) * sin, over adjacent pairs.

HF rotates the pairs (j, j + head_dim/2); the weight transforms have reordered the rows of Wq and Wk so that here a pair is
(2j, 2j + 1), whose half turn (a, b) -> (-b, a) is a product with the 32x32 matrix T.
"""

from dataclasses import dataclass

import torch
import ttnn

from models.demos.qwen25_7b.config import QwenConfig
from models.demos.qwen25_7b.config.rope import inverse_frequencies
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.grids import TILE
from models.demos.qwen25_7b.tt.linear import compute_config
from models.demos.qwen25_7b.tt.placement import replicate


@dataclass(frozen=True)
class Rotation:
    """The factors of one step, the same for all layers."""

    cos: ttnn.Tensor  # decode [1, rotary_users, 32 (equal), head_dim] height-sharded; prefill [1, 1, S, head_dim]
    sin: ttnn.Tensor

    def deallocate(self) -> None:
        ttnn.deallocate(self.cos)
        ttnn.deallocate(self.sin)


class TtRotary:
    """Tables for positions 0 to max_seq_len - 1, looked up on the device by position."""

    def __init__(self, mesh_device: ttnn.MeshDevice, config: QwenConfig, decode: DecodePlan, max_seq_len: int):
        self.decode = decode
        self.head_dim = config.head_dim
        self.kernel = compute_config()
        cos, sin = rotary_tables(config, max_seq_len)
        self.cos = replicate(cos, mesh_device, layout=ttnn.ROW_MAJOR_LAYOUT)
        self.sin = replicate(sin, mesh_device, layout=ttnn.ROW_MAJOR_LAYOUT)
        turn = half_turn_matrix()
        self.turn_prefill = replicate(turn, mesh_device)
        self.turn_decode = replicate(
            turn.repeat(1, 1, decode.rotary_users, 1), mesh_device, memory_config=decode.rotary_memory(TILE)
        )

    def rotation_decode(self, positions: ttnn.Tensor) -> Rotation:
        """positions: [1, 32 * rotary_users] uint32, as rotary_rows makes them."""
        return Rotation(self._decode_factor(positions, self.cos), self._decode_factor(positions, self.sin))

    def _decode_factor(self, positions: ttnn.Tensor, table: ttnn.Tensor) -> ttnn.Tensor:
        memory = self.decode.rotary_memory(self.head_dim)
        rows = ttnn.embedding(positions, table, layout=ttnn.TILE_LAYOUT, memory_config=memory)
        # [1, 32 * rotary_users, head_dim]: a tile row a user, on its core already
        return ttnn.reshape(rows, (1, self.decode.rotary_users, TILE, self.head_dim))

    def rotation_prefill(self, positions: ttnn.Tensor) -> Rotation:
        """positions: [1, S] uint32."""
        return Rotation(self._prefill_factor(positions, self.cos), self._prefill_factor(positions, self.sin))

    def _prefill_factor(self, positions: ttnn.Tensor, table: ttnn.Tensor) -> ttnn.Tensor:
        rows = ttnn.embedding(positions, table, layout=ttnn.TILE_LAYOUT, memory_config=ttnn.L1_MEMORY_CONFIG)
        return ttnn.unsqueeze_to_4D(rows)  # [1, 1, S, head_dim]

    def forward_decode(self, q: ttnn.Tensor, k: ttnn.Tensor, rotation: Rotation) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """[1, batch, heads, head_dim] each, height-sharded, a user a core -> the same, rotated."""
        if self.decode.fused_qk:
            return ttnn.experimental.rotary_embedding_llama_fused_qk(
                q, k, rotation.cos, rotation.sin, self.turn_decode, compute_kernel_config=self.kernel
            )
        return tuple(
            ttnn.experimental.rotary_embedding_llama(
                x, rotation.cos, rotation.sin, self.turn_decode, is_decode_mode=True, compute_kernel_config=self.kernel
            )
            for x in (q, k)
        )

    def forward_prefill(self, q: ttnn.Tensor, k: ttnn.Tensor, rotation: Rotation) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """[1, heads, S, head_dim] each, interleaved in L1 -> the same, rotated. Frees q and k."""
        return tuple(self._rotated(x, rotation) for x in (q, k))

    def _rotated(self, x: ttnn.Tensor, rotation: Rotation) -> ttnn.Tensor:
        y = ttnn.experimental.rotary_embedding_llama(
            x,
            rotation.cos,
            rotation.sin,
            self.turn_prefill,
            is_decode_mode=False,
            memory_config=ttnn.L1_MEMORY_CONFIG,
            compute_kernel_config=self.kernel,
        )
        ttnn.deallocate(x)
        return y


def rotary_tables(config: QwenConfig, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, [1, 1, positions, head_dim] float32, each frequency twice in a row.

    In float32 from the first step, as Hugging Face computes them and as the model was trained: far positions times a
    frequency lose what float32 cannot hold.
    """
    frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.yarn)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    size = config.yarn.attention_factor if config.yarn else 1.0
    return tuple((f(angles) * size).repeat_interleave(2, dim=-1)[None, None] for f in (torch.cos, torch.sin))


def rotary_rows(positions: torch.Tensor, decode: DecodePlan) -> torch.Tensor:
    """[batch] positions of 0 and more -> [1, 32 * rotary_users]: each user's for all rows of its tile, first for q and,
    where they are rotated in one op, again for k.

    A look-up then lays a user's factors onto its core as a tile row, and no other op has to move them there. All in one page:
    counting them up reads and writes it once.
    """
    return positions.repeat(decode.rotary_users // len(positions)).repeat_interleave(TILE)[None]


def half_turn_matrix() -> torch.Tensor:
    """T [1, 1, 32, 32]: (x @ T)[2j] = -x[2j + 1], (x @ T)[2j + 1] = x[2j]."""
    turn = torch.zeros(1, 1, TILE, TILE)
    even = torch.arange(0, TILE, 2)
    turn[..., even, even + 1] = 1
    turn[..., even + 1, even] = -1
    return turn
