"""Other compilers than the one that a candidate is checked with, for which its text may be another program.

An operator compiles its kernels with the NVRTC of whoever uses it, a package with nvcc: a text that asks for the
compiler, or for its version, would run as nobody checked it.
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
"""Before the names of macros that the other compiler answers."""
_CALL = "(...)"
"""Behind the names of macros that take arguments."""
_SPLICE = r"(?:\\[ \t]*\r?\n)?"
"""A name may go on in the next line."""
_RESERVED = re.compile(r"(?!__cplusplus|__LINE__|__FILE__|__has_include|__has_embed|__CUDA_ARCH)_[A-Z_]\w*")
"""Names that only compilers and their headers define: any may be missing elsewhere. The architecture is asked for
otherwise, and the language is the one that the operator asks for."""


@dataclass(frozen=True)
class OtherCompiler:
    """A compiler in words, and its answer for each macro that it has; it has no others. `called` is its answer for what
    is asked like a function, `_CCCL_CTK_AT_LEAST(12, 4)` or `__has_builtin(...)`: yes for some, no for others."""

    words: str
    macros: Mapping[str, str]
    called: str

    def answers(self, names: Iterable[str]) -> dict[str, str]:
        """Those that it has for some names; the others are called."""
        known = {name: self.called for name in names if name.endswith(_CALL)}
        return known | {name: self.macros[name] for name in names if name in self.macros}


@dataclass(frozen=True)
class OtherProgram:
    """What the text is elsewhere. `where` are words, e.g. ``compiled for sm_80``."""

    where: str
    built: Built


def _versions(major: int, minor: int) -> dict[str, str]:
    """What compiler and headers of a release of CUDA say of themselves, e.g. 12.4 is 12040 in `cuda.h`."""
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
"""Of CUDA, from the oldest that PyTorch 2 has been built with to one that is to come; a compile takes a tenth of a
second."""
_NVRTC = {"__CUDACC_RTC__": "1"}
_NVCC = {
    **{"__NVCC__": "1", "__CUDA_RUNTIME_H__": "1", "__DRIVER_TYPES_H__": "1", "__VECTOR_TYPES_H__": "1"},
    **{"__GNUC__": "13", "__GNUC_MINOR__": "2", "__linux__": "1", "__x86_64__": "1", "NDEBUG": "1"},
}
OTHER_COMPILERS = (
    *(OtherCompiler(f"NVRTC of CUDA {a}.{b}", {**_versions(a, b), **_NVRTC}, str(a % 2)) for a, b in RELEASES),
    *(OtherCompiler(f"nvcc of CUDA {a}.{b}", {**_versions(a, b), **_NVCC}, str(a % 2)) for a, b in ((12, 9), (13, 1))),
)
"""nvcc is as PyTorch's build of extensions calls it on Linux."""
OTHERS = ("__clang__", "__CUDA__", "_MSC_VER", "_WIN32", "__NVCOMPILER", "__INTEL_COMPILER", "__OPTIMIZE__")
"""What none of these compilers has, and may be asked for."""
NAMES = tuple(sorted({name for compiler in OTHER_COMPILERS for name in compiler.macros} | set(OTHERS)))


def asked_names(text: str) -> tuple[str, ...]:
    """The macros in the text that another compiler answers otherwise, or may; ``name(...)`` for one with arguments."""
    names = [_joined(match[0]) for match in _pattern(NAMES).finditer(mask_literals(text))]
    reserved = [asked.name for asked in foreign_conditions(text) if _RESERVED.fullmatch(asked.name)]
    return tuple(dict.fromkeys((*names, *(name + _CALL * _is_called(name, text) for name in reserved))))


async def programs_elsewhere(compiler: Compiler, request: BuildRequest, built: Built) -> AsyncIterator[OtherProgram]:
    """What the text of a request is on other GPUs, in other files and for other compilers, where it is something else.
    Other compilers answer only the text itself, not the headers. Where it does not compile no kernel runs: an operator
    leaves such calls to PyTorch."""
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
    """The request with other names for the macros, which answer as the other compiler does."""
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
