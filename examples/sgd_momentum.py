"""One step of SGD with Nesterov momentum and weight decay, as a function of its state: how ResNets are trained."""

import torch


# kernel-lsp: weight=f32[1024, 1024], gradient=f32[1024, 1024], velocity=f32[1024, 1024], learning_rate=0.1
def sgd_momentum_step(
    weight: torch.Tensor, gradient: torch.Tensor, velocity: torch.Tensor, learning_rate: float
) -> tuple[torch.Tensor, torch.Tensor]:
    gradient = gradient + 1e-4 * weight
    velocity = 0.9 * velocity + gradient
    weight = weight - learning_rate * (gradient + 0.9 * velocity)
    return weight, velocity
