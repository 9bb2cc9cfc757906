"""Blanking out what is not code, and finding the kernel of a line."""

from __future__ import annotations

import pytest

from kernel_lsp.toolchain.integrity.masking import kernel_spans, mask_comments, mask_literals


def check(text: str, *spans: tuple[str, int, int]) -> None:
    assert kernel_spans(text) == spans


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a // b\nc", "a     \nc"),
        ("a /* b\nc */ d", "a     \n     d"),
        ('x = "// not";', 'x = "// not";'),
        ("a /* open", "a        "),
        ("1'000 // b", "1'000     "),
        ('R"(/*)" + b', 'R"(/*)" + b'),
    ],
)
def test_comments_are_blanked_in_place(text: str, code: str) -> None:
    assert mask_comments(text) == code


def test_literals_are_blanked_in_place() -> None:
    assert mask_literals("a = \"{\" + '}';") == "a =     +    ;"


def test_kernels_are_found_with_their_lines() -> None:
    check("__global__ void a() {\n}\n\n__global__ void b(int n) {\n  if (n) {\n  }\n}\n", ("a", 1, 2), ("b", 4, 7))


def test_a_declaration_is_no_kernel_yet() -> None:
    check("__global__ void a(int n);\n__global__ void a(int n) {}\n", ("a", 2, 2))


def test_launch_bounds_are_not_the_name() -> None:
    check("template <int B>\n__global__ void __launch_bounds__(B, f(2)) a(const float* x) {\n}\n", ("a", 2, 3))


def test_braces_in_strings_do_not_count() -> None:
    check('__global__ void a() { printf("}"); }\nint b;', ("a", 1, 1))
