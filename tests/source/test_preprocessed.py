"""Check which branches a text leaves to the compiler, and what its macros make of the rest."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp.source.macros import MacroError
from kernel_lsp.source.preprocessor import preprocessed

MAX_S = 20.0
"""Far above what any text of these tests takes."""


def check(text: str, expected: str) -> None:
    assert preprocessed(text).split() == expected.split()
    assert preprocessed(text).count("\n") == text.count("\n")


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("#ifdef A", "yes"),
        ("#ifndef A", "no"),
        ("#if defined(A) && A >= 2", "yes"),
        ("#if !defined A || A == 1", "no"),
        ("#if NOBODY", "no"),
        ("#if defined(__CUDACC__)", "yes"),
        ("#if 0", "no"),
        ("#if A > 1u", "yes"),
        ("#if __CUDA_ARCH__ >= 900", "yes no"),
        ("#ifdef __HIPCC__", "yes no"),
        ("#if A << 1", "yes no"),
    ],
)
def test_a_condition_keeps_what_is_compiled_or_both_where_nobody_knows(condition: str, kept: str) -> None:
    check(f"#define A 2\n{condition}\nyes\n#else\nno\n#endif\n", kept)


def test_the_first_true_branch_of_several_counts() -> None:
    check("#define W 4\n#if W == 2\na\n#elif W == 4\nb\n#elif W == 4\nc\n#else\nd\n#endif\ne", "b e")


def test_conditions_nest() -> None:
    check("#if 0\n#if 1\na\n#else\nb\n#endif\n#else\nc\n#endif", "c")


def test_a_macro_holds_until_it_is_undefined() -> None:
    check("#define A 1\nA\n#undef A\nA\n#define A 2\nA", "1 A 2")


def test_a_macro_of_a_branch_that_is_left_out_is_none() -> None:
    check("#ifdef NOBODY\n#define T double\n#else\n#define T float\n#endif\nT", "float")


def test_of_branches_that_nobody_knows_the_first_definition_counts() -> None:
    check("#if __CUDA_ARCH__ >= 800\n#define N 4\n#else\n#define N 2\n#endif\nN", "4")


def test_lines_go_on_behind_a_backslash() -> None:
    check("#define A(x) \\\n  <x \\\n  >\nA(1)\r\nend", "<1 > end")


def test_comments_are_blank_and_strings_are_not() -> None:
    check('a /* A\n b */ "// c" // d', 'a "// c"')


def test_an_endless_expansion_is_an_error() -> None:
    lines = "".join(f"#define M{n} M{n + 1} M{n + 1}\n" for n in range(40))
    with pytest.raises(MacroError):
        preprocessed(f"{lines}M0")


@given(st.text(alphabet="#ifdefneal \n\\()\"'/*AB1,.", max_size=200))
def test_any_text_is_read(text: str) -> None:
    started = time.monotonic()
    with contextlib.suppress(MacroError):
        assert preprocessed(text).count("\n") == text.count("\n")
    assert time.monotonic() - started < MAX_S
