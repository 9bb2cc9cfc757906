import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        shifted = torch.cat((torch.zeros_like(x.select(1, 0).unsqueeze(1)), x), dim=1)[:-1]
        return torch.cumsum(shifted, dim=1)


def get_inputs():
    return [torch.rand(32768, 32768)]


def get_init_inputs():
    return []
