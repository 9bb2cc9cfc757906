"""The backward masks the gradient with what the forward kept."""

import torch
from func_forward import Model as ForwardModel
from func_forward import get_inputs, input_names
from torch.nn import functional as F


def backward_fn(grad_output, x, w, output):
    masked = grad_output * (output > 0)
    return masked @ w, masked.T @ x, masked.sum(0)


class AutogradFunction(torch.autograd.Function):
    backward_fn = staticmethod(backward_fn)

    @staticmethod
    def forward(ctx, x, w, b):
        output = F.relu(F.linear(x, w, b))
        ctx.save_for_backward(x, w, output)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        return AutogradFunction.backward_fn(grad_output, *ctx.saved_tensors)


class Model(ForwardModel):
    def forward(self, x, fn=AutogradFunction.apply):
        return super().forward(x, fn)


__all__ = ["AutogradFunction", "Model", "get_inputs", "input_names"]
