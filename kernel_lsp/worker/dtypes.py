"""Map element types between torch's names and the launch plan's."""

from __future__ import annotations

import torch

from .failure import TargetFailure

PLAN_NAMES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}
_BY_PLAN_NAME = {name: dtype for dtype, name in PLAN_NAMES.items()}


def torch_dtype(plan_name: str) -> torch.dtype:
    """Return the torch dtype of a plan's name."""
    return _BY_PLAN_NAME[plan_name]


def plan_dtype(dtype: torch.dtype, what: str, file: str | None, line: int | None) -> str:
    """Return the plan's name of a dtype. Raises TargetFailure for a dtype without one, with `what` as its subject."""
    if dtype in PLAN_NAMES:
        return PLAN_NAMES[dtype]
    known = ", ".join(str(known).replace("torch.", "") for known in PLAN_NAMES)
    kind = "complex" if dtype.is_complex else str(dtype).replace("torch.", "")
    raise TargetFailure(
        f"{what} is {kind}, which kernels here cannot hold", file=file, line=line, next_step=f"use one of: {known}"
    )
