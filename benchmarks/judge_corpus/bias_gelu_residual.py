import torch
import torch.nn.functional as F


# kernel-lsp: x=f32[B=40, D=150], bias=f32[D], residual=f32[B, D]
def bias_gelu_residual(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return residual + F.gelu(x + bias)
