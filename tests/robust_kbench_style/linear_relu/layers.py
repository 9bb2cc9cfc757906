"""Share layers between both files of the task."""

import torch
from torch import nn


class Affine(nn.Module):
    """Weights of a linear layer, without its forward."""

    def __init__(self, sizes: dict) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(sizes["out"], sizes["in"]) / sizes["in"] ** 0.5)
        self.b = nn.Parameter(0.1 * torch.randn(sizes["out"]))
