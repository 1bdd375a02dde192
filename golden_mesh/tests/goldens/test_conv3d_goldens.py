"""Convolutions of videos against torch's."""

import pytest
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import assert_near

ROWS = ttnn.ROW_MAJOR_LAYOUT
CASES = [  # channels, kernel size, stride, padding, padding mode, C_in_block
    (32, (3, 3, 3), (1, 1, 1), (1, 1, 1), "zeros", 0),
    (64, (1, 3, 3), (1, 2, 2), (0, 1, 1), "replicate", 32),
    (12, (2, 2, 2), (2, 2, 2), (0, 0, 0), "zeros", 0),
]


@pytest.mark.parametrize("channels, size, stride, padding, mode, block", CASES)
@pytest.mark.parametrize("place", ("host", "device"))
def test_conv3d_of_a_prepared_weight(chips, channels, size, stride, padding, mode, block, place):
    x = torch.randn(1, channels, 4, 8, 8).bfloat16().float()
    weight = torch.randn(32, channels, *size).bfloat16().float()
    bias = torch.randn(32).bfloat16().float()
    raw = ttnn.from_torch(weight, dtype=ttnn.bfloat16)
    if place == "device":
        raw = chips.put(weight, layout=ROWS)
    prepared = ttnn.experimental.prepare_conv3d_weights(
        weight_tensor=raw, C_in_block=block, device=chips.device
    )
    padded = F.pad(x.permute(0, 2, 3, 4, 1), (0, -channels % 32))
    config = ttnn.Conv3dConfig(
        C_in_block=block,
        compute_with_storage_grid_size=chips.device.compute_with_storage_grid_size(),
    )
    got = ttnn.experimental.conv3d(
        input_tensor=chips.put(padded, layout=ROWS), weight_tensor=prepared,
        bias_tensor=chips.put(bias.reshape(1, -1)), config=config, dtype=ttnn.bfloat16,
        output_channels=32, kernel_size=size, stride=stride, padding=padding, padding_mode=mode,
    )  # fmt: skip
    edges = [e for p in reversed(padding) for e in (p, p)]
    x = F.pad(x.double(), edges, mode="replicate" if mode == "replicate" else "constant")
    want = F.conv3d(x, weight.double(), bias.double(), stride).permute(0, 2, 3, 4, 1)
    assert_near(got, want, 4e-3)


def test_a_weight_on_the_host_needs_a_device():
    with pytest.raises(GoldenError, match="prepare_conv3d_weights .*needs device"):
        ttnn.experimental.prepare_conv3d_weights(
            weight_tensor=ttnn.from_torch(torch.ones(32, 32, 1, 1, 1))
        )
