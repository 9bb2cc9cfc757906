"""C++ types of kernel parameters: equivalent spellings, pointers that fit tensors, values that fit types."""

from __future__ import annotations

import math
import re

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Number
from kernel_lsp.core.plan import KernelSignature

SCALAR_CUDA_TYPES = (
    "bool",
    "signed char",
    "unsigned char",
    "short",
    "unsigned short",
    "int",
    "unsigned int",
    "long long",
    "unsigned long long",
    "float",
    "double",
)
"""All values of `ScalarArgument.cuda_type`."""
INTEGER_RANGES = {
    "signed char": (-(1 << 7), (1 << 7) - 1),
    "unsigned char": (0, (1 << 8) - 1),
    "short": (-(1 << 15), (1 << 15) - 1),
    "unsigned short": (0, (1 << 16) - 1),
    "int": (-(1 << 31), (1 << 31) - 1),
    "unsigned int": (0, (1 << 32) - 1),
    "long long": (-(1 << 63), (1 << 63) - 1),
    "unsigned long long": (0, (1 << 64) - 1),
}
"""Smallest and largest value, inclusive."""
MAX_FLOAT32 = 3.4028234663852886e38


def canonical_type(spelled: str) -> str:
    """Return one spelling per type: ``unsigned`` and ``uint32_t`` are ``unsigned int``. Unknown types are returned
    unchanged. `long` is 64 bits, as on Linux."""
    name = spelled.removeprefix("::").removeprefix("std::").removeprefix("cuda::std::")
    name = " ".join(sorted(name.split(), key=_ORDER.index)) if set(name.split()) <= _ORDERED else name
    return _ALIASES.get(name, name)


def scalar_type(spelled: str) -> str | None:
    """Return the entry of SCALAR_CUDA_TYPES for `spelled`; None when it is not a scalar that a launch can pass."""
    name = canonical_type(spelled)
    return name if name in SCALAR_CUDA_TYPES else None


def type_size_bytes(spelled: str) -> int | None:
    """Return the bytes of a builtin scalar or vector type (``float4`` has 16); None for an unknown type."""
    name = canonical_type(spelled)
    if name in _SIZES:
        return _SIZES[name]
    vector = _VECTOR_TYPE.fullmatch(name)
    return _VECTOR_BASE_SIZES[vector.group(1)] * int(vector.group(2)) if vector else None


def pointer_fits(element: str, dtype: DType) -> bool | None:
    """Return True when a pointer to `element` may point to a tensor of `dtype`: its own type, bytes, or a builtin
    vector whose size is a multiple of the dtype's. None for an unknown type."""
    name = canonical_type(element)
    if name in _BYTE_TYPES or name in _ELEMENTS[dtype]:
        return True
    if name in _HALF_VECTORS or _VECTOR_TYPE.fullmatch(name):
        size = type_size_bytes(name)
        return size is not None and size % dtype.itemsize == 0
    return False if name in _SIZES else None


def resolve_template(element: str, signature: KernelSignature, template_arguments: tuple[str, ...]) -> str | None:
    """Replace a template parameter in `element` by its argument, or by its default if the launch omits it; None for any
    other dependence on one."""
    names, defaults = signature.template_parameters, signature.template_defaults
    if not names:
        return element
    bound = dict(zip(names[len(names) - len(defaults) :], defaults, strict=False))
    bound |= dict(zip(names, template_arguments, strict=False))
    if element in names:
        return bound.get(element)
    words = set(re.findall(r"\w+", element))
    return None if words & set(names) else element


def convert_scalar(value: Number, cuda_type: str) -> Number:
    """Convert `value` to the C++ `cuda_type`. Raises ValueError, with the reason, when it does not fit."""
    if cuda_type == "bool":
        return bool(value)
    if cuda_type in ("float", "double"):
        return _convert_float(float(value), cuda_type)
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError(f"{value} is not an integer, and the parameter is {cuda_type}")
        value = int(value)
    low, high = INTEGER_RANGES[cuda_type]
    if not low <= value <= high:
        raise ValueError(f"{value} does not fit {cuda_type} ({low} to {high})")
    return int(value)


def _convert_float(value: float, cuda_type: str) -> float:
    if cuda_type == "float" and math.isfinite(value) and abs(value) > MAX_FLOAT32:
        raise ValueError(f"{value} does not fit float")
    return value


_ORDER = ("signed", "unsigned", "short", "long", "char", "int")
_ORDERED = frozenset(_ORDER)
"""Words whose order within a type is free."""
_ALIASES = {
    "unsigned": "unsigned int",
    "uint": "unsigned int",
    "signed": "int",
    "signed int": "int",
    "int32_t": "int",
    "uint32_t": "unsigned int",
    "int64_t": "long long",
    "uint64_t": "unsigned long long",
    "long": "long long",
    "long int": "long long",
    "long long int": "long long",
    "signed long long": "long long",
    "ptrdiff_t": "long long",
    "ssize_t": "long long",
    "size_t": "unsigned long long",
    "unsigned long": "unsigned long long",
    "unsigned long int": "unsigned long long",
    "unsigned long long int": "unsigned long long",
    "int16_t": "short",
    "short int": "short",
    "uint16_t": "unsigned short",
    "unsigned short int": "unsigned short",
    "int8_t": "signed char",
    "char": "signed char",
    "uint8_t": "unsigned char",
    "half": "__half",
    "half2": "__half2",
    "nv_bfloat16": "__nv_bfloat16",
    "nv_bfloat162": "__nv_bfloat162",
    "bfloat16": "__nv_bfloat16",
}
_SIZES = {
    "bool": 1,
    "signed char": 1,
    "unsigned char": 1,
    "short": 2,
    "unsigned short": 2,
    "int": 4,
    "unsigned int": 4,
    "long long": 8,
    "unsigned long long": 8,
    "float": 4,
    "double": 8,
    "__half": 2,
    "__nv_bfloat16": 2,
    "__half2": 4,
    "__nv_bfloat162": 4,
}
_HALF_VECTORS = frozenset({"__half2", "__nv_bfloat162"})
_BYTE_TYPES = frozenset({"void", "byte", "unsigned char"})
_VECTOR_TYPE = re.compile(r"(u?char|u?short|u?int|u?long|u?longlong|float|double)([1-4])(?:_(?:16|32)a)?")
_VECTOR_BASE_SIZES = {
    "char": 1,
    "uchar": 1,
    "short": 2,
    "ushort": 2,
    "int": 4,
    "uint": 4,
    "long": 8,
    "ulong": 8,
    "longlong": 8,
    "ulonglong": 8,
    "float": 4,
    "double": 8,
}
_ELEMENTS = {dtype: frozenset({dtype.cuda_type}) for dtype in DType} | {
    DType.BOOL: frozenset({"bool", "unsigned char"}),
}
