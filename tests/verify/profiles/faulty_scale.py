"""The task that `faulty_scale.cu` does not do."""

import torch


# kernel-lsp: x=f32[N=4096]
def faulty_scale(x: torch.Tensor) -> torch.Tensor:
    return 2.0 * x
