"""Four gradients, of which one is the incoming one as it is."""

import torch
import torch.nn.functional as F
from torch import nn


def backward_fn(grad_output, embedding, weight):
    grad_shift = grad_output.sum(dim=(2, 3))
    sigmoid = torch.sigmoid(embedding)
    grad_silu = sigmoid * (1 + embedding * (1 - sigmoid))
    return (grad_shift @ weight) * grad_silu, grad_output, grad_shift.t() @ F.silu(embedding), grad_shift.sum(0)


class AutogradFunction(torch.autograd.Function):
    backward_fn = backward_fn

    @staticmethod
    def forward(ctx, embedding, image, weight, bias):
        ctx.save_for_backward(embedding, weight)
        return image + F.linear(F.silu(embedding), weight, bias)[:, :, None, None]

    @staticmethod
    def backward(ctx, grad_output):
        return AutogradFunction.backward_fn(grad_output, *ctx.saved_tensors)


class Model(nn.Module):
    def __init__(self, embedding_size: int, channels: int):
        super().__init__()
        self.linear = nn.Linear(embedding_size, channels)

    def forward(self, embedding, image, fn=AutogradFunction.apply):
        return fn(embedding, image, self.linear.weight, self.linear.bias)


def get_inputs(batch_size: int, embedding_size: int, channels: int, image_size: int = 8) -> dict:
    return {
        "embedding": torch.randn(batch_size, embedding_size, requires_grad=True),
        "image": torch.randn(batch_size, channels, image_size, image_size, requires_grad=True),
    }


input_names = ["embedding", "image"]
