"""Texts under edits, against a model that is only a string."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp.rules.finding import TextRange
from kernel_lsp.server.documents.documents import Change, Document, Documents, language_of, path_of
from kernel_lsp.server.protocol.positions import ENCODINGS, Encoding, split_lines, units_of, without_end

letters = st.text("ab\r\n😀é", max_size=12)
small, columns = st.integers(0, 5), st.integers(0, 9)
NO_FILES = ["untitled:x", "vscode-notebook-cell:/a.ipynb#1", "file://host/a", "http://a", "", "file:"]


def document(text: str, encoding: Encoding = "utf-16") -> Document:
    return Documents(encoding).open("file:///a.py", "python", 1, text)


def check(text: str, change: Change, expected: str, encoding: Encoding = "utf-16") -> None:
    edited = document(text, encoding)
    edited.apply([change], 2)
    assert edited.text == expected
    assert edited.lines == split_lines(expected)
    assert edited.version == 2


def place(text: str, offset: int, encoding: Encoding) -> tuple[int, int]:
    """A client's position of a code point; inside of a line's end it is the end of the line."""
    line = len(split_lines(text[:offset])) - 1
    before = split_lines(text)
    start = sum(map(len, before[:line]))
    return line, units_of(without_end(text[start:offset]), encoding)


def test_an_insertion() -> None:
    check("one\ntwo\n", Change("X", (1, 1), (1, 1)), "one\ntXwo\n")


def test_a_deletion_across_lines() -> None:
    check("one\ntwo\nthree", Change("", (0, 1), (2, 2)), "oree")


def test_a_whole_new_text() -> None:
    check("one", Change("two\n"), "two\n")


def test_an_edit_after_an_astral_character() -> None:
    check("😀a\n", Change("b", (0, 2), (0, 3)), "😀b\n")


def test_an_edit_in_the_middle_of_a_surrogate_pair_is_before_the_character() -> None:
    check("a😀b", Change("X", (0, 2), (0, 2)), "aX😀b")


def test_an_edit_that_ends_in_the_middle_of_a_surrogate_pair_keeps_the_character() -> None:
    check("a😀b", Change("", (0, 0), (0, 2)), "😀b")


def test_an_edit_beyond_the_end_of_a_line_is_at_its_end() -> None:
    check("one\ntwo", Change("!", (0, 99), (0, 99)), "one!\ntwo")


def test_an_edit_beyond_the_last_line_is_at_the_end() -> None:
    check("one\n", Change("two", (9, 9), (10, 0)), "one\ntwo")


def test_an_edit_whose_end_is_before_its_start_inserts() -> None:
    check("one", Change("X", (0, 2), (0, 1)), "onXe")


def test_a_newline_after_a_carriage_return_makes_one_end() -> None:
    check("a\rb", Change("\n", (1, 0), (1, 0)), "a\r\nb")


def test_a_deletion_joins_a_carriage_return_and_a_newline() -> None:
    check("a\rX\nb", Change("", (1, 0), (1, 1)), "a\r\nb")


@given(letters, letters, st.data())
def test_edits_do_what_they_do_to_a_string(text: str, new: str, data: st.DataObject) -> None:
    encoding = data.draw(st.sampled_from(ENCODINGS))
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, len(text)))
    inside_end = any(text[at - 1 : at + 1] == "\r\n" for at in (first, last))
    if not inside_end:
        change = Change(new, place(text, first, encoding), place(text, last, encoding))
        check(text, change, text[:first] + new + text[last:], encoding)


@given(letters, st.lists(st.tuples(letters, small, small, columns, columns)))
def test_any_edits_leave_lines_that_are_those_of_the_text(
    text: str, edits: list[tuple[str, int, int, int, int]]
) -> None:
    edited = document(text)
    for new, line, end_line, start, end in edits:
        edited.apply([Change(new, (line, start), (end_line, end))], 2)
    assert edited.lines == split_lines(edited.text)


def test_a_line_moves_with_the_edits_above_it() -> None:
    edited = document("a\nb\nc\n")
    edited.apply([Change("x\ny\n", (0, 0), (0, 0))], 2)
    assert [edited.line_now(line, 0) for line in range(3)] == [2, 3, 4]


def test_a_line_that_was_edited_is_nowhere() -> None:
    edited = document("a\nb\nc\n")
    edited.apply([Change("B", (1, 0), (1, 1))], 2)
    assert [edited.line_now(line, 0) for line in range(3)] == [0, None, 2]


def test_a_new_text_keeps_the_lines_that_are_the_same() -> None:
    edited = document("a\nb\nc\n")
    edited.apply([Change("a\nnew\nb\nc\n")], 2)
    assert [edited.line_now(line, 0) for line in range(3)] == [0, 2, 3]


@given(st.lists(st.tuples(st.text("xyz\n", max_size=4), st.integers(0, 9), st.integers(0, 3)), max_size=8))
def test_a_line_that_was_carried_along_is_the_same_line(edits: list[tuple[str, int, int]]) -> None:
    lines = [f"line {number}" for number in range(8)]
    edited = document("\n".join(lines))
    for new, line, n_deleted in edits:
        edited.apply([Change(new, (line, 0), (line + n_deleted, 0))], 2)
    for number, line in enumerate(lines):
        now = edited.line_now(number, 0)
        assert now is None or edited.line_text(now).endswith(line)


def test_ranges_are_given_in_the_client_s_units() -> None:
    assert document("😀ab\n", "utf-16").client_range(TextRange(0, 1, 0, 3)) == (0, 2, 0, 4)
    assert document("😀ab\n", "utf-8").client_range(TextRange(0, 1, 0, 3)) == (0, 4, 0, 6)


def test_a_range_beyond_the_text_ends_with_it() -> None:
    assert document("ab").client_range(TextRange(0, 0, 7, 3)) == (0, 0, 0, 2)


@pytest.mark.parametrize("language_id", ["cuda", "cuda-cpp"])
def test_both_names_of_cuda_are_known(language_id: str) -> None:
    assert language_of("untitled:x", language_id) == "cuda"


def test_a_file_is_known_by_its_name_where_the_client_does_not_know_it() -> None:
    assert language_of("file:///a/b.cu", "plaintext") == "cuda"
    assert language_of("file:///a/b.txt", "plaintext") == "other"


def test_a_path_is_decoded() -> None:
    assert path_of("file:///a%20b/%C3%A9.py") == Path("/a b/é.py")


@pytest.mark.parametrize("uri", NO_FILES)
def test_what_is_no_file_has_no_path(uri: str) -> None:
    assert path_of(uri) is None
