"""Avoid names that are reserved in C++ or used by a package's own code."""

from __future__ import annotations

import re

_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const consteval
    constexpr constinit continue co_await co_return co_yield decltype default delete do double else enum explicit
    export extern false final float for friend goto if import inline int long module mutable namespace new noexcept
    not not_eq nullptr operator or or_eq override private protected public register requires return short signed
    sizeof static static_assert struct switch template this throw true try typedef typeid typename union unsigned
    using virtual void volatile wchar_t while xor xor_eq I EOF NULL assert errno signbit isnan
"""
_TAKEN = "at c10 std plan support torch kernels Tensor Integer guard device stream reason returned ctx found keys"
_RESERVED = frozenset((*_KEYWORDS.split(), *_TAKEN.split()))
_LOCAL = re.compile(r"(launch|kernel|grid|block|value|shape|ready|taken|number)_\w+")


def cpp_identifier(name: str) -> str:
    """Return `name` with an underscore appended when C++ or the surrounding code uses it."""
    return f"{name}_" if name in _RESERVED or _LOCAL.fullmatch(name) else name
