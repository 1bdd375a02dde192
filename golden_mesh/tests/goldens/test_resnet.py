"""The stem and a bottleneck block of a ResNet, as a program for a card is written, against torch in
float64.
"""

import torch
import torch.nn.functional as F
import ttnn

from goldens.support import assert_near

RELU = ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU)
BATCH, SIZE = 2, 32


class Conv:
    """A convolution with a batch norm folded into it. Its prepared weights serve the second call."""

    def __init__(self, chips, inputs: int, outputs: int, kernel: int, stride: int = 1, relu=True):
        self.device = chips.device
        weight = torch.randn(outputs, inputs, kernel, kernel) / (inputs * kernel**2) ** 0.5
        scale = torch.rand(outputs) + 0.5
        self.weight = (weight * scale.view(-1, 1, 1, 1)).bfloat16().double()
        self.bias = (torch.randn(outputs) * 0.1).bfloat16().double()
        self.kernel, self.stride, self.padding = kernel, stride, kernel // 2
        self.relu = relu
        self.given = (
            ttnn.from_torch(self.weight.float(), ttnn.bfloat16),
            ttnn.from_torch(self.bias.float().view(1, 1, 1, -1), ttnn.bfloat16),
        )

    def torch(self, x):
        y = F.conv2d(x, self.weight, self.bias, self.stride, self.padding)
        return y.relu() if self.relu else y

    def __call__(self, x, height: int, width: int):
        """(y, (height, width))"""
        outputs, inputs = self.weight.shape[:2]
        y, extent, self.given = ttnn.conv2d(
            input_tensor=x,
            weight_tensor=self.given[0],
            bias_tensor=self.given[1],
            device=self.device,
            in_channels=inputs,
            out_channels=outputs,
            batch_size=BATCH,
            input_height=height,
            input_width=width,
            kernel_size=(self.kernel, self.kernel),
            stride=(self.stride, self.stride),
            padding=(self.padding, self.padding),
            conv_config=ttnn.Conv2dConfig(
                weights_dtype=ttnn.bfloat16,
                activation=RELU if self.relu else None,
                shard_layout=ttnn.TensorMemoryLayout.HEIGHT_SHARDED,
            ),
            compute_config=ttnn.WormholeComputeKernelConfig(
                math_fidelity=ttnn.MathFidelity.HiFi3, fp32_dest_acc_en=True
            ),
            return_output_dim=True,
            return_weights_and_bias=True,
        )
        return y, extent


def test_a_stem_and_a_bottleneck_block(chips):
    stem = Conv(chips, 3, 64, 7, stride=2)
    narrow, middle = Conv(chips, 64, 32, 1), Conv(chips, 32, 32, 3, stride=2)
    wide = Conv(chips, 32, 128, 1, relu=False)
    shortcut = Conv(chips, 64, 128, 1, stride=2, relu=False)

    def on_chips(image):
        x = chips.put(image.permute(0, 2, 3, 1), layout=ttnn.ROW_MAJOR_LAYOUT)
        x, (height, width) = stem(x, SIZE, SIZE)
        x = ttnn.max_pool2d(
            x, batch_size=BATCH, input_h=height, input_w=width, channels=64, kernel_size=(3, 3), stride=(2, 2),
            padding=(1, 1), dilation=(1, 1),
        )  # fmt: skip
        y, extent = narrow(x, height // 2, width // 2)
        y, extent = middle(y, *extent)
        y, extent = wide(y, *extent)
        beside, _ = shortcut(x, height // 2, width // 2)
        return chips.get(ttnn.relu(ttnn.add(y, beside)))

    def in_torch(image):
        x = F.max_pool2d(stem.torch(image.double()), 3, 2, 1)
        y = wide.torch(middle.torch(narrow.torch(x))) + shortcut.torch(x)
        return y.relu().permute(0, 2, 3, 1).reshape(1, 1, -1, 128)

    for _ in range(2):  # first with weights on the host, then with prepared ones
        image = torch.randn(BATCH, 3, SIZE, SIZE).bfloat16().float()
        assert_near(on_chips(image), in_torch(image), 1e-2)
