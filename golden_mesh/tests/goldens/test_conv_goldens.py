"""Convolutions of images, rows and videos against torch's, and the weights prepared for them."""

import pytest
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.errors import GoldenError, TraceError
from golden_mesh.goldens.other_models import conv as conv_goldens
from goldens.support import EXACT, ROW_MAJOR, assert_close, assert_near, assert_same, bf16

E, RELU = ttnn.experimental, ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU)
IN_ROWS = dict(layout=ROW_MAJOR)


def on_host(weight, dtype=ttnn.float32):
    return None if weight is None else ttnn.from_torch(weight, dtype)


def flat(image):
    """[N, C, H, W] -> [1, 1, N * H * W, C]"""
    return image.permute(0, 2, 3, 1).reshape(1, 1, -1, image.shape[1])


def arguments(chips, image, weight, bias=None, **options) -> dict:
    """Keywords of a convolution of an image [N, C, H, W]. Torch's weights are put on the host."""
    batch, channels, height, width = image.shape
    if isinstance(weight, torch.Tensor):
        options = {"out_channels": weight.shape[0]} | options
        weight, bias = on_host(weight), on_host(bias)
    return dict(
        input_tensor=chips.put(flat(image), **IN_ROWS), weight_tensor=weight, bias_tensor=bias,
        device=chips.device, in_channels=channels, batch_size=batch, input_height=height,
        input_width=width, **(dict(kernel_size=(3, 3), compute_config=EXACT) | options),
    )  # fmt: skip


def conv(*args, **options):
    return ttnn.conv2d(**arguments(*args, **options))


def wanted(image, weight, bias=None, **options) -> torch.Tensor:
    bias = None if bias is None else bias.double().flatten()
    return F.conv2d(image.double(), weight.double(), bias, **options)


