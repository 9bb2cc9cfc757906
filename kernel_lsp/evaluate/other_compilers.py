"""Other compilers than the one that a candidate is checked with, for which its text may be another program.

An operator compiles its kernels with the NVRTC of whoever uses it, a package with nvcc: a text that asks for the
compiler, or for its version, would run as nobody checked it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from kernel_lsp.core.verdict import Built
from kernel_lsp.evaluate.other_architectures import other_programs
from kernel_lsp.toolchain.compile import BuildRequest, Compiler
from kernel_lsp.toolchain.masking import mask_literals
from kernel_lsp.toolchain.ptx_identity import program_hash

_ELSEWHERE = "kernel_lsp_elsewhere_"
"""Before the names of macros that the other compiler answers."""
_SPLICE = r"(?:\\[ \t]*\r?\n)?"
"""A name may go on in the next line."""


@dataclass(frozen=True)
class OtherCompiler:
    """A compiler in words, and its answer for each macro that it has; the others of `NAMES` it has not."""

    words: str
    macros: Mapping[str, str]


@dataclass(frozen=True)
class OtherProgram:
    """What the text is elsewhere. `where` are words, e.g. ``compiled for sm_80``."""

    where: str
    built: Built


def _versions(major: int, minor: int, thrust: int) -> dict[str, str]:
    """What compiler and headers of a release of CUDA say of themselves: 12.4 is 12040 in `cuda.h`, and its CCCL 2.3 is
    2003000 in `<cuda/version>`, 200300 in `<thrust/version.h>`."""
    release = str(major * 1000 + minor * 10)
    return {
        **{"__CUDACC_VER_MAJOR__": str(major), "__CUDACC_VER_MINOR__": str(minor), "__CUDACC_VER_BUILD__": "99"},
        **{"__CUDA_API_VER_MAJOR__": str(major), "__CUDA_API_VER_MINOR__": str(minor)},
        **{"CUDA_VERSION": release, "CUDART_VERSION": release, "__CUDART_API_VERSION": release},
        **{"CCCL_VERSION": str(thrust * 10), "CCCL_MAJOR_VERSION": str(thrust // 100_000)},
        **{"CUB_VERSION": str(thrust), "THRUST_VERSION": str(thrust), "CUB_MAJOR_VERSION": str(thrust // 100_000)},
        "__CUDACC__": "1",
    }


_NVRTC = {"__CUDACC_RTC__": "1"}
_NVCC = {
    **{"__NVCC__": "1", "__CUDA_RUNTIME_H__": "1", "__DRIVER_TYPES_H__": "1", "__VECTOR_TYPES_H__": "1"},
    **{"__GNUC__": "13", "__GNUC_MINOR__": "2", "__linux__": "1", "__x86_64__": "1", "NDEBUG": "1"},
}
OTHER_COMPILERS = (
    OtherCompiler("NVRTC of CUDA 12.4", {**_versions(12, 4, 200_300), **_NVRTC}),
    OtherCompiler("NVRTC of CUDA 14.2", {**_versions(14, 2, 400_200), **_NVRTC}),
    OtherCompiler("nvcc of CUDA 12.9", {**_versions(12, 9, 200_800), **_NVCC}),
    OtherCompiler("nvcc of CUDA 13.1", {**_versions(13, 1, 300_100), **_NVCC}),
)
"""Releases before and after any that this is written with; nvcc as PyTorch's build of extensions calls it on Linux."""
OTHERS = ("__clang__", "__CUDA__", "_MSC_VER", "_WIN32", "__NVCOMPILER", "__INTEL_COMPILER", "__OPTIMIZE__")
"""What none of these compilers has, and may be asked for."""
NAMES = tuple(sorted({name for compiler in OTHER_COMPILERS for name in compiler.macros} | set(OTHERS)))
_NAME = re.compile(rf"\b(?:{'|'.join(_SPLICE.join(re.escape(letter) for letter in name) for name in NAMES)})\b")


def asked_names(text: str) -> tuple[str, ...]:
    """The macros in the text that another compiler answers otherwise, or may."""
    return tuple(dict.fromkeys(_joined(match[0]) for match in _NAME.finditer(mask_literals(text))))


async def programs_elsewhere(compiler: Compiler, request: BuildRequest, built: Built) -> AsyncIterator[OtherProgram]:
    """What the text of a request is on other GPUs and for other compilers, where it is something else. Other compilers
    answer only the text itself, not the headers. Where it does not compile no kernel runs: an operator leaves such
    calls to PyTorch."""
    async for other in other_programs(compiler, request, built):
        yield OtherProgram(f"compiled for {other.architecture}", other)
    asked, seen = asked_names(request.text), {program_hash(built.ptx)}
    for one in OTHER_COMPILERS if asked else ():
        changed = await compiler.compile(_as_for(request, one, asked))
        if isinstance(changed, Built) and program_hash(changed.ptx) not in seen:
            seen.add(program_hash(changed.ptx))
            yield OtherProgram(f"compiled by {one.words}", changed)


# --- below


def _as_for(request: BuildRequest, one: OtherCompiler, asked: tuple[str, ...]) -> BuildRequest:
    """The request with other names for the macros, which answer as the other compiler does."""
    text = _NAME.sub(lambda match: _ELSEWHERE + _joined(match[0]) + "\n" * match[0].count("\n"), request.text)
    answers = tuple(f"-D{_ELSEWHERE}{name}={one.macros[name]}" for name in asked if name in one.macros)
    return request.model_copy(update={"text": text, "options": (*request.options, *answers)})


def _joined(name: str) -> str:
    return re.sub(_SPLICE, "", name)
