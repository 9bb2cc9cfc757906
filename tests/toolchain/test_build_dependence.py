"""A text is one program, whoever compiles it and when."""

from __future__ import annotations

import pytest

from kernel_lsp.toolchain.integrity import source_findings

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
