"""Constructs that make a text another program elsewhere are refused at their line, and their honest uses pass."""

from __future__ import annotations

import asyncio

import pytest

from kernel_lsp.core.finding import Severity
from kernel_lsp.core.verdict import BuildFailed
from kernel_lsp.toolchain.integrity.refused_text import extension_findings, is_allowed_header, source_findings
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


LOCATIONS = {
    "a value": "x[0] = __LINE__ == 3 ? 1 : 2;",
    "an address": "const char* file = __FILE__;",
    "a builtin": "x[0] = __builtin_LINE();",
    "an argument of another function": "report(__FILE__, 7);",
    "a value within a report": 'printf("%d", x[0] = __LINE__);',
    "a method of that name": 'mine.printf("", __LINE__);',
    "a name of its own": "const int JOIN(i, __LINE__) = 1;",
    "a spliced name": "x[0] = __LI\\\nNE__;",
}


@pytest.mark.parametrize("code", LOCATIONS.values(), ids=LOCATIONS.keys())
def test_a_source_location_is_refused(code: str) -> None:
    check(f"__global__ void k(int* x) {{\n  {code} }}\n", ("depends-on-location", 2))


@pytest.mark.parametrize(
    "text",
    [
        'printf("%s:%d\\n", __FILE__, __LINE__);',
        "static_assert(sizeof(int) == 4, __FILE__);",
        "assert(x != nullptr);",
        "const char* name = __func__;",
        'if (x == nullptr) { printf("%s:%d (%d)", __FILE__, __LINE__, max(1, 2)); __trap(); }',
    ],
)
def test_a_report_of_the_source_location_passes(text: str) -> None:
    check(f"__global__ void k(int* x) {{ {text} }}\n")
    check(f"#define CHECK() {text}\n" + KERNEL)


def test_a_report_that_the_text_defines_itself_may_have_no_location() -> None:
    own = "__device__ void printf(int* x, int line) { x[0] = line; }\n"
    text = own + "__global__ void k(int* x) { printf(x, __LINE__); }\n"
    check(text, ("depends-on-location", 2))


@pytest.mark.parametrize(
    "question",
    [
        "#if __CUDACC_VER_MAJOR__ >= 13",
        "#if CUDART_VERSION < 9000",
        "#ifdef __NVCC__",
        "#if defined(__CUDACC_RTC__)",
        "#if _CCCL_CTK_AT_LEAST(12, 5)",
    ],
)
def test_a_condition_on_the_compiler_is_refused(question: str) -> None:
    check(f"{question}\n#define N 1\n#endif\n" + KERNEL, ("depends-on-compiler", 1))


@pytest.mark.parametrize(
    "text",
    [
        "#ifndef __CUDACC_RTC__\n#include <cuda_runtime.h>\n\n#include <cstdio>\n#endif\n",
        "#if __CUDA_ARCH__ >= 900\n#define N 1\n#endif\n",
        "#ifdef __CUDACC__\n#define ON_DEVICE __device__\n#endif\n",
        "#ifndef __MY_KERNEL__\n#define __MY_KERNEL__\n#endif\n",
        "#if __cplusplus > 201703L || defined(TILE)\n#endif\n",
        "#ifdef USE_ROCM\n#elif defined(__HIP_PLATFORM_AMD__)\n#endif\n",
    ],
)
def test_a_condition_that_every_compiler_of_cuda_answers_alike_passes(text: str) -> None:
    check(text + KERNEL)


EXTENSION = """#define CHECK(x) if ((x) != 0) throw_error(__FILE__, __LINE__)
#if CUDART_VERSION >= 12000
#endif
__global__ void k(float* x) {{
  {device}
}}
void run(float* x) {{
  {host}
}}
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x[0] = clock64();", "reads-a-clock"),
        ('asm("mov.u64 %0, %%globaltimer;" : "=l"(t));', "reads-a-clock"),
        ('asm("mov.u32 %0, %%smid;" : "=r"(n));', "depends-on-place"),
        ("x[0] = __LINE__;", "depends-on-location"),
        ("x[0] = __TIME__[7];", "depends-on-build-time"),
    ],
)
def test_an_extension_is_refused_for_its_device_functions_alone(code: str, expected: str) -> None:
    refused = extension_findings(EXTENSION.format(device=code, host=""), "kernel.cu")
    assert [(finding.code, finding.line) for finding in refused] == [(expected, 5)]
    assert extension_findings(EXTENSION.format(device="x[0] = 1;", host=code), "kernel.cu") == ()


def test_findings_name_the_lines_of_the_file_and_not_those_of_a_directive(toolchain: Toolchain) -> None:
    text = '#line 1 "honest.h"\n__global__ void k(float* x) {\n    x[0] = undeclared;\n}\n'
    outcome = asyncio.run(compile_cuda(text, toolchain=toolchain, name_expressions=("k",)))
    assert isinstance(outcome, BuildFailed)
    assert [finding.line for finding in outcome.findings if finding.severity is Severity.ERROR] == [3]


HIDDEN_INCLUDES = {
    "a quote in a character that has a prefix": 'char c = u8\'"\'; const char* s = "/*";\n#include "a.h"\n',
    "a quote in a character after a keyword": (
        'int f(int x) { switch (x) { case\'"\': return *"/*"; } return 0; }\n#include "a.h"\n'
    ),
    "an identifier that ends in R": '#define XR\nconst char* s = XR"(" "/*";\n#include "a.h"\n//)"',
    "a lone carriage return": '// a\r#include "a.h"\n',
    "a trigraph that is none": '// what??/\n#include "a.h"\n',
    "a backslash before a blank": '// what\\ \n#include "a.h"\n',
    "a byte-order mark": '\ufeff#include "a.h"\n',
    "a digit separator": 'int n = 1\'000; char c = \'"\'; const char* s = "/*";\n#include "a.h"\n',
}


@pytest.mark.parametrize("text", HIDDEN_INCLUDES.values(), ids=HIDDEN_INCLUDES.keys())
def test_an_include_that_some_compiler_would_see_is_found(text: str) -> None:
    assert [finding.code for finding in source_findings(text)] == ["include-outside-toolkit"]


FOREIGN = {
    "a local file": '#include "mine.cuh"',
    "an absolute path": "#include </etc/passwd>",
    "a path that climbs": "#include <cuda/../../../etc/passwd>",
    "a macro": "#define H <cuda_fp16.h>\n#include H",
    "a digraph": "%:include </etc/passwd>",
    "a trigraph": "??=include </etc/passwd>",
    "a spliced line": "#inc\\\nlude </etc/passwd>",
    "a comment between": "#/* */include /* */ </etc/passwd>",
    "torch": "#include <torch/extension.h>",
    "the next header": "#include_next <cuda_fp16.h>",
    "a comment that ends in a string": 'const char* a = "/*";\n#include </etc/passwd>\nconst char* b = "*/";',
}


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN.keys())
def test_other_files_are_not_included(text: str) -> None:
    assert [finding.code for finding in source_findings(text)] == ["include-outside-toolkit"]


def test_a_foreign_include_is_found_on_its_line() -> None:
    assert [finding.line for finding in source_findings('#include <cuda_fp16.h>\n\n#include "a.h"\n')] == [3]


@pytest.mark.parametrize("name", ["cuda_fp16.h", "cub/block/block_scan.cuh", "cuda/std/array", "stdint.h", "mma.h"])
def test_headers_of_the_toolkit_are_allowed(name: str) -> None:
    assert is_allowed_header(name)
