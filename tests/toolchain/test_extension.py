"""Builds of torch extensions with compilers made of shell: what is called, kept, drained, timed out."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from kernel_lsp.core.verdict import BuildFailed, TimedOut
from kernel_lsp.toolchain.extension.build import ExtensionBuilder
from kernel_lsp.toolchain.extension.facts import ExtensionBuilt, ExtensionFacts
from kernel_lsp.toolchain.extension.headers import FRONTEND
from kernel_lsp.toolchain.extension.tools import ExtensionTools

COMPILER = """#!/bin/sh
echo "$@" >> {log}
while [ $# -gt 0 ]; do [ "$1" = "-o" ] && : > "$2"; shift; done
"""
NM = """#!/bin/sh
[ "$3" = "-C" ] && echo "void scale<float>(float const*, int) U" || echo "cudaLaunchKernel U"
"""
HOST_ONLY = "#include <torch/extension.h>\nint f() { return 1; }\n"
CUDA = """#include <torch/extension.h>
template <typename T> __global__ void scale(const T* x, int n) {}
torch::Tensor forward(torch::Tensor x) { scale<float><<<1, 32>>>(x.data_ptr<float>(), 1); return x; }
"""
FACTS = ExtensionFacts(
    torch_version="2.11.0",
    cuda_version="",
    includes=(Path("/torch/include"),),
    libraries=("c10",),
    library_directories=(Path("/torch/lib"),),
    cxx11_abi=1,
)


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def builder(
    folder: Path, compiler: str = COMPILER, *, deadline_s: float = 30.0, version: str = "1"
) -> ExtensionBuilder:
    text = compiler.replace("{log}", str(folder / "log"))
    tools = ExtensionTools(
        cxx=script(folder / "cxx", text),
        nm=script(folder / "nm", NM),
        nvcc=script(folder / "nvcc", text),
        version=version,
        shared_stubs=("-shared-stubs",),
    )
    return ExtensionBuilder(
        FACTS, tools, folder / "cache", python=Path(sys.executable), architecture="sm_90", deadline_s=deadline_s
    )


async def build(made: ExtensionBuilder, text: str) -> ExtensionBuilt | BuildFailed | TimedOut:
    async with made:
        return await made.build(text, "kernel.cu")


async def test_an_extension_without_kernels_is_built_by_the_host_compiler(tmp_path: Path) -> None:
    found = await build(builder(tmp_path), HOST_ONLY)
    assert isinstance(found, ExtensionBuilt)
    assert found.how == "host only"
    assert found.path.is_file()
    assert found.undefined_symbols == ("cudaLaunchKernel",)


async def test_kernels_and_host_code_are_built_apart(tmp_path: Path) -> None:
    found = await build(builder(tmp_path), CUDA)
    assert isinstance(found, ExtensionBuilt)
    assert found.how == "split"
    log = (tmp_path / "log").read_text()
    assert "-arch=sm_90" in log
    assert "device.cu" in log
    assert [line for line in log.splitlines() if "-shared-stubs" in line and "device.cu" in line]
    assert "whole.cu" not in log
    assert "-D__CUDA_NO_HALF_OPERATORS__" in log  # as torch.utils.cpp_extension does: `c10::Half` has its own


async def test_the_same_build_is_kept(tmp_path: Path) -> None:
    await build(builder(tmp_path), HOST_ONLY)
    found = await build(builder(tmp_path), HOST_ONLY)
    assert isinstance(found, ExtensionBuilt)
    assert found.from_cache


async def test_another_compiler_builds_again(tmp_path: Path) -> None:
    await build(builder(tmp_path), HOST_ONLY)
    found = await build(builder(tmp_path, version="2"), HOST_ONLY)
    assert isinstance(found, ExtensionBuilt)
    assert not found.from_cache


async def test_the_header_is_precompiled_for_the_next_build(tmp_path: Path) -> None:
    first = await build(builder(tmp_path), HOST_ONLY)
    second = await build(builder(tmp_path), HOST_ONLY + "// another\n")
    assert isinstance(first, ExtensionBuilt)
    assert isinstance(second, ExtensionBuilt)
    assert (first.header, second.header) == ("read", "precompiled")


async def test_the_frontend_needs_the_full_header(tmp_path: Path) -> None:
    await build(builder(tmp_path), HOST_ONLY + "using torch::nn::Module;\n")
    preludes = [path.read_text() for path in (tmp_path / "cache").rglob("prelude.h")]
    assert FRONTEND in preludes


async def test_host_code_that_names_more_than_it_shows_is_compiled_with_more_headers(tmp_path: Path) -> None:
    error = "echo \"host.cpp:1:1: error: 'f' was not declared\" >&2; exit 1"
    lacks = COMPILER.replace("while", f'case "$*" in *AT_PER_OPERATOR_HEADERS*) {error};; esac\nwhile', 1)
    found = await build(builder(tmp_path, lacks), HOST_ONLY)
    assert isinstance(found, ExtensionBuilt)
    assert "compiled twice" in found.notes[0]


async def test_an_error_is_a_finding_at_its_line(tmp_path: Path) -> None:
    found = await build(
        builder(tmp_path, '#!/bin/sh\necho "host.cpp:7:3: error: no such thing" >&2\nexit 1\n'), HOST_ONLY
    )
    assert isinstance(found, BuildFailed)
    assert (found.findings[0].line, found.findings[0].message) == (7, "no such thing")


async def test_halves_that_do_not_compile_are_compiled_whole(tmp_path: Path) -> None:
    refuses = COMPILER.replace(
        "while", 'case "$*" in *host.cpp*) echo "host.cpp:1:1: error: x" >&2; exit 1;; esac\nwhile', 1
    )
    found = await build(builder(tmp_path, refuses), CUDA)
    assert isinstance(found, ExtensionBuilt)
    assert found.how == "whole"
    assert "do not compile apart" in found.notes[0]


async def test_ten_megabytes_of_output_are_drained(tmp_path: Path) -> None:
    chatty = "#!/bin/sh\nhead -c 10000000 /dev/zero | tr '\\\\0' 'x' >&2\nexit 1\n"
    found = await build(builder(tmp_path, chatty), HOST_ONLY)
    assert isinstance(found, BuildFailed)
    assert len(found.log) <= 1 << 20


async def test_a_compiler_that_hangs_ends_at_its_deadline(tmp_path: Path) -> None:
    found = await build(builder(tmp_path, "#!/bin/sh\nsleep 600\n", deadline_s=1.0), HOST_ONLY)
    assert isinstance(found, TimedOut)


async def test_a_build_can_be_cancelled(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await build(builder(tmp_path, "#!/bin/sh\nsleep 600\n"), HOST_ONLY)
    assert not list((tmp_path / "cache").rglob("built.so"))
