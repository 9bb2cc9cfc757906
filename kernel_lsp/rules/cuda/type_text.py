"""Interpret the text of a type: its words, its size, its qualifiers, and whether it is an integer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from kernel_lsp.rules.rule import words

IDENTIFIER = re.compile(
    r"[A-Za-z_](?:(?<![\w.].)(?<!->.)\w*"
    r"|(?<=\.t)hread_(?:rank|index)\b|(?<=\.b)lock_rank\b|(?<=\.g)roup_index\b)"
)
"""Names in an expression, without its fields but with the methods of cooperative groups that return a thread's rank.
It begins with a letter, which makes the search fast, and then looks behind."""
_TYPE_BYTES = {
    **dict.fromkeys(("char", "signed char", "unsigned char", "bool", "int8_t", "uint8_t", "__nv_fp8_e4m3"), 1),
    **dict.fromkeys(("short", "unsigned short", "half", "__half", "__nv_bfloat16", "nv_bfloat16", "int16_t"), 2),
    **dict.fromkeys(("uint16_t", "at::Half", "at::BFloat16"), 2),
    **dict.fromkeys(("int", "unsigned", "unsigned int", "float", "int32_t", "uint32_t", "half2", "__half2"), 4),
    **dict.fromkeys(("__nv_bfloat162", "nv_bfloat162"), 4),
    **dict.fromkeys(("double", "long long", "unsigned long long", "int64_t", "uint64_t", "float2", "int2"), 8),
    **dict.fromkeys(("size_t", "long", "unsigned long", "uint2"), 8),
    **dict.fromkeys(("float4", "int4", "uint4", "double2"), 16),
}
"""Sizes of types on 64-bit Linux, in bytes."""
INTEGER_TYPES = words(
    """
    int unsigned long short size_t int64_t int32_t uint32_t uint64_t char int16_t uint16_t ptrdiff_t
    """
)
WIDE_INTEGERS = frozenset(("size_t", "int64_t", "uint64_t", "ptrdiff_t"))
_QUALIFIERS = words(
    """
    const volatile __shared__ __restrict__ __restrict restrict static extern constexpr register inline
    __constant__ __device__ alignas
    """
)


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """The facts in the text of a type. `element` is the type without qualifiers and storage class."""

    words: frozenset[str]
    element: str
    is_shared: bool
    is_const: bool
    is_integer: bool
    is_wide: bool


@lru_cache(maxsize=4096)
def type_facts(type_text: str) -> TypeFacts:
    """Return the facts of a type. Results are cached, because files repeat types."""
    all_words = frozenset(re.findall(r"\w+", type_text))
    return TypeFacts(
        words=frozenset(IDENTIFIER.findall(type_text)),
        element=" ".join(word for word in re.findall(r"[\w:]+", type_text) if word not in _QUALIFIERS),
        is_shared="__shared__" in type_text,
        is_const="const" in all_words or "constexpr" in all_words,
        is_integer=not all_words.isdisjoint(INTEGER_TYPES),
        is_wide="long" in all_words or not all_words.isdisjoint(WIDE_INTEGERS),
    )


def type_bytes(type_text: str) -> int | None:
    """Return the bytes of a builtin type, None for others."""
    return _TYPE_BYTES.get(" ".join(type_text.split()))
