"""A text of many kernels is compiled in parts: each kernel's code is that of the whole, and the parts are one build."""

from __future__ import annotations

import re

import pytest

from kernel_lsp.core.finding import Severity
from kernel_lsp.core.verdict import BuildFailed, Built
from kernel_lsp.ptx.text.parser import parse
from kernel_lsp.ptx.text.syntax import Instruction
from kernel_lsp.toolchain.nvrtc import compile as rules
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.toolchain.nvrtc.discovery import Toolchain
from kernel_lsp.toolchain.nvrtc.parts import parts_of

TEXT = r"""// The kernels of a module.
// __global__ void not_a_kernel(
template <int N>
__device__ __forceinline__ float powered(float x) { return N ? x * powered<N - 1>(x) : 1.0f; }
template <>
__device__ __forceinline__ float powered<0>(float x) { return 1.0f; }
extern __shared__ float tile[];
template <int N>
__device__ __forceinline__ float broadcast(float x) {
    __shared__ float first[N];
    first[threadIdx.x] = x;
    __syncthreads();
    return first[0];
}

__global__ void __launch_bounds__(128) squares(const float* __restrict__ x, float* __restrict__ y) {
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = powered<2>(tile[127 - threadIdx.x]) + broadcast<128>(x[0]);
}

template <int N>
__global__ void __launch_bounds__(128) powers(const float* __restrict__ x, float* __restrict__ y) {
    y[threadIdx.x] = powered<N>(x[threadIdx.x]);
}

__global__ void cubes(const float* __restrict__ x, float* __restrict__ y) {
    const int unused = 1;
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n}\n" ::: "memory");
    tile[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = powered<3>(tile[threadIdx.x]) - broadcast<128>(x[1]);
}
"""
NAMES = ("squares", "powers<4>", "powers<5>", "cubes")


async def compiled(toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch, text: str, n_parts: int) -> Built:
    monkeypatch.setattr(rules, "LONG_TEXT", 0)
    async with Compiler(toolchain, n_processes=n_parts) as compiler:
        built = await compiler.compile(BuildRequest(text=text, name_expressions=NAMES))
    assert isinstance(built, Built), built
    return built


def code_of(built: Built) -> dict[str, list[str]]:
    """The instructions of each kernel, without what numbers labels and the strings of the debugger, and without shared
    memory that a kernel declares itself where no other of its module has it."""
    bodies = re.findall(r"^\.(?:visible|weak) \.entry (\w+)\((.*?)^}\n", built.ptx, re.S | re.M)
    numbers, declared = re.compile(r"BB\d+_|info_string[\d_]+"), re.compile(r"\s*(?://.*|\.shared .*)?")
    return {
        name: [line for line in numbers.sub("", body).splitlines() if not declared.fullmatch(line)]
        for name, body in bodies
    }


async def test_the_parts_of_a_text_are_one_build_with_the_code_of_the_whole(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await compiled(toolchain, monkeypatch, TEXT, 1)
    parts = await compiled(toolchain, monkeypatch, TEXT, 3)
    assert len(whole.cubins) == 1
    assert len(set(parts.cubins)) == 3
    assert code_of(parts) == code_of(whole)
    assert parts.symbols == whole.symbols
    assert {facts.kernel: facts.n_registers for facts in parts.kernels} == {
        facts.kernel: facts.n_registers for facts in whole.kernels
    }
    assert {(w.code, w.line, w.message) for w in parts.warnings} == {
        (w.code, w.line, w.message) for w in whole.warnings
    }
    assert len(parts.warnings) == len(whole.warnings) > 0


async def test_the_code_of_parts_names_the_lines_and_functions_of_the_text(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines_of(built: Built) -> set[tuple[str, int, str]]:
        module, found = parse(built.ptx), set[tuple[str, int, str]]()
        for function in module.functions.values():
            for statement in function.statements:
                if isinstance(statement, Instruction) and (at := statement.location) is not None:
                    found.add((function.name, at.line, module.texts.get(at.function or "", "")))
        return found

    whole = lines_of(await compiled(toolchain, monkeypatch, TEXT, 1))
    assert whole == lines_of(await compiled(toolchain, monkeypatch, TEXT, 3))
    assert {inlined for _, _, inlined in whole} > {""}


async def test_a_kernel_behind_an_include_has_one_part(toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken for a template, and the PTX had its code once for each part."""
    include = "#include <cuda_fp16.h>  // halves\n"
    text = TEXT.replace("__global__ void cubes(", f"{include}__global__ void cubes(")
    assert all("template <class> " in part.text for part in parts_of(text, NAMES, 2))
    built = await compiled(toolchain, monkeypatch, text, 2)
    assert built.ptx.count(".entry ") == len(NAMES) == len(built.kernels)


@pytest.mark.parametrize("kind", ["device", "constant"])
async def test_kernels_that_share_a_variable_stay_one_module(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Each module has variables of its own: kernels of two would not see each other's writes."""
    shared = f"#define SHARED(kind) __##kind##__ int\nSHARED({kind}) counter;\n"
    text = shared + TEXT.replace("tile[threadIdx.x] =", "tile[threadIdx.x] = counter +")
    assert parts_of(text, NAMES, 3), "only the PTX shows the variable"
    built = await compiled(toolchain, monkeypatch, text, 3)
    assert len(built.cubins) == 1


async def test_a_fault_is_told_once_and_of_the_text_as_it_is(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "LONG_TEXT", 0)
    async with Compiler(toolchain, n_processes=3) as compiler:
        failed = await compiler.compile(
            BuildRequest(text=TEXT.replace("y[threadIdx.x] = powered<3>", "z"), name_expressions=NAMES)
        )
    assert isinstance(failed, BuildFailed)
    errors = [each for each in failed.findings if each.severity is Severity.ERROR]
    assert [(each.line, each.column) for each in errors] == [(31, 5)]


def test_a_part_has_the_lines_of_the_text_and_the_names_of_its_kernels() -> None:
    parts = parts_of(TEXT, NAMES, 2)
    assert sorted(name for part in parts for name in part.name_expressions) == sorted(NAMES)
    for part in parts:
        assert part.text.count("\n") == TEXT.count("\n")
        assert part.text.replace("template <class> ", "") == TEXT
        others = {"squares", "cubes"} - set(part.name_expressions)
        assert part.text.count("template <class> ") == len(others)


@pytest.mark.parametrize(
    "text",
    [
        TEXT[: TEXT.index("__global__ void __launch_bounds__")],
        TEXT[: TEXT.index("\n\ntemplate <int N>\n__global__")],
        TEXT.replace("__global__ void cubes", 'extern "C" __global__ void cubes'),
        TEXT.replace("__global__ void cubes", "#define CUBES __global__ void\nCUBES cubes"),
        TEXT.replace("__global__ void cubes", "void __global__ cubes"),
        "__device__ int counter;\n" + TEXT,
        "__constant__ float factors[4] = {1, 2, 3, 4};\n" + TEXT,
        "static __device__ float table[4][4];\n" + TEXT,
    ],
    ids=["no kernel", "one kernel", "C names", "macro", "other order", "variable", "constants", "array"],
)
def test_other_texts_are_compiled_as_a_whole(text: str) -> None:
    assert parts_of(text, ("squares",), 4) == []
