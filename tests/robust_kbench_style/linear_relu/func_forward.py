"""Linear and ReLU, with the settings nested and the weights in a module of a file beside this one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from layers import Affine
from torch import Tensor, nn


def forward_fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.linear(x, w, b))


class Model(nn.Module):
    def __init__(self, layer: dict) -> None:
        super().__init__()
        self.affine = Affine(layer)

    def forward(self, x: Tensor, fn=forward_fn) -> Tensor:
        return fn(x, self.affine.w, self.affine.b)


def get_inputs(batch_size: int = 8, layer: dict | None = None, **_) -> list[Tensor]:
    return [torch.randn(batch_size, layer["in"])]


input_names = ["x"]

if __name__ == "__main__":
    print(Model({"in": 8, "out": 4})(*get_inputs(layer={"in": 8, "out": 4})))
