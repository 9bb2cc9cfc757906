"""A residual block: two 3x3 convolutions with batch norm in inference, and a projected shortcut where shapes differ."""

import torch
from torch import nn
from torch.nn import functional as F


def _norm(x, scale, shift):
    return x * scale[:, None, None] + shift[:, None, None]


def forward_fn(x, weight1, scale1, shift1, weight2, scale2, shift2, shortcut, stride):
    out = F.relu(_norm(F.conv2d(x, weight1, stride=stride, padding=1), scale1, shift1))
    out = _norm(F.conv2d(out, weight2, padding=1), scale2, shift2)
    return F.relu(out + (x if shortcut is None else F.conv2d(x, shortcut, stride=stride)))


class Model(nn.Module):
    """`scale` and `shift` are a trained batch norm, folded as deployed models have it."""

    def __init__(self, in_channels, out_channels, stride):
        super().__init__()
        self.stride = stride
        self.weight1 = nn.Conv2d(in_channels, out_channels, 3).weight
        self.weight2 = nn.Conv2d(out_channels, out_channels, 3).weight
        for name in ("scale1", "scale2"):
            setattr(self, name, nn.Parameter(1 + 0.1 * torch.randn(out_channels)))
        for name in ("shift1", "shift2"):
            setattr(self, name, nn.Parameter(0.1 * torch.randn(out_channels)))
        is_projected = stride != 1 or in_channels != out_channels
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1).weight if is_projected else None

    def forward(self, x, fn=forward_fn):
        first = (self.weight1, self.scale1, self.shift1)
        second = (self.weight2, self.scale2, self.shift2)
        return fn(x, *first, *second, self.shortcut, self.stride)


def get_inputs(batch_size, in_channels, size=224):
    return [torch.randn(batch_size, in_channels, size, size)]


input_names = ["x"]
