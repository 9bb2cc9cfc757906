"""Derive identifiers for C++ and for launch plans from the names in the user's code."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from functools import lru_cache

_WORDS = """
alignas alignof and asm auto bool break case catch char class const constexpr continue default delete do double
else enum explicit export extern false float for friend goto if inline int long namespace new not operator or
private protected public register return short signed sizeof static struct switch template this throw true try
typedef typename union unsigned using virtual void volatile while xor half blockIdx blockDim gridDim threadIdx
warpSize min max abs exp log sin cos tan tanh sqrt pow erf floor ceil round ceil_div none inf nan y0 y1 yn j0 j1
jn gamma index time select signal acos asin atan sinh cosh asinh acosh atanh exp2 expm1 log2 log10 log1p rsqrt
cbrt erfc fmod hypot trunc rint prefetch prefetch_all maximum minimum relu sigmoid silu gelu gelu_tanh sign remainder
packs Pack isnan isinf isfinite signbit fabs norm rnorm
"""
RESERVED = frozenset(_WORDS.split())
"""Reserved words of C++, CUDA and launch plans, and functions visible in every CUDA file: such a name would not
compile, or would shadow them."""


class NamePool:
    """Hands out identifiers that do not collide."""

    def __init__(self, taken: set[str] | None = None) -> None:
        self._taken = set(taken or ())

    def take(self, wanted: str) -> str:
        """Return `wanted` as a unique identifier, with a number if it is taken."""
        base = identifier(wanted)
        name, n_tries = base, 2
        while name in self._taken:
            name, n_tries = f"{base}_{n_tries}", n_tries + 1
        self._taken.add(name)
        return name

    def take_exactly(self, name: str) -> str:
        """Reserve a name that must not change."""
        self._taken.add(name)
        return name

    def retake(self, names: Sequence[tuple[str, str]]) -> bool:
        """Take names if each wanted one would be the given one, as in another pool; else none of them."""
        trial = self.child()
        is_same = all(trial.take(wanted) == name for wanted, name in names)
        self._taken.update(name for _, name in names if is_same)
        return is_same

    def child(self) -> NamePool:
        """Return a nested pool. It avoids these names; its own names do not affect this pool."""
        return NamePool(self._taken)


@lru_cache(maxsize=1 << 12)
def identifier(text: str) -> str:
    """Return the text as a C++ identifier: the last part of a dotted name, never a reserved word."""
    name = re.sub(r"\W", "_", text.rsplit(".", 1)[-1], flags=re.ASCII)
    name = re.sub(r"__+", "_", name).strip("_") or "value"
    if name[0].isdigit():
        name = f"value_{name}"
    return f"{name}_" if name in RESERVED or keyword.iskeyword(name) else name
