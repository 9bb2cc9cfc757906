"""Its backward: three products, of which a kernel replaces all."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def forward_fn(x, weight, bias):
    return F.linear(x, weight, bias)


def backward_fn(grad_output, x, weight):
    return grad_output @ weight, grad_output.t() @ x, grad_output.sum(dim=0)


class AutogradFunction(torch.autograd.Function):
    backward_fn = backward_fn

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return forward_fn(x, weight, bias)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return AutogradFunction.backward_fn(grad_output, x, weight)


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        linear = nn.Linear(in_features, out_features)
        self.weight = nn.Parameter(linear.weight.data.clone())
        self.bias = nn.Parameter(linear.bias.data.clone())

    def forward(self, x, fn=AutogradFunction.apply):
        return fn(x, self.weight, self.bias)


def get_inputs(batch_size: int, in_features: int) -> list:
    return [torch.randn(batch_size, in_features, requires_grad=True)]


input_names = ["x"]
