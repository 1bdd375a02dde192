"""TtHeadNorms: RMSNorm of each head of q and k, before the rotation. HF: Qwen3's self_attn.q_norm and k_norm."""

from typing import Optional

import ttnn

from ..plans.model_table import Layer
from ..weights.model_weights import BuildShard
from .linear import compute_config
from .placement import place


class TtHeadNorms:
    """y = x / sqrt(mean(x^2) + eps) * weight for each head of q, k. weights: [head_dim / 32, 32], in rotary pairs."""

    def __init__(self, mesh_device: ttnn.MeshDevice, layer: Layer, build: BuildShard):
        self.epsilon = layer.config.rms_norm_eps
        self.kernel = compute_config()
        self.weights = [place(norm, mesh_device, build) for norm in layer.head_norms]

    @classmethod
    def make(cls, mesh_device: ttnn.MeshDevice, layer: Layer, build: BuildShard) -> "Optional[TtHeadNorms]":
        """None for a model without these norms."""
        return cls(mesh_device, layer, build) if layer.head_norms else None

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
