"""Macros come out as a C preprocessor's would."""

from __future__ import annotations

import pytest

from kernel_lsp.source.macros import MacroError, expanded, read_macro


def check(definitions: str, text: str, expected: str) -> None:
    """`definitions` stand behind `#define`, one on a line."""
    macros = {macro.name: macro for line in definitions.split("\n") if (macro := read_macro(line)) is not None}
    assert expanded(text, macros).split() == expected.split()


def test_a_name_becomes_what_it_stands_for() -> None:
    check("BLOCK 256", "k<BLOCK> BLOCKS", "k<256> BLOCKS")


def test_arguments_stand_in_place_of_parameters() -> None:
    check(
        "IN(T) const T* __restrict__",
        "(IN(float) x, IN (double) y)",
        "(const float* __restrict__ x, const double* __restrict__ y)",
    )


def test_commas_in_parentheses_separate_nothing() -> None:
    check("F(a, b) [a|b]", "F((1, 2), g(3, 4))", "[(1, 2)|g(3, 4)]")


def test_a_name_without_parentheses_is_no_invocation() -> None:
    check("F(x) x", "F + F(1)", "F + 1")


def test_words_are_joined_and_quoted() -> None:
    check("NAME(a, b) a##_##b #b", "NAME(scale, f32)", 'scale_f32 "f32"')


def test_joined_arguments_are_not_expanded_first() -> None:
    check("T float\nDIRECT(a) k_##a\nPASTE(a) DIRECT(a)", "DIRECT(T) PASTE(T)", "k_T k_float")


def test_what_comes_out_is_read_again_with_what_follows() -> None:
    check("CALL MAKE\nMAKE(x) <x>\nEACH(_) _(a) _(b)", "CALL(1) EACH(MAKE)", "<1> <a> <b>")


def test_a_name_in_its_own_expansion_stays() -> None:
    check("x x + 1\nf(a) f(a)", "x f(x)", "x + 1 f(x + 1)")


def test_the_rest_of_the_arguments_are_one() -> None:
    check("F(a, ...) g(a, __VA_ARGS__)\nG(a, ...) g(a, ##__VA_ARGS__)", "F(1, 2, 3) G(1)", "g(1, 2,3) g(1)")


def test_an_invocation_keeps_its_lines() -> None:
    macro = read_macro("F(a, b) a b")
    assert macro is not None
    assert expanded("F(1,\n  2)\nend", {"F": macro}).split("\n")[2] == "end"


def test_strings_hold_no_macros() -> None:
    check("x 1", '"x" x', '"x" 1')


@pytest.mark.parametrize("depth", [12, 60])
def test_macros_of_macros_without_end_are_given_up(depth: int) -> None:
    lines = [f"M{n} M{n + 1} M{n + 1} M{n + 1}" for n in range(depth)]
    macros = {macro.name: macro for line in lines if (macro := read_macro(line)) is not None}
    with pytest.raises(MacroError):
        expanded("M0", macros)


def test_deeply_nested_invocations_are_given_up() -> None:
    macro = read_macro("F(x) x")
    assert macro is not None
    with pytest.raises(MacroError):
        expanded("F(" * 500 + ")" * 500, {"F": macro})
