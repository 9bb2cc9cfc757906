"""Select the smallest PyTorch headers for an extension's host code.

<torch/extension.h> includes the C++ frontend, and even <torch/types.h> declares all operators. Most extensions use a
tensor, a few operators and a type dispatch, and bind functions: parsing only these takes a quarter of the time if
operator headers skip what they do not need. Code that fails to compile with lean headers is compiled with the next
larger set.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.toolchain.extension.binding import REPLACED, light_binding

PER_OPERATOR = "AT_PER_OPERATOR_HEADERS"
"""Macro that makes PyTorch's headers include single operators' headers where possible."""
TENSORS = """#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <optional>
namespace torch {
using namespace at;
using std::nullopt;
using std::optional;
using Dtype = at::ScalarType;
constexpr auto kUInt8 = at::kByte;
constexpr auto kInt8 = at::kChar;
constexpr auto kInt16 = at::kShort;
constexpr auto kInt32 = at::kInt;
constexpr auto kInt64 = at::kLong;
constexpr auto kFloat16 = at::kHalf;
constexpr auto kFloat32 = at::kFloat;
constexpr auto kFloat64 = at::kDouble;
}
"""
"""Tensor factories, and with them the common includes of all operator headers. Names in `torch` are those of
<torch/types.h>."""
PYBIND11 = "#include <torch/csrc/utils/pybind.h>\n"
OPERATORS = f"#include <torch/types.h>\n{PYBIND11}"
FRONTEND = "#include <torch/extension.h>\n"
LIBRARY = "#include <torch/library.h>\n"
OF_TENSORS = ("empty", "empty_like", "zeros", "zeros_like")
"""Operators in `TENSORS`."""
LEAN_CUDA = {
    "ATen/cuda/Exceptions.h": """#pragma once
#include <c10/cuda/CUDAException.h>
#define AT_CUDA_CHECK(EXPR) C10_CUDA_CHECK(EXPR)
""",
    "ATen/cuda/CUDAContext.h": """#pragma once
#include <ATen/cuda/Exceptions.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
""",
}
"""Streams and errors, without the libraries that the full headers include (cuBLAS, cuSPARSE, cuSOLVER)."""
LEAN = (*LEAN_CUDA, *(f"ATen/ops/{name}.h" for name in OF_TENSORS))
"""Headers reduced to what extensions need; used operators' headers are added."""

_FRONTEND_NAME = re.compile(r"torch::(nn|optim|data|jit|serialize|autograd)\b")
_NAME = re.compile(r"\b(?:torch|at)::(\w+)")
_VALUES = "Tensor TensorOptions ScalarType Dtype Scalar IntArrayRef ArrayRef Device DeviceType Layout MemoryFormat Half"
_TYPES = frozenset([*_VALUES.split(), "BFloat16", "dtype", "device", "layout", "optional", "nullopt", "cuda"])
"""Names in <ATen/core/Tensor.h>; `at::cuda` has its own headers, included by their users."""
_CONSTANT = re.compile(r"k[A-Z]\w*")
_NEEDS_OPERATORS = re.compile(r"\busing\s+namespace\b|\brequires_grad\b")
"""Requires all operators: an unqualified call may resolve differently with fewer declarations, and only `torch`'s own
factories create tensors that require a gradient."""
_HEAVY = re.compile(r"^#include <ATen/(?:Context|DeviceGuard|TensorUtils|TracerMode)\.h>\n", re.MULTILINE)
_LACKING = re.compile(r"\b(?:at|torch|c10)\b|declared|not a member|incomplete type|does not name a type|no matching")


@dataclass(frozen=True)
class Headers:
    """`prelude` can be precompiled, `operators` are included in addition; `replaced` are patterns of the header names
    that these two replace. `lean` are the names of headers replaced by their `lean_text`."""

    prelude: str
    operators: str = ""
    replaced: tuple[str, ...] = ()
    macros: tuple[str, ...] = ()
    lean: tuple[str, ...] = ()

    def without_replaced(self, text: str) -> str:
        """Remove the includes of replaced headers, preserving lines."""
        if not self.replaced:
            return text
        names = "|".join(self.replaced)
        return re.sub(rf"^[ \t]*#[ \t]*include[ \t]*<(?:{names})>", "", text, flags=re.MULTILINE)


WHOLE = Headers(FRONTEND)
ALL_OPERATORS = Headers(OPERATORS, replaced=("torch/extension.h", "torch/all.h", "torch/torch.h"))


def headers_for(text: str, includes: Sequence[Path]) -> tuple[Headers, ...]:
    """Return the host code's headers, then alternatives if a name is missing. `includes` are PyTorch's folders."""
    if _FRONTEND_NAME.search(text):
        return (WHOLE,)
    if _NEEDS_OPERATORS.search(text):
        return (ALL_OPERATORS,)
    names = sorted(set(_NAME.findall(text)) - _TYPES)
    operators = [name for name in names if not _CONSTANT.fullmatch(name)]
    if not all(any((folder / f"ATen/ops/{name}.h").is_file() for folder in includes) for name in operators):
        return (ALL_OPERATORS,)
    lines = [f"#include <ATen/ops/{name}.h>\n" for name in operators] + ([LIBRARY] if "TORCH_LIBRARY" in text else [])
    replaced = (*ALL_OPERATORS.replaced, "torch/types.h", "ATen/ATen.h")
    lean = (*LEAN, *(f"ATen/ops/{name}.h" for name in operators))
    binding = light_binding(text, includes)
    prelude, replaced = (binding + TENSORS, (*replaced, *REPLACED)) if binding else (TENSORS + PYBIND11, replaced)
    return (Headers(prelude, "".join(lines), replaced, (PER_OPERATOR,), lean), ALL_OPERATORS)


def lean_text(name: str, text: str) -> str:
    """Return a PyTorch header without its most expensive includes that its declarations do not need."""
    return LEAN_CUDA.get(name) or _HEAVY.sub("", text)


def may_lack_a_header(log: str) -> bool:
    """Return True when a compiler's error may come from a missing header."""
    return _LACKING.search(log) is not None
