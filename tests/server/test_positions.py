"""Columns in UTF-8, UTF-16 and UTF-32, and the ends of lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp.server.protocol.positions import (
    ENCODINGS,
    Encoding,
    choose_encoding,
    column_of,
    split_lines,
    units_of,
    without_end,
)

texts = st.text(st.characters(exclude_categories=["Cs"]))
encodings = st.sampled_from(ENCODINGS)


def check(line: str, units: int, encoding: Encoding, column: int) -> None:
    assert column_of(line, units, encoding) == column


def test_an_astral_character_takes_two_utf_16_units() -> None:
    check("a😀b", 3, "utf-16", 2)


def test_an_astral_character_takes_four_utf_8_units() -> None:
    check("a😀b", 5, "utf-8", 2)


def test_an_astral_character_takes_one_utf_32_unit() -> None:
    check("a😀b", 2, "utf-32", 2)


def test_the_middle_of_a_surrogate_pair_is_its_start() -> None:
    check("a😀b", 2, "utf-16", 1)


@pytest.mark.parametrize("units", [2, 3, 4])
def test_the_middle_of_a_utf_8_sequence_is_its_start(units: int) -> None:
    check("a😀b", units, "utf-8", 1)


def test_beyond_the_end_is_the_end() -> None:
    check("é", 99, "utf-8", 1)


def test_a_negative_column_is_the_start() -> None:
    check("abc", -1, "utf-16", 0)


@given(texts.filter(lambda text: "\n" not in text and "\r" not in text), st.data())
def test_units_and_columns_are_each_other_s_inverse(line: str, data: st.DataObject) -> None:
    encoding = data.draw(encodings)
    column = data.draw(st.integers(0, len(line)))
    assert column_of(line, units_of(line[:column], encoding), encoding) == column


@given(texts, encodings)
def test_units_are_those_of_the_encoding(text: str, encoding: Encoding) -> None:
    width = {"utf-8": 1, "utf-16": 2, "utf-32": 4}[encoding]
    assert units_of(text, encoding) == len(text.encode(f"{encoding}-le" if width > 1 else encoding)) // width


def test_lines_end_with_three_things_and_no_others() -> None:
    assert split_lines("a\nb\r\nc\rd\x0be\u2028f\x85g") == ["a\n", "b\r\n", "c\r", "d\x0be\u2028f\x85g"]


def test_an_empty_text_is_one_empty_line() -> None:
    assert split_lines("") == [""]


def test_a_text_that_ends_with_a_line_s_end_has_one_more_line() -> None:
    assert split_lines("a\r") == ["a\r", ""]


@given(st.text("ab\r\n"))
def test_lines_add_up_to_the_text(text: str) -> None:
    lines = split_lines(text)
    assert "".join(lines) == text
    assert not any(end in without_end(line) for line in lines for end in "\r\n")


def test_the_client_s_first_choice_that_we_know_is_taken() -> None:
    assert choose_encoding(["utf-7", "utf-8", "utf-16"]) == "utf-8"


def test_a_client_that_says_nothing_gets_utf_16() -> None:
    assert choose_encoding([]) == choose_encoding([3, None]) == "utf-16"
