"""Convolutions against torch's, and the weights that are prepared for them."""

import pytest
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.errors import GoldenError, TraceError
from goldens.support import EXACT, assert_close, assert_near

RELU = ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU)


def draw(*shape):
    return torch.randn(shape).bfloat16().float()


def on_host(weight, dtype=ttnn.float32):
    return ttnn.from_torch(weight, dtype)


def flat(image):
    """[N, C, H, W] -> [1, 1, N * H * W, C]"""
    return image.permute(0, 2, 3, 1).reshape(1, 1, -1, image.shape[1])


def conv(chips, image, weight, bias=None, **options):
    """ttnn.conv2d of an image [N, C, H, W] on the device. The weights are passed on unchanged."""
    batch, channels, height, width = image.shape
    options = dict(kernel_size=(3, 3), compute_config=EXACT, out_channels=weight.shape[0]) | options
    return ttnn.conv2d(
        input_tensor=chips.put(flat(image), layout=ttnn.ROW_MAJOR_LAYOUT),
        weight_tensor=weight,
        bias_tensor=bias,
        device=chips.device,
        in_channels=channels,
        batch_size=batch,
        input_height=height,
        input_width=width,
        **options,
    )


CASES = {
    "plain": ((2, 32, 10, 9), (48, 32, 3, 3), {}),
    "padded": ((1, 16, 9, 7), (32, 16, 3, 3), dict(padding=(1, 2))),
    "strided": ((1, 16, 11, 12), (32, 16, 3, 3), dict(stride=(2, 1), padding=(1, 1))),
    "dilated": ((1, 16, 12, 12), (32, 16, 3, 3), dict(dilation=(2, 2), padding=(2, 2))),
    "grouped": ((1, 64, 8, 8), (64, 32, 3, 3), dict(groups=2, padding=(1, 1))),
    "depthwise": ((1, 32, 8, 8), (32, 1, 3, 3), dict(groups=32, padding=(1, 1))),
    "one by one": ((1, 32, 7, 7), (64, 32, 1, 1), dict(kernel_size=(1, 1))),
    "wide kernel": ((1, 16, 8, 10), (32, 16, 5, 3), dict(kernel_size=(5, 3), padding=(2, 1))),
}


@pytest.mark.parametrize("case", CASES)
def test_conv2d(chips, case):
    image, shape, options = CASES[case]
    image, weight, bias = draw(*image), draw(*shape), draw(1, 1, 1, shape[0])
    y, extent = conv(
        chips, image, on_host(weight), on_host(bias), return_output_dim=True, **options
    )
    torch_options = {n: v for n, v in options.items() if n != "kernel_size"}
    want = F.conv2d(image.double(), weight.double(), bias.double().flatten(), **torch_options)
    assert tuple(extent) == tuple(want.shape[2:])
    assert_close(y, flat(want), steps=2)


def test_the_padding_mode_of_the_config(chips):
    image, weight = draw(1, 16, 9, 8), draw(32, 16, 3, 3)
    config = ttnn.Conv2dConfig(padding_mode=type(ttnn.Conv2dConfig().padding_mode).Replicate)
    y = conv(chips, image, on_host(weight), padding=(1, 1), conv_config=config)
    want = F.conv2d(F.pad(image, (1, 1, 1, 1), mode="replicate"), weight)
    assert_close(y, flat(want), steps=2)


def test_padding_of_four_sides(chips):
    image, weight = draw(1, 16, 8, 9), draw(32, 16, 3, 3)
    y = conv(chips, image, on_host(weight), padding=(0, 1, 2, 0))
    want = F.conv2d(F.pad(image.double(), (2, 0, 0, 1)), weight.double())
    assert_close(y, flat(want))


def test_a_weight_on_the_device_is_the_weight_on_the_host(chips):
    image, weight, bias = draw(1, 16, 8, 8), draw(32, 16, 3, 3), draw(1, 1, 1, 32)
    row_major = dict(layout=ttnn.ROW_MAJOR_LAYOUT)
    there = chips.put(weight, **row_major), chips.put(bias, **row_major)
    want = F.conv2d(image.double(), weight.double(), bias.double().flatten())
    y = conv(chips, image, *there)
    assert_close(y, flat(want), steps=2)


@pytest.mark.parametrize("groups", (1, 2))
def test_prepared_weights_serve_later_calls(chips, groups):
    first, second = draw(1, 32, 8, 8), draw(1, 32, 8, 8)
    weight, bias = draw(48, 32 // groups, 3, 3), draw(1, 1, 1, 48)
    options = dict(groups=groups, padding=(1, 1))
    given = on_host(weight), on_host(bias)
    _, prepared = conv(chips, first, *given, return_weights_and_bias=True, **options)
    y, again = conv(
        chips, second, *prepared, return_weights_and_bias=True, out_channels=48, **options
    )
    want = F.conv2d(
        second.double(), weight.double(), bias.double().flatten(), padding=1, groups=groups
    )
    assert_close(y, flat(want), steps=2)
    assert_close(again[0], [x.double() for x in chips.get(prepared[0])], ttnn.float32)


def test_weights_prepared_beforehand(chips):
    image, weight, bias = draw(1, 32, 8, 8), draw(64, 32, 3, 3), draw(1, 1, 1, 64)
    config = ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat16)
    shape = dict(
        in_channels=32, out_channels=64, batch_size=1, input_height=8, input_width=8, kernel_size=(3, 3),
        stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1, device=chips.device, conv_config=config,
        input_memory_config=ttnn.DRAM_MEMORY_CONFIG, input_layout=ttnn.ROW_MAJOR_LAYOUT, input_dtype=ttnn.bfloat16,
    )  # fmt: skip
    prepared = ttnn.prepare_conv_weights(
        weight_tensor=on_host(weight), weights_format="OIHW", has_bias=True, **shape
    )
    added = ttnn.prepare_conv_bias(bias_tensor=on_host(bias), **shape)
    y = conv(chips, image, prepared, added, padding=(1, 1), conv_config=config, out_channels=64)
    want = F.conv2d(image.double(), weight.double(), bias.double().flatten(), padding=1)
    assert_close(y, flat(want), steps=2)


