import torch
import torch.nn.functional as F


# kernel-lsp: x=f32[N=2, C=3, H=20, W=22]
def max_pool(x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
