import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape=shape)

    def forward(self, x):
        return self.ln(x)


def get_inputs():
    return [torch.rand(1, 64, 256, 256)]


def get_init_inputs():
    return [(64, 256, 256)]
