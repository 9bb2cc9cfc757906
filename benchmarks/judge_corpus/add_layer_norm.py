import torch
import torch.nn.functional as F


# kernel-lsp: x=f32[B=40, D=192], residual=f32[B, D], weight=f32[D], bias=f32[D]
def add_layer_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x + residual, (x.shape[-1],), weight, bias, 1e-5)
