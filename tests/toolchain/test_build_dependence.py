"""A text is one program, whoever compiles it and when."""

from __future__ import annotations

import asyncio

import pytest

from kernel_lsp.core.finding import Severity
from kernel_lsp.core.verdict import BuildFailed
from kernel_lsp.toolchain.integrity.audit import source_findings
from kernel_lsp.toolchain.nvrtc.compile import compile_cuda
from kernel_lsp.toolchain.nvrtc.discovery import Toolchain

KERNEL = "__global__ void k(float* x) { x[0] = 1.0f; }\n"


def check(text: str, *expected: tuple[str, int]) -> None:
    assert [(finding.code, finding.line) for finding in source_findings(text)] == list(expected)


@pytest.mark.parametrize("macro", ["__TIME__", "__DATE__", "__TIMESTAMP__"])
def test_the_hour_of_the_build_is_refused(macro: str) -> None:
    check(f"__global__ void k(float* x) {{\n  x[0] = {macro}[7]; }}\n", ("depends-on-build-time", 2))


def test_the_hour_in_a_string_or_a_comment_is_no_matter() -> None:
    check('// __TIME__\n__device__ const char* s = "__DATE__";\n' + KERNEL)


@pytest.mark.parametrize("name", ['"/dev/nvidiactl"', "</etc/hostname>", '"../task.py"', "NAME"])
def test_asking_for_a_file_of_the_machine_is_refused(name: str) -> None:
    check(f"#if __has_include({name})\n#endif\n" + KERNEL, ("asks-for-a-file", 1))


def test_asking_for_a_file_through_a_macro_is_refused() -> None:
    check('#define ASK __has_include("/dev/nvidiactl")\n#if ASK\n#endif\n' + KERNEL, ("asks-for-a-file", 1))


@pytest.mark.parametrize(
    "question", ["#ifdef __has_include", "#if defined(__has_include)", "#if defined __has_include"]
)
def test_asking_whether_one_may_ask_is_no_matter(question: str) -> None:
    check(f"{question}\n#endif\n" + KERNEL)


def test_asking_for_a_header_of_the_toolkit_is_no_matter() -> None:
    check("#if __has_include(<cuda_fp8.h>)\n#include <cuda_fp8.h>\n#endif\n" + KERNEL)


@pytest.mark.parametrize("before", ["", "namespace a::b { ", "namespace { ", 'extern "C" { ', KERNEL, "struct S { }; "])
def test_assembly_of_the_host_is_refused(before: str) -> None:
    text = before + 'asm(".incbin \\"secret\\"");\n'
    check(text, ("host-assembly", text.count("\n")))


@pytest.mark.parametrize(
    "text",
    [
        '__device__ void f() { asm volatile("membar.gl;"); }\n',
        'namespace a { template <int N> struct S { __device__ static void f() { asm("membar.gl;"); } }; }\n',
        '#define FENCE() asm volatile("membar.gl;")\n__device__ void f() { FENCE(); }\n',
        '#define FENCE() \\\n  asm volatile("membar.gl;")\n__device__ void f() { FENCE(); }\n',
        'extern "C" { __global__ void f() { asm("membar.gl;"); } }\n',
    ],
    ids=["function", "method", "macro", "macro of two lines", "extern C"],
)
def test_assembly_of_the_device_is_no_matter(text: str) -> None:
    check(text)


PASTE = "#define PASTE(a, b) a##b\n"


@pytest.mark.parametrize(
    "use",
    [
        "#if PASTE(__has_, include)(</etc/hostname>)\n#endif\n",
        "#define B PASTE(__has, _embed)\n",
        "#define B PASTE(__TI, ME__)\n",
        "#define B PASTE(PASTE(__, DATE), __)\n",
        "#define B PASTE(__CUDACC_VER_, MAJOR__)\n",
        "#define B PASTE(__LI, NE__)\n",
    ],
)
def test_a_name_that_can_be_pasted_together_is_refused(use: str) -> None:
    check(PASTE + use + KERNEL, ("pastes-a-name", 1))


def test_pasting_other_names_is_no_matter() -> None:
    check(PASTE + "#define B PASTE(k, 1) PASTE(has_, include) PASTE(TI, ME)\n" + KERNEL)


def test_words_that_would_spell_a_name_are_no_matter_where_nothing_is_pasted() -> None:
    check("int __has_, include;\n" + KERNEL)


@pytest.mark.parametrize(
    "directive", ["#line 40", '#line 40 "other.h"', "# 40", "%: line 40", "#/**/line 40", "??=line 4", "#li\\\nne 40"]
)
def test_a_line_directive_is_told(directive: str) -> None:
    check(KERNEL + directive + "\n", ("line-directive", 2))


@pytest.mark.parametrize("name", ["__LINE__", "__FILE__", "__builtin_LINE()"])
def test_a_line_directive_in_a_text_that_asks_for_its_lines_is_refused(name: str) -> None:
    text = f"#line 40\n__global__ void k(int* x) {{ x[0] = {name} != 0; }}\n"
    check(text, ("false-lines", 1), ("line-directive", 1))


def test_asking_for_lines_without_a_directive_is_no_matter() -> None:
    check("__global__ void k(int* x) { x[0] = __LINE__; }\n")


def test_findings_name_the_lines_of_the_file_and_not_those_of_a_directive(toolchain: Toolchain) -> None:
    text = '#line 1 "honest.h"\n__global__ void k(float* x) {\n    x[0] = undeclared;\n}\n'
    outcome = asyncio.run(compile_cuda(text, toolchain=toolchain, name_expressions=("k",)))
    assert isinstance(outcome, BuildFailed)
    assert [finding.line for finding in outcome.findings if finding.severity is Severity.ERROR] == [3]
