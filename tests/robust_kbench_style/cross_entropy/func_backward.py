"""softmax minus one-hot, over the batch."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def backward_fn(grad_output, log_probabilities, targets):
    gradient = log_probabilities.exp()
    gradient = gradient - F.one_hot(targets, log_probabilities.shape[1]).to(gradient.dtype)
    return gradient * (grad_output / targets.shape[0])


class AutogradFunction(torch.autograd.Function):
    backward_fn = backward_fn

    @staticmethod
    def forward(ctx, predictions, targets):
        log_probabilities = torch.log_softmax(predictions, 1)
        ctx.save_for_backward(log_probabilities, targets)
        return -log_probabilities.gather(1, targets[:, None]).mean()

    @staticmethod
    def backward(ctx, grad_output):
        return AutogradFunction.backward_fn(grad_output, *ctx.saved_tensors), None


class Model(nn.Module):
    def forward(self, predictions, targets, fn=AutogradFunction.apply):
        return fn(predictions, targets)


def get_inputs(batch_size, num_classes=10):
    return [torch.randn(batch_size, num_classes, requires_grad=True), torch.randint(0, num_classes, (batch_size,))]


input_names = ["predictions", "targets"]
