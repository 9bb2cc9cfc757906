"""A first launch plan for a kernel that has none, drafted from its signature for a person to complete."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import KernelParameter, KernelSignature
from kernel_lsp.plan.cuda_types import INTEGER_RANGES, canonical_type, pointer_fits, scalar_type

BLOCK = 256
"""Threads of a drafted launch, where the file says nothing of it."""


def draft_plan(signatures: Sequence[KernelSignature], task: str = "model.py::symbol") -> str:
    """Return plan lines for the last kernel: `const` pointers are inputs, the others results, and a parameter named as
    a size is a dim. Empty without a kernel that has both."""
    signature = next((each for each in reversed(signatures) if any(_is_result(p) for p in each.parameters)), None)
    if signature is None:
        return ""
    dims = [p.name.upper() for p in signature.parameters if _is_integer(p)] or ["N"]
    shape = f"[{dims[0]}]"
    inputs = [f"{p.name}: {_dtype(p)}{shape}" for p in signature.parameters if p.is_pointer and p.is_const]
    numbers = [f"{p.name}: float" for p in signature.parameters if not p.is_pointer and not _is_integer(p)]
    results = [f"{p.name}: {_dtype(p)}{shape}" for p in signature.parameters if _is_result(p)]
    arguments = ", ".join(p.name.upper() if _is_integer(p) else p.name for p in signature.parameters)
    name = signature.name.rpartition("::")[2]
    return "\n".join(
        (
            "// kernel-lsp: 1",
            f"// task: {task}",
            f"// op: {name}({', '.join((*inputs, *numbers))}) -> ({', '.join(results)})",
            f"// launch: {signature.name}<<<({dims[0]} + {BLOCK - 1}) / {BLOCK}, {BLOCK}>>>({arguments})",
        )
    )


def _is_result(parameter: KernelParameter) -> bool:
    return parameter.is_pointer and not parameter.is_const


def _is_integer(parameter: KernelParameter) -> bool:
    return not parameter.is_pointer and scalar_type(parameter.element) in INTEGER_RANGES


def _dtype(parameter: KernelParameter) -> str:
    """Return the dtype of the pointer's elements, f32 where their type is unknown."""
    exact = (dtype for dtype in DType if canonical_type(dtype.cuda_type) == canonical_type(parameter.element))
    fitting = (dtype for dtype in (DType.F32, *DType) if pointer_fits(parameter.element, dtype))
    return str(next(exact, next(fitting, DType.F32)))
