"""What slices read of tensors."""

import hashlib

import torch

from models.demos.qwen25_7b.config.rope import Rope
from models.demos.qwen25_7b.plans.slices import VERSION, Constant, KeyScaling, Projection, TensorRange, WholeTensor

ROPE = Rope(theta=1e4, scaling=None, context=256)
TENSORS = {
    "w": torch.arange(24 * 6).view(24, 6).bfloat16(),
    "v": -torch.arange(24 * 6).view(24, 6).bfloat16(),
    "bias": torch.arange(24).float(),
}


def test_a_change_of_the_slices_needs_a_new_cache_version():
    """Without a new version, old cached tiles would be used as new ones."""
    slices = [
        Projection(0, (TensorRange("v", 3, 5), Constant(4)), 6),
        Projection(0, (TensorRange("w", 0, 8, pairs=True),), 6),
        Projection(1, (Constant(1), TensorRange("w", 1, 4)), 24),
        Projection(0, (TensorRange("bias", 8, 8, pairs=True),), 1),
        Projection(
            0,
            (
                TensorRange("w", 0, 8, True, KeyScaling("bias", 16)),
                TensorRange("w", 8, 8, True, KeyScaling("bias", 16, True)),
            ),
            6,
        ),
        *(
            Projection(0, (TensorRange("bias", 16, 8, True, KeyScaling("bias", 16, False, ROPE, part)),), 1)
            for part in (None, "plain", "centered")
        ),
        WholeTensor("v", (24, 6), 6),
    ]
    values = [weight_slice.read(TENSORS.__getitem__) for weight_slice in slices]
    assert values[0].dtype == torch.bfloat16, "a silent float32 copy would double the memory of a load"
    content = b"".join(each.float().numpy().tobytes() for each in values)
    assert (VERSION, hashlib.sha256(content).hexdigest()[:16]) == (6, "de4eabb9b28c0bdc")
