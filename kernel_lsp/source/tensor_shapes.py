"""Read the dtypes and shapes of tensors from CUDA types and from the sizes that host code names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kernel_lsp.core.dtype import DType
from kernel_lsp.plan.cuda_types import canonical_type, pointer_fits, type_size_bytes
from kernel_lsp.source.host_launches import HostLaunch, plan_expression, split_top, without_casts

_NO_ROOT = frozenset(
    ("const", "reinterpret_cast", "static_cast", "thrust", "raw_pointer_cast", "float", "double", "int", "char", "void")
)
_CASTS = re.compile(r"<[^<>]*>|\((?:const\s+)?[\w: ]+\*+\s*\)")
_SIZE = re.compile(r"(?P<tensor>\w+)\s*\.\s*size\s*\(\s*(?P<index>\d+)\s*\)")


def dtype_of(element: str) -> str | None:
    """Return the dtype of a pointer's elements, f32 for ``float4``; None for a type of no dtype."""
    name = canonical_type(element)
    exact = next((dtype for dtype in DType if canonical_type(dtype.cuda_type) == name), None)
    vector = next((dtype for dtype in DType if name.startswith(_vector_base(dtype)) and name[-1:].isdigit()), None)
    fitting = next((dtype for dtype in (DType.F32, *DType) if pointer_fits(element, dtype)), None)
    found = exact or vector or fitting
    return str(found) if found is not None else None


def element_count(element: str) -> int:
    """Return how many tensor elements one element of a pointer holds: 4 for ``float4``, else 1."""
    dtype, size = dtype_of(element), type_size_bytes(element)
    return size // DType(dtype).itemsize if dtype is not None and size else 1


def root_of(argument: str) -> str:
    """Return the host variable that an argument is made of: ``x`` for ``(float4*)x.data_ptr<float>()``."""
    names = re.findall(r"[A-Za-z_]\w*", _CASTS.sub(" ", argument))
    return next((name for name in names if name not in _NO_ROOT), argument)


def allocated_shape(launch: HostLaunch, root: str, names: Mapping[str, str]) -> list[str] | None:
    """Return the shape from ``root.size(i)`` and ``root.numel()`` in scope, else from the size of its allocation."""
    like = re.search(rf"\b{re.escape(root)}\s*=\s*[\w:]*_like\s*\(\s*(\w+)", launch.before)
    if like is not None and like[1] != root:
        return allocated_shape(launch, like[1], names)
    return _named_sizes(launch, root, names) or _created(launch, root, names) or _allocation(launch, root, names)


# --- below


def _vector_base(dtype: DType) -> str:
    return {DType.F16: "__half", DType.BF16: "__nv_bfloat16", DType.F64: "double", DType.I32: "int"}.get(dtype, "float")


def _named_sizes(launch: HostLaunch, root: str, names: Mapping[str, str]) -> list[str] | None:
    dims: dict[int, str] = {}
    for name, dim in names.items():
        value = without_casts(launch.defined.get(name, name))
        match = _SIZE.fullmatch(value)
        if match and match["tensor"] == root:
            dims[int(match["index"])] = dim
        elif re.fullmatch(rf"{re.escape(root)}\s*\.\s*numel\s*\(\s*\)", value):
            return [dim]
    return [dims[i] for i in sorted(dims)] if dims and sorted(dims) == list(range(len(dims))) else None


def _created(launch: HostLaunch, root: str, names: Mapping[str, str]) -> list[str] | None:
    """Return the shape of ``torch::empty({rows, cols}, ...)``."""
    made = rf"\b{re.escape(root)}\s*=\s*(?:torch|at)::(?:empty|zeros|ones)\s*\(\s*\{{(?P<sizes>[^{{}}]*)\}}"
    match = re.search(made, launch.before)
    shape = [plan_expression(size, names, launch.defined) for size in split_top(match["sizes"])] if match else []
    known = [each for each in shape if each is not None]
    return known if known and len(known) == len(shape) else None


def _allocation(launch: HostLaunch, root: str, names: Mapping[str, str]) -> list[str] | None:
    name = re.escape(root)
    allocated = rf"\bcudaMalloc\w*\s*\(\s*(?:\([^()]*\)\s*)?&\s*{name}\s*,(?P<size>[^;]*)\)\s*[;),]"
    filled = rf"\bcudaMemset\w*\s*\(\s*{name}\s*,[^,]*,(?P<size>[^;]*)\)\s*[;),]"
    match = re.search(allocated, launch.before) or re.search(filled, launch.before)
    if match is None:
        return None
    size = match["size"].strip()
    while (whole := without_casts(size)) in launch.defined and whole not in names:
        size = launch.defined[whole]
    factors = [factor for factor in _factors(without_casts(size)) if not factor.startswith("sizeof")]
    defined = {name: value for name, value in launch.defined.items() if name not in names}
    shape = [plan_expression(factor, names, defined) for factor in factors] or ["1"]
    known = [each for each in shape if each is not None]
    if len(known) < len(shape):
        return None
    return [" * ".join(known)] if any(each.isdigit() for each in known) else known


def _factors(product: str) -> list[str]:
    """Split a product at the top level."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(product):
        depth += (character in "([") - (character in ")]")
        if character == "*" and depth == 0:
            parts.append(product[start:index].strip())
            start = index + 1
    return [*parts, product[start:].strip()]
