# Written by kernel-lsp (operator 2): kernel 409ee72d632bf3c1, operator 790c687b26be0b20.
"""`rms_norm` as a CUDA operator, made by kernel-lsp from tests/export/rms_norm.cu.

Kernels and launch plan: rms_norm.cu. _kernel_runtime_2.py, beside it, compiles them at first use, by the NVRTC that
comes with PyTorch.
Verified: by benchmarks/gpu_operator.py against an fp64 reference, on the GPUs that its results name.
The kernels take what the `op:` and `where:` lines of FORWARD say, on one CUDA device. PyTorch computes everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

if __package__:
    from . import _kernel_runtime_2 as _runtime
else:
    import _kernel_runtime_2 as _runtime

__all__ = ["calls", "rms_norm", "use_rms_norm"]

FORWARD = """
op: rms_norm(x: f32[B, D], weight: f32[D], eps: float) -> (out: f32[B, D])
where: D % 4 == 0
where: B * D <= 2130706432
launch: rms_norm_rows<256><<<B, 256>>>(x, weight, out, int(D), float(eps))
"""
BACKWARD = """
op: rms_norm_backward(grad_out, ...) -> (grad_x, grad_weight)
where: min(B, 264) * D <= 2130706432
scratch: partial: f32[min(B, 264), D]
launch: rms_norm_backward_rows<256><<<min(B, 264), 256>>>(grad_out, x, weight, grad_x, partial, int(B), int(D),
    float(eps))
launch: sum_columns<<<ceil_div(D, 128), 128>>>(partial, grad_weight, int(min(B, 264)), int(D))
"""


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-06) -> Tensor:
    """rms_norm.cu: by CUDA kernels inside their contract, else by PyTorch. Returns out: f32[B, D].

    Takes x: f32[B, D]; weight: f32[D]; eps: float, verified at 1e-06.
    """
    return OPERATOR(x, weight, eps)


def use_rms_norm(original: Callable[..., Any], report: bool = False) -> Callable[..., Any]:
    """Return `original`, computed by these kernels where they can be; `report=True` prints, `calls()` counts."""
    return OPERATOR.use(original, {"eps": 1e-06}, report)


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The PyTorch code that the kernels replace, as it was captured."""
    if eps != 1e-06:
        raise ValueError("rms_norm was captured with eps=1e-06; capture it again")
    mean_square = x.pow(2).mean(-1, keepdim=True)
    return x * torch.rsqrt(mean_square + 1e-06) * weight


# Autograd: by BACKWARD's kernels, all else by running rms_norm_reference again.
OPERATOR = _runtime.CudaOperator(
    __name__, __file__, reference=rms_norm_reference, forward=FORWARD, backward=BACKWARD, captured={"eps": 1e-06}
)
calls = OPERATOR.calls
