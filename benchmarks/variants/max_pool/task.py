import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.pool = nn.MaxPool2d(kernel_size=size)

    def forward(self, x):
        return self.pool(x)


def get_inputs():
    return [torch.randn(64, 64, 28, 28)]


def get_init_inputs():
    return [2]
