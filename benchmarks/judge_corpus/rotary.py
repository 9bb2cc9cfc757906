import torch


# kernel-lsp: x=f32[B=2, T=24, H=3, 32], cosine=f32[T, 32], sine=f32[T, 32]
def rotary(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    rotated = torch.cat((-second, first), dim=-1)
    return x * cosine[:, None] + rotated * sine[:, None]