def test_weights_of_a_block_float_share_exponents_between_output_channels(chips):
    image, weight = draw(1, 32, 6, 6), draw(32, 32, 1, 1)
    weight[0] *= 512  # the 15 channels beside it lose nearly all
    config = ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat8_b)
    y = conv(chips, image, on_host(weight), kernel_size=(1, 1), conv_config=config)
    rows = ttnn.from_torch(weight.view(32, 32).T, ttnn.bfloat8_b, layout=ttnn.TILE_LAYOUT)
    want = flat(image).double() @ ttnn.to_torch(rows).double()
    assert_close(y, want)
    assert (chips.get(y)[0].double() - flat(F.conv2d(image, weight))).abs().max() > 1


def test_the_activation_of_the_config(chips):
    image, weight = draw(1, 16, 6, 6), draw(32, 16, 3, 3)
    y = conv(chips, image, on_host(weight), conv_config=ttnn.Conv2dConfig(activation=RELU))
    want = F.conv2d(image.double(), weight.double()).relu()
    assert_close(y, flat(want))


def test_a_large_image_is_computed_in_bands(chips, monkeypatch):
    from golden_mesh.goldens import conv as module

    monkeypatch.setattr(module, "_BAND", 1)
    image, weight = draw(2, 16, 9, 7), draw(32, 16, 3, 3)
    y = conv(chips, image, on_host(weight), stride=(2, 2), padding=(1, 1))
    want = F.conv2d(image.double(), weight.double(), stride=2, padding=1)
    assert_close(y, flat(want))


def test_the_default_kernel_is_near(chips):
    """Without a config: a bfloat16 dest."""
    image, weight = draw(1, 32, 8, 8), draw(32, 32, 3, 3)
    y = conv(chips, image, on_host(weight, ttnn.bfloat16), compute_config=None)
    want = F.conv2d(image.double(), weight.double())
    assert_near(y, flat(want), 2e-2)


@pytest.mark.parametrize("padding", (2, (1, 0)))
def test_conv1d(chips, padding):
    x, weight = draw(2, 32, 21), draw(48, 32, 4)
    ends = (padding, padding) if isinstance(padding, int) else padding
    y, length = ttnn.conv1d(
        input_tensor=chips.put(x.transpose(1, 2), layout=ttnn.ROW_MAJOR_LAYOUT),
        weight_tensor=on_host(weight),
        device=chips.device,
        in_channels=32,
        out_channels=48,
        batch_size=2,
        input_length=21,
        kernel_size=4,
        stride=2,
        padding=padding,
        compute_config=EXACT,
        return_output_dim=True,
    )
    want = F.conv1d(F.pad(x.double(), ends), weight.double(), stride=2)
    assert length == want.shape[2]
    assert_close(y, want.transpose(1, 2).reshape(1, 1, -1, 48))


def test_a_weight_of_another_shape_is_refused(chips):
    prepared = chips.put(torch.zeros(1, 1, 64, 32))
    with pytest.raises((GoldenError, RuntimeError)):
        conv(chips, draw(1, 16, 6, 6), prepared, out_channels=32)


def test_a_weight_on_the_host_is_refused_inside_a_capture(chips):
    image, weight = draw(1, 16, 6, 6), on_host(draw(32, 16, 3, 3))
    x = chips.put(flat(image), layout=ttnn.ROW_MAJOR_LAYOUT)
    options = dict(
        input_tensor=x, weight_tensor=weight, device=chips.device, in_channels=16, out_channels=32, batch_size=1,
        input_height=6, input_width=6, kernel_size=(3, 3),
    )  # fmt: skip
    ttnn.conv2d(**options)
    ttnn.begin_trace_capture(chips.device, cq_id=0)
    with pytest.raises(TraceError, match="host"):
        ttnn.conv2d(**options)


@pytest.mark.parametrize("groups", (1, 2))
@pytest.mark.parametrize("stride, padding, more", ((1, 0, 0), (2, 1, 1)))
def test_conv_transpose2d(chips, stride, padding, more, groups):
    image, weight, bias = draw(2, 32, 5, 6), draw(32, 32 // groups, 3, 3), draw(1, 1, 1, 32)
    y, extent = ttnn.conv_transpose2d(
        input_tensor=chips.put(flat(image), layout=ttnn.ROW_MAJOR_LAYOUT),
        weight_tensor=on_host(weight),
        bias_tensor=on_host(bias),
        device=chips.device,
        in_channels=32,
        out_channels=32,
        batch_size=2,
        input_height=5,
        input_width=6,
        kernel_size=(3, 3),
        stride=(stride, stride),
        padding=(padding, padding),
        output_padding=(more, more),
        groups=groups,
        compute_config=EXACT,
        return_output_dim=True,
    )
    want = F.conv_transpose2d(
        image.double(), weight.double(), bias.double().flatten(), stride, padding, more, groups
    )
    assert tuple(extent) == tuple(want.shape[2:])
    assert_close(y, flat(want), steps=2)
