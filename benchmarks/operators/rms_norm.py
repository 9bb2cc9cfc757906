# Written by kernel-lsp (operator 2): kernel 409ee72d632bf3c1, operator 3af3a1502d71e757.
"""`rms_norm` as a CUDA operator, made by kernel-lsp from tests/export/rms_norm.cu.

Kernels and launch plan: rms_norm.cu. _kernel_runtime_1.py, beside it, compiles them at first use, by the NVRTC that
comes with PyTorch.
Verified: by benchmarks/gpu_operator.py against an fp64 reference, on the GPUs that its results name.
The kernels take x: f32[B, D]; weight: f32[D]; D % 4 == 0, on one CUDA device. PyTorch computes everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

if __package__:
    from . import _kernel_runtime_1 as _runtime
else:
    import _kernel_runtime_1 as _runtime

__all__ = ["calls", "rms_norm", "use_rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-06) -> Tensor:
    """rms_norm.cu: by CUDA kernels inside their contract, else by PyTorch. Returns out: f32[B, D].

    Takes x: f32[B, D]; weight: f32[D]; eps: float, verified at 1e-06.
    """
    return OPERATOR(x, weight, eps)


def use_rms_norm(original: Callable[..., Any], report: bool = False) -> Callable[..., Any]:
    """Return `original`, computed by these kernels where they can be; `report=True` prints, `calls()` counts."""
    return OPERATOR.use(original, {"eps": 1e-06}, report)


def _rms_norm_contract(x: Tensor, weight: Tensor, eps: float) -> _runtime.Contract:
    B, D = _runtime.sizes(x, 2)
    return _runtime.Contract(
        inputs={"x: f32[B, D]": (x, (B, D)), "weight: f32[D]": (weight, (D,))},
        results={"out: f32[B, D]": (B, D)},
        where={"D % 4 == 0": D % 4 == 0, "B * D <= 2130706432": B * D <= 2130706432},
        numbers={"eps": eps},
        backward={"min(B, 264) * D <= 2130706432": min(B, 264) * D <= 2130706432},
    )


def _rms_norm_steps(run: _runtime.Run, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    B, D = x.shape
    out = torch.empty((B, D), dtype=torch.float32, device=x.device)
    run.launch("rms_norm_rows<256>", B, 256, (x, weight, out, D, eps), "int, float")
    return out


def _rms_norm_backward_steps(
    run: _runtime.Run, grad_out: Tensor, x: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    B, D = grad_out.shape
    grad_x, grad_weight = map(torch.empty_like, (x, weight))
    partial = torch.empty((min(B, 264), D), dtype=torch.float32, device=grad_out.device)
    given = (grad_out, x, weight, grad_x, partial, B, D, eps)
    run.launch("rms_norm_backward_rows<256>", min(B, 264), 256, given, "int, int, float")
    run.launch("sum_columns", -(-D // 128), 128, (partial, grad_weight, min(B, 264), D), "int, int")
    return grad_x, grad_weight


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The PyTorch code that the kernels replace, as it was captured."""
    if eps != 1e-06:
        raise ValueError("rms_norm was captured with eps=1e-06; capture it again")
    mean_square = x.pow(2).mean(-1, keepdim=True)
    return x * torch.rsqrt(mean_square + 1e-06) * weight


# Autograd: `gradients` by the backward's kernels, all else by running rms_norm_reference again.
OPERATOR = _runtime.CudaOperator(
    __name__,
    __file__,
    kernels=("rms_norm_rows<256>", "rms_norm_backward_rows<256>", "sum_columns"),
    reference=rms_norm_reference,
    forward=_runtime.Operation("rms_norm", _rms_norm_contract, _rms_norm_steps),
    backward=_runtime.Operation("rms_norm_backward", None, _rms_norm_backward_steps, before=("grad_out",)),
    gradients=("x", "weight"),
    captured={"eps": 1e-06},
)
calls = OPERATOR.calls
