"""LLaMA's RMSNorm, computed in float32 whatever the dtype is."""

from collections.abc import Callable

import torch
from torch import Tensor


def _to_dtype(name: str) -> torch.dtype:
    return getattr(torch, name.split(".")[-1])


def forward_fn(hidden_states: Tensor, weight: Tensor, eps: float) -> Tensor:
    given = hidden_states.dtype
    hidden_states = hidden_states.to(torch.float32)
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    return weight * (hidden_states * torch.rsqrt(variance + eps)).to(given)


class Model(torch.nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6, dtype: str = "torch.float32"):
        super().__init__()
        self.weight = torch.nn.Parameter((1 + 0.1 * torch.randn(hidden_size)).to(_to_dtype(dtype)))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor, fn: Callable = forward_fn) -> Tensor:
        return fn(hidden_states, self.weight, self.variance_epsilon)


def get_inputs(batch_size: int, seq_len: int, hidden_size: int, dtype: str = "torch.float32") -> list[Tensor]:
    return [torch.randn(batch_size, seq_len, hidden_size).to(_to_dtype(dtype))]


input_names = ["hidden_states"]