REPLICATE = type(ttnn.Conv2dConfig().padding_mode).Replicate
# Shapes of the image and of the weight, and options; torch's function of image, weight and bias, if its options differ.
CASES = {
    "plain": ((2, 32, 10, 9), (48, 32, 3, 3), {}),
    "padded": ((1, 16, 9, 7), (32, 16, 3, 3), dict(padding=(1, 2))),
    "strided": ((1, 16, 11, 12), (32, 16, 3, 3), dict(stride=(2, 1), padding=(1, 1))),
    "dilated": ((1, 16, 12, 12), (32, 16, 3, 3), dict(dilation=(2, 2), padding=(2, 2))),
    "grouped": ((1, 64, 8, 8), (64, 32, 3, 3), dict(groups=2, padding=(1, 1))),
    "depthwise": ((1, 32, 8, 8), (32, 1, 3, 3), dict(groups=32, padding=(1, 1))),
    "one by one": ((1, 32, 7, 7), (64, 32, 1, 1), {}),
    "wide kernel": ((1, 16, 8, 10), (32, 16, 5, 3), dict(padding=(2, 1))),
    "the stem of a resnet": ((2, 3, 32, 32), (64, 3, 7, 7), dict(stride=(2, 2), padding=(3, 3))),
    "the mode of padding": (
        (1, 16, 9, 8), (32, 16, 3, 3),
        dict(padding=(1, 1), conv_config=ttnn.Conv2dConfig(padding_mode=REPLICATE)),
        lambda image, *given: wanted(F.pad(image, (1, 1, 1, 1), mode="replicate"), *given),
    ),
    "padding of four sides": (
        (1, 16, 9, 8), (32, 16, 3, 3), dict(padding=(0, 1, 2, 0)),
        lambda image, *given: wanted(F.pad(image, (2, 0, 0, 1)), *given),
    ),
    "an activation": (
        (1, 16, 9, 8), (32, 16, 3, 3), dict(conv_config=ttnn.Conv2dConfig(activation=RELU)),
        lambda *given: wanted(*given).relu(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("band", (None, 1), ids=("whole", "in bands"))
@pytest.mark.parametrize("case", CASES)
def test_conv2d(chips, monkeypatch, case, band):
    """A large image is computed in bands of rows. Prepared weights serve the next call."""
    if band:
        monkeypatch.setattr(conv_goldens, "_BAND", band)
    image, shape, options, *in_torch = CASES[case]
    image, weight, bias = bf16(*image), bf16(*shape), bf16(1, 1, 1, shape[0])
    how = options | dict(kernel_size=shape[2:], return_output_dim=True, return_weights_and_bias=True)
    y, extent, prepared = conv(chips, image, weight, bias, **how)
    again, *_ = conv(chips, image, *prepared, out_channels=shape[0], **how)
    want = in_torch[0](image, weight, bias) if in_torch else wanted(image, weight, bias, **options)
    assert tuple(extent) == tuple(want.shape[2:])
    for result in (y, again):
        assert_close(result, flat(want), steps=2)


def test_a_bias_has_the_weights_dtype(chips):
    """Of an image of zeros the result is the bias: beside 64 the last bit of bfloat8_b is 1."""
    bias = torch.full((1, 1, 1, 32), 1.25)
    bias[..., 0] = 64
    config = ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat8_b)
    y = conv(chips, torch.zeros(1, 32, 8, 8), bf16(32, 32, 3, 3), bias, conv_config=config, dtype=ttnn.bfloat16)
    want = torch.cat((torch.tensor([64.0]), torch.ones(15), torch.full((16,), 1.25)))
    assert_same(y, want.expand(1, 1, 36, 32).bfloat16())


@pytest.mark.parametrize("transposed, groups", ((False, 1), (True, 1), (True, 2)))
def test_weights_prepared_beforehand(chips, transposed, groups):
    image, weight, bias = bf16(1, 32, 8, 8), bf16(32, 32 // groups, 3, 3), bf16(1, 1, 1, 32)
    config, name = ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat16), "conv_transpose2d" if transposed else "conv"
    shape = dict(
        in_channels=32, out_channels=32, batch_size=1, input_height=8, input_width=8, kernel_size=(3, 3), stride=(1, 1),
        padding=(1, 1), dilation=(1, 1), groups=groups, device=chips.device, conv_config=config,
        input_memory_config=ttnn.DRAM_MEMORY_CONFIG, input_layout=ROW_MAJOR, input_dtype=ttnn.bfloat16,
    )  # fmt: skip
    how = dict(weights_format="IOHW" if transposed else "OIHW", has_bias=True)
    prepared = getattr(ttnn, f"prepare_{name}_weights")(weight_tensor=on_host(weight), **how, **shape)
    added = getattr(ttnn, f"prepare_{name}_bias")(bias_tensor=on_host(bias), **shape)
    how = dict(padding=(1, 1), conv_config=config, out_channels=32, groups=groups)
    run, in_torch = (ttnn.conv_transpose2d, F.conv_transpose2d) if transposed else (ttnn.conv2d, F.conv2d)
    want = in_torch(image.double(), weight.double(), bias.double().flatten(), padding=1, groups=groups)
    assert_close(run(**arguments(chips, image, prepared, added, **how)), flat(want), steps=2)


def test_weights_of_a_block_float_share_exponents_between_output_channels(chips):
    image, weight = bf16(1, 32, 6, 6), bf16(32, 32, 1, 1)
    weight[0] *= 512  # the 15 channels beside it lose nearly all
    config = ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat8_b)
    y = conv(chips, image, weight, kernel_size=(1, 1), conv_config=config)
    rows = ttnn.from_torch(weight.view(32, 32).T, ttnn.bfloat8_b, layout=ttnn.TILE_LAYOUT)
    assert_close(y, flat(image).double() @ ttnn.to_torch(rows).double())
    assert (chips.get(y)[0].double() - flat(wanted(image, weight))).abs().max() > 1


def test_refusals(chips):
    """A prepared weight of another shape, and a weight on the host inside a capture."""
    prepared, image = chips.put(torch.zeros(1, 1, 64, 32)), bf16(1, 16, 6, 6)
    with pytest.raises((GoldenError, RuntimeError)):
        conv(chips, image, prepared, out_channels=32)
    given = arguments(chips, image, bf16(32, 16, 3, 3))
    ttnn.conv2d(**given)
    ttnn.begin_trace_capture(chips.device, cq_id=0)
    with pytest.raises(TraceError, match="host"):
        ttnn.conv2d(**given)


@pytest.mark.parametrize("padding", (2, (1, 0)))
def test_conv1d(chips, padding):
    x, weight = bf16(2, 32, 21), bf16(48, 32, 4)
    ends = (padding, padding) if isinstance(padding, int) else padding
    y, length = ttnn.conv1d(
        input_tensor=chips.put(x.transpose(1, 2), **IN_ROWS), weight_tensor=on_host(weight),
        device=chips.device, in_channels=32, out_channels=48, batch_size=2, input_length=21,
        kernel_size=4, stride=2, padding=padding, compute_config=EXACT, return_output_dim=True,
    )  # fmt: skip
    want = F.conv1d(F.pad(x.double(), ends), weight.double(), stride=2)
    assert length == want.shape[2]
    assert_close(y, want.transpose(1, 2).reshape(1, 1, -1, 48))


@pytest.mark.parametrize("groups", (1, 2))
@pytest.mark.parametrize("stride, padding, more", ((1, 0, 0), (2, 1, 1)))
def test_conv_transpose2d(chips, stride, padding, more, groups):
    image, weight, bias = bf16(2, 32, 5, 6), bf16(32, 32 // groups, 3, 3), bf16(1, 1, 1, 32)
    how = dict(stride=(stride,) * 2, padding=(padding,) * 2, output_padding=(more,) * 2, groups=groups)
    given = arguments(chips, image, weight, bias, return_output_dim=True, return_weights_and_bias=True, **how)
    y, extent, prepared = ttnn.conv_transpose2d(**given)
    again, *_ = ttnn.conv_transpose2d(**given | dict(zip(("weight_tensor", "bias_tensor"), prepared)))
    want = F.conv_transpose2d(image.double(), weight.double(), bias.double().flatten(), **how)
    assert tuple(extent) == tuple(want.shape[2:])
    for result in (y, again):
        assert_close(result, flat(want), steps=2)


VIDEOS = [  # channels, kernel size, stride, padding, padding mode, C_in_block, groups
    (32, (3, 3, 3), (1, 1, 1), (1, 1, 1), "zeros", 0, 1),
    (64, (1, 3, 3), (1, 2, 2), (0, 1, 1), "replicate", 32, 1),
    (12, (2, 2, 2), (2, 2, 2), (0, 0, 0), "zeros", 0, 1),
    (64, (1, 3, 3), (1, 1, 1), (0, 1, 1), "zeros", 0, 2),
]


@pytest.mark.parametrize("channels, size, stride, padding, mode, block, groups", VIDEOS)
@pytest.mark.parametrize("place", ("host", "device", "not prepared"))
def test_conv3d(chips, channels, size, stride, padding, mode, block, groups, place):
    x, weight, bias = bf16(1, channels, 4, 8, 8), bf16(32, channels // groups, *size), bf16(1, 32)
    how = dict(C_in_block=block)
    if place == "not prepared":
        prepared = on_host(F.pad(weight, (0,) * 7 + (-channels % 32,)), ttnn.bfloat16)
    else:
        raw = chips.put(weight, **IN_ROWS) if place == "device" else on_host(weight, ttnn.bfloat16)
        prepared = E.prepare_conv3d_weights(weight_tensor=raw, device=chips.device, groups=groups, **how)
    padded = F.pad(x.permute(0, 2, 3, 4, 1), (0, -channels % 32))
    grid = chips.device.compute_with_storage_grid_size()
    got = E.conv3d(
        input_tensor=chips.put(padded, **IN_ROWS), weight_tensor=prepared, bias_tensor=chips.put(bias),
        config=ttnn.Conv3dConfig(compute_with_storage_grid_size=grid, **how), dtype=ttnn.bfloat16, output_channels=32,
        kernel_size=size, stride=stride, padding=padding, padding_mode=mode, groups=groups, device=chips.device,
    )  # fmt: skip
    edges = [e for p in reversed(padding) for e in (p, p)]
    x = F.pad(x.double(), edges, mode="replicate" if mode == "replicate" else "constant")
    want = F.conv3d(x, weight.double(), bias[0].double(), stride, groups=groups).permute(0, 2, 3, 4, 1)
    assert_near(got, want, 4e-3)


def test_an_image_of_conv3d_on_the_host_is_refused():
    weight = on_host(torch.ones(32, 64, 1, 3, 3), ttnn.bfloat16)
    with pytest.raises(GoldenError, match="input_tensor is a tensor on the host"):
        E.conv3d(
            input_tensor=ttnn.from_torch(torch.ones(1, 4, 4, 6, 64)), weight_tensor=weight, dtype=ttnn.bfloat16,
            output_channels=32, kernel_size=(1, 3, 3),
        )  # fmt: skip


def test_a_weight_of_conv3d_on_the_host_needs_a_device():
    with pytest.raises(GoldenError, match="prepare_conv3d_weights .*needs device"):
        E.prepare_conv3d_weights(weight_tensor=ttnn.from_torch(torch.ones(32, 32, 1, 1, 1)))
