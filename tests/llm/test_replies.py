"""Replies are read strictly, and what is wrong with one is said so that its author can act on it."""

from __future__ import annotations

import pytest

from kernel_lsp.llm.replies import BadReply, ParsedReply, parse_edits, parse_rewrite
from kernel_lsp.llm.request import Replied

CODE = "// kernel-lsp: 1\n// op: f(x: f32[N]) -> (out: f32[N])\n"
GOOD = f"NAME: fast_one\nTHOUGHT: because\nit is\nCODE:\n```cuda\n{CODE}```\n"
SHOWN = "a\nb\nc\nb2\n"


def read(text: str, finish: str = "stop") -> ParsedReply | BadReply:
    return parse_rewrite(Replied(model="m", text=text, finish=finish))  # type: ignore[arg-type]


def edit(*blocks: tuple[str, str]) -> ParsedReply | BadReply:
    body = "".join(f"<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n" for old, new in blocks)
    return parse_edits(Replied(model="m", text=f"NAME: e\nTHOUGHT: t\nCODE:\n```cuda\n{body}```"), SHOWN)


def kind(found: ParsedReply | BadReply) -> str:
    return found.kind if isinstance(found, BadReply) else "good"


def test_a_good_reply_gives_name_thought_and_code() -> None:
    assert read(GOOD) == ParsedReply("fast_one", "because it is", CODE)


def test_words_before_the_name_are_ignored() -> None:
    assert kind(read(f"Sure, here it is.\n\n{GOOD}")) == "good"


def test_windows_line_ends_are_read() -> None:
    assert read(GOOD.replace("\n", "\r\n")) == read(GOOD)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty"),
        ("I would rather talk about the weather.", "prose"),
        ("NAME: x\nCODE:\n```cuda\ncode\n```", "malformed"),
        ("THOUGHT: t\nCODE:\n```cuda\ncode\n```", "malformed"),
        ("NAME: x\nTHOUGHT: t\n```cuda\ncode\n```", "malformed"),
        ("THOUGHT: t\nNAME: x\nCODE:\n```cuda\ncode\n```", "malformed"),
        ("NAME: x\nTHOUGHT: t\nCODE:\n```cuda\ncode\n", "truncated"),
        ("NAME: x\nTHOUGHT: t\nCODE:\n```cuda\na\n```\n```cuda\nb\n```", "malformed"),
        ("NAME: x\nTHOUGHT: t\nCODE:\n```cuda\n\n```", "malformed"),
        ("NAME: x\nTHOUGHT: t\nCODE:\ncode", "malformed"),
    ],
)
def test_a_reply_out_of_form_says_how(text: str, expected: str) -> None:
    assert kind(read(text)) == expected


def test_a_reply_at_the_token_limit_is_truncated_not_prose() -> None:
    assert kind(read("Let me think about this", finish="length")) == "truncated"


def test_a_huge_reply_is_refused() -> None:
    assert kind(read(GOOD.replace(CODE, "x" * 300_000 + "\n"))) == "malformed"


def test_edits_change_what_they_name() -> None:
    assert edit(("a\n", "A\n"), ("c\nb2\n", "C\n")) == ParsedReply("e", "t", "A\nb\nC\n")


def test_an_edit_may_remove() -> None:
    assert edit(("a\n", "")) == ParsedReply("e", "t", "b\nc\nb2\n")


def test_a_search_that_is_not_there_is_named() -> None:
    found = edit(("a\n", "A\n"), ("nowhere\n", "x\n"))
    assert isinstance(found, BadReply)
    assert "block 2 is found 0 times" in found.problem


def test_lines_that_are_there_twice_are_named() -> None:
    text = "NAME: e\nTHOUGHT: t\nCODE:\n```cuda\n<<<<<<< SEARCH\nsame\n=======\nx\n>>>>>>> REPLACE\n```"
    found = parse_edits(Replied(model="m", text=text), "same\nother\nsame\n")
    assert isinstance(found, BadReply)
    assert "found 2 times" in found.problem


def test_a_whole_file_where_edits_are_wanted_is_refused() -> None:
    assert kind(parse_edits(Replied(model="m", text=GOOD), SHOWN)) == "bad_edit"


def test_an_unfinished_edit_block_is_refused() -> None:
    text = "NAME: e\nTHOUGHT: t\nCODE:\n```cuda\n<<<<<<< SEARCH\na\n=======\nA\n```"
    assert kind(parse_edits(Replied(model="m", text=text), SHOWN)) == "bad_edit"
