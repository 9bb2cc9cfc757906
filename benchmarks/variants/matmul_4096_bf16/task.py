import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


def get_inputs():
    return [torch.rand(4096, 4096, dtype=torch.bfloat16), torch.rand(4096, 4096, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
