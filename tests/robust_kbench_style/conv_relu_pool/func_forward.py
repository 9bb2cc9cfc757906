"""Convolution, ReLU and pooling, as the first layers of a digit classifier have them."""

import torch
import torch.nn.functional as functional


def forward_fn(x, conv_weight, conv_bias, pool_kernel_size: int, pool_stride: int):
    x = functional.conv2d(x, conv_weight, conv_bias)
    x = functional.relu(x)
    return functional.max_pool2d(x, kernel_size=pool_kernel_size, stride=pool_stride)


class Model(torch.nn.Module):
    def __init__(self, in_channels: int, out_channels: int, conv_kernel_size: int, pool: dict):
        super().__init__()
        self.conv = torch.nn.Conv2d(in_channels, out_channels, conv_kernel_size)
        self.pool = pool

    def forward(self, x, fn=forward_fn):
        return fn(x, self.conv.weight, self.conv.bias, self.pool["kernel_size"], self.pool["stride"])


def get_inputs(batch_size: int, in_channels: int, height: int, width: int):
    return [torch.rand(batch_size, in_channels, height, width)]


input_names = ["x"]
