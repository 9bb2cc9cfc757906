"""Make names that are valid in C++, CUDA, Python and a launch plan."""

from __future__ import annotations

import keyword
import re

CPP_KEYWORDS = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const "
    "consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do "
    "double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable "
    "namespace new noexcept not not_eq nullptr operator or or_eq private protected public register "
    "reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template "
    "this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t "
    "while xor xor_eq".split()
)
CUDA_NAMES = frozenset(
    "threadIdx blockIdx blockDim gridDim warpSize half half2 dim3 uint uchar ushort ulong int2 int4 float2 float4 "
    "double2 min max abs exp log sqrt rsqrt pow sin cos tan tanh erf erff fabs fabsf floor ceil fma fminf fmaxf "
    "expf logf sqrtf rsqrtf powf sinf cosf tanhf signbit isnan isinf clock assert printf malloc free memcpy "
    "memset NULL INFINITY NAN main std size_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t".split()
)
PLAN_NAMES = frozenset("and or not min max ceil_div none true false op launch library scratch fill where task".split())
PYTHON_NAMES = frozenset("torch F math None True False self ops".split()) | frozenset(keyword.kwlist)
RESERVED = CPP_KEYWORDS | CUDA_NAMES | PLAN_NAMES | PYTHON_NAMES


def identifier(text: str) -> str:
    """Convert `text` to an identifier: ``norm.weight`` gives ``norm_weight``, ``1x`` gives ``t1x``."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII).strip("_") or "t"
    return f"t{name}" if name[0].isdigit() else name


MIXED_CASE_WORDS = ("PReLU", "ReLU", "SiLU", "SwiGLU", "GeGLU", "ReGLU", "QKNorm")
"""Terms whose inner capitals do not begin a word."""


def snake_case(text: str) -> str:
    """Convert to snake case: ``RMSNorm`` gives ``rms_norm``, ``LinearReLU`` ``linear_relu``, ``1_Square-matmul``
    ``square_matmul``."""
    text = re.sub(r"^\d+[_\-\s]*", "", text) or text
    for word in MIXED_CASE_WORDS:
        text = text.replace(word, word.capitalize())
    text = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", text)
    text = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", text)
    return re.sub(r"_+", "_", identifier(text)).lower()


class NamePool:
    """A pool of unique names. A name that is taken or reserved gets a suffix: ``D``, ``D2``; ``new_``."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, wanted: str) -> str:
        """Return `wanted`, or the first free variant of it."""
        name = identifier(wanted)
        if name in RESERVED:
            name = f"{name}_"
        candidate, number = name, 2
        while candidate in self._taken or candidate in RESERVED:
            candidate = f"{name}_{number}" if len(name) > 1 and not name.isupper() else f"{name}{number}"
            number += 1
        self._taken.add(candidate)
        return candidate
