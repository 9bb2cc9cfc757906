"""Conditions that another compiler may answer otherwise than the one that checked the kernel."""

from __future__ import annotations

import pytest

from kernel_lsp.toolchain.integrity.conditionals import ForeignCondition, foreign_conditions


@pytest.mark.parametrize(
    "text",
    [
        "#define WIDE 1\n#if WIDE\nint a;\n#endif\n",
        "#define N 4\n#define HALF (N / 2)\n#if HALF >= 2 && defined(N)\n#endif\n",
        "#if 0\n#endif\n",
        "#define A 1\n#ifdef A\n#define B 2\n#endif\n#if A\n#endif\n",
        "// #ifdef __NVCC__\n/* #if __CUDA_ARCH__ */\n",
        'const char* text = "#ifdef __NVCC__";\n',
        "#define SELF SELF\n#ifdef SELF\n#endif\n",
    ],
)
def test_what_the_text_settles_is_not_foreign(text: str) -> None:
    assert foreign_conditions(text) == ()


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        ("#ifdef __NVCC__\nint evil = 1;\n#endif\n", "__NVCC__", 1),
        ("int a;\n#ifndef __CUDA_ARCH__\n#endif\n", "__CUDA_ARCH__", 2),
        ("#define N 1\n#if N && !defined(__CUDACC_RTC__)\n#endif\n", "__CUDACC_RTC__", 2),
        ("#if 0\n#elif __GNUC__ > 4\n#endif\n", "__GNUC__", 2),
        ("#define HIDDEN __NVCC__\n#if HIDDEN\n#endif\n", "HIDDEN", 2),
        ("#define A B\n#define B __clang__\n#if A\n#endif\n", "A", 3),
        ("#define J(a, b) a##b\n#if J(__NV, CC__)\n#endif\n", "J", 2),
        ("#if \\\n  __NVCC__\n#endif\n", "__NVCC__", 1),
        ("#if \\  \n  __NVCC__\n#endif\n", "__NVCC__", 1),
        ("%:ifdef __NVCC__\n%:endif\n", "__NVCC__", 1),
        ("#define N 1\n#define N __NVCC__\n#if N\n#endif\n", "N", 3),
        ("#ifndef linux\n#define linux\n#else\nint evil;\n#endif\n", "linux", 1),
        ("#ifdef linux\n#endif\n#define linux\n", "linux", 1),
        ("#if 0\n#define linux 1\n#endif\n#ifdef linux\n#endif\n", "linux", 4),
        ("#define linux 1\n#undef linux\n#ifdef linux\n#endif\n", "linux", 3),
        ("#if __has_include(<cuda_fp16.h>)\n#endif\n", "__has_include", 1),
    ],
)
def test_what_only_a_compiler_knows_is_found(text: str, name: str, line: int) -> None:
    assert ForeignCondition(name, line) in foreign_conditions(text)
