"""Build a candidate as other compilers would, for which its text may be another program.

An operator compiles its kernels with its user's NVRTC, a package with nvcc. A text that tests the compiler or its
version would run unchecked there.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernel_lsp.core.verdict import Built
from kernel_lsp.verify.build.other_architectures import other_programs
from kernel_lsp.verify.build.source_location_variants import programs_of_other_places
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.toolchain.integrity.conditionals import foreign_conditions
from kernel_lsp.toolchain.integrity.masking import mask_literals
from kernel_lsp.toolchain.integrity.ptx_identity import program_hash

_ELSEWHERE = "kernel_lsp_elsewhere_"
"""Prefix for macros that get the other compiler's value."""
_CALL = "(...)"
"""Suffix for macros that take arguments."""
_SPLICE = r"(?:\\[ \t]*\r?\n)?"
"""A line continuation, which may split a name."""
_RESERVED = re.compile(r"(?!__cplusplus|__LINE__|__FILE__|__has_include|__has_embed|__CUDA_ARCH)_[A-Z_]\w*")
"""Names that only compilers and their headers define: any may be missing elsewhere. The architecture has a check of its
own, and the operator sets the language."""


@dataclass(frozen=True)
class OtherCompiler:
    """A compiler, described by the values of all macros that it defines. `called` is its value for function-like tests
    such as `_CCCL_CTK_AT_LEAST(12, 4)` and `__has_builtin(...)`, which hold for some releases only."""

    words: str
    macros: Mapping[str, str]
    called: str

    def answers(self, names: Iterable[str]) -> dict[str, str]:
        """Return the values of those names that the compiler defines, and of all function-like ones."""
        known = {name: self.called for name in names if name.endswith(_CALL)}
        return known | {name: self.macros[name] for name in names if name in self.macros}


@dataclass(frozen=True)
class OtherProgram:
    """The program that a text is elsewhere. `where` is in words, e.g. ``compiled for sm_80``."""

    where: str
    built: Built


def _versions(major: int, minor: int) -> dict[str, str]:
    """Return the version macros of a CUDA release's compiler and headers, e.g. `cuda.h` has 12040 for 12.4."""
    release, libraries = str(major * 1000 + minor * 10), 2 if major < 13 else major - 10
    return {
        **{"__CUDACC_VER_MAJOR__": str(major), "__CUDACC_VER_MINOR__": str(minor), "__CUDACC_VER_BUILD__": "99"},
        **{"__CUDA_API_VER_MAJOR__": str(major), "__CUDA_API_VER_MINOR__": str(minor)},
        **{"CUDA_VERSION": release, "CUDART_VERSION": release, "__CUDART_API_VERSION": release},
        **{"CCCL_MAJOR_VERSION": str(libraries), "CCCL_VERSION": str(libraries * 1_000_000 + minor * 1000)},
        **{"CUB_MAJOR_VERSION": str(libraries), "CUB_VERSION": str(libraries * 100_000 + minor * 100)},
        **{"THRUST_MAJOR_VERSION": str(libraries), "THRUST_VERSION": str(libraries * 100_000 + minor * 100)},
        "__CUDACC__": "1",
    }


RELEASES = ((11, 8), *((12, minor) for minor in range(10)), (13, 0), (13, 1), (13, 2), (14, 0))
"""CUDA releases, from the oldest that PyTorch 2 was built with to a future one. A compile takes 0.1 s."""
_NVRTC = {"__CUDACC_RTC__": "1"}
_NVCC = {
    **{"__NVCC__": "1", "__CUDA_RUNTIME_H__": "1", "__DRIVER_TYPES_H__": "1", "__VECTOR_TYPES_H__": "1"},
    **{"__GNUC__": "13", "__GNUC_MINOR__": "2", "__linux__": "1", "__x86_64__": "1", "NDEBUG": "1"},
}
OTHER_COMPILERS = (
    *(OtherCompiler(f"NVRTC of CUDA {a}.{b}", {**_versions(a, b), **_NVRTC}, str(a % 2)) for a, b in RELEASES),
    *(OtherCompiler(f"nvcc of CUDA {a}.{b}", {**_versions(a, b), **_NVCC}, str(a % 2)) for a, b in ((12, 9), (13, 1))),
)
"""nvcc is described as PyTorch's build of extensions calls it on Linux."""
OTHERS = ("__clang__", "__CUDA__", "_MSC_VER", "_WIN32", "__NVCOMPILER", "__INTEL_COMPILER", "__OPTIMIZE__")
"""Macros that none of these compilers defines, but a text may test."""
NAMES = tuple(sorted({name for compiler in OTHER_COMPILERS for name in compiler.macros} | set(OTHERS)))


def asked_names(text: str) -> tuple[str, ...]:
    """Return the macros of a text that another compiler may define otherwise; ``name(...)`` for one with arguments."""
    names = [_joined(match[0]) for match in _pattern(NAMES).finditer(mask_literals(text))]
    reserved = [asked.name for asked in foreign_conditions(text) if _RESERVED.fullmatch(asked.name)]
    return tuple(dict.fromkeys((*names, *(name + _CALL * _is_called(name, text) for name in reserved))))


async def programs_elsewhere(compiler: Compiler, request: BuildRequest, built: Built) -> AsyncIterator[OtherProgram]:
    """Yield the distinct programs of a text on other GPUs, in other files and with other compilers. Other compilers
    change the text alone, not the headers. A failed build is skipped: an operator then leaves such calls to PyTorch."""
    async for other in other_programs(compiler, request, built):
        yield OtherProgram(f"compiled for {other.architecture}", other)
    async for where, moved in programs_of_other_places(compiler, request, built):
        yield OtherProgram(where, moved)
    asked, seen = asked_names(request.text), {program_hash(built.ptx)}
    by_answers = {tuple(one.answers(asked).items()): one for one in OTHER_COMPILERS[::-1] if asked}
    for one in by_answers.values():
        changed = await compiler.compile(_as_for(request, one, asked))
        if isinstance(changed, Built) and program_hash(changed.ptx) not in seen:
            seen.add(program_hash(changed.ptx))
            yield OtherProgram(f"compiled by {one.words}", changed)


# --- below


def _as_for(request: BuildRequest, one: OtherCompiler, asked: tuple[str, ...]) -> BuildRequest:
    """Return the request with renamed macros, which have the other compiler's values."""
    names = _pattern(tuple(name.removesuffix(_CALL) for name in asked))
    text = names.sub(lambda match: _ELSEWHERE + _joined(match[0]) + "\n" * match[0].count("\n"), request.text)
    answers = (f"-D{_ELSEWHERE}{name}={answer}" for name, answer in one.answers(asked).items())
    return request.model_copy(update={"text": text, "options": (*request.options, *answers)})


@lru_cache(maxsize=8)
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(_SPLICE.join(re.escape(letter) for letter in name) for name in names)})\b")


def _is_called(name: str, text: str) -> bool:
    return re.search(rf"\b{name}[ \t]*\(", text) is not None


def _joined(name: str) -> str:
    return re.sub(_SPLICE, "", name)
