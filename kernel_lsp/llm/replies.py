"""Replies, read strictly: NAME, THOUGHT and CODE, each once and in this order, the code in one closed fence.

    NAME: warp_per_row
    THOUGHT: one warp reads a row with 16-byte loads ...
    CODE:
    ```cuda
    // kernel-lsp: 1
    ...
    ```

In a reply to an edit prompt the fence holds search/replace blocks for the text that the prompt showed:

    <<<<<<< SEARCH
    the lines as they are, found once
    =======
    the lines as they shall be
    >>>>>>> REPLACE
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from kernel_lsp.llm.request import Replied

MAX_NAME_CHARACTERS = 60
MAX_THOUGHT_CHARACTERS = 2000
MAX_CODE_CHARACTERS = 200_000

_NAME = re.compile(r"^NAME:[ \t]*(?P<name>\S[^\n]*)$", re.MULTILINE)
_THOUGHT = re.compile(r"^THOUGHT:[ \t]*", re.MULTILINE)
_CODE = re.compile(r"^CODE:[ \t]*$", re.MULTILINE)
_FENCE = re.compile(r"^```[ \t]*[\w+-]*[ \t]*\n(?P<code>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_OPEN_FENCE = re.compile(r"^```", re.MULTILINE)
_EDIT = re.compile(
    r"^<<<<<<< SEARCH[ \t]*\n(?P<search>.*?)^=======[ \t]*\n(?P<replace>.*?)^>>>>>>> REPLACE[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_EDIT_MARK = re.compile(r"^(?:<<<<<<< SEARCH|=======|>>>>>>> REPLACE)", re.MULTILINE)

BadKind = Literal["empty", "prose", "truncated", "malformed", "bad_edit"]


@dataclass(frozen=True)
class ParsedReply:
    """A proposal: its name, the reason for its speed, and the whole text of the kernel file."""

    name: str
    thought: str
    text: str


@dataclass(frozen=True)
class BadReply:
    """Error in a malformed reply, phrased so that its author can correct it."""

    kind: BadKind
    problem: str


def parse_rewrite(reply: Replied) -> ParsedReply | BadReply:
    """Parse a reply with a whole file."""
    return _parse(reply)


def parse_edits(reply: Replied, shown: str) -> ParsedReply | BadReply:
    """Parse a reply with edits of the `shown` text, and return the edited text."""
    parsed = _parse(reply)
    if isinstance(parsed, BadReply):
        return parsed
    text = _edited(parsed.text, shown)
    return text if isinstance(text, BadReply) else ParsedReply(parsed.name, parsed.thought, text)


def _parse(reply: Replied) -> ParsedReply | BadReply:
    text = reply.text.replace("\r\n", "\n")
    if not text.strip():
        return BadReply("empty", "the reply is empty")
    names, thoughts, codes = (list(mark.finditer(text)) for mark in (_NAME, _THOUGHT, _CODE))
    if not names and not codes and not _OPEN_FENCE.search(text):
        return _cut_off(reply) or BadReply("prose", "the reply has no NAME:, THOUGHT: and CODE: sections")
    for label, found in (("NAME:", names), ("THOUGHT:", thoughts), ("CODE:", codes)):
        if not found:
            return _cut_off(reply) or BadReply("malformed", f"there is no line that begins with {label}")
    name, thought, code = names[0], thoughts[0], codes[-1]
    if not name.end() <= thought.start() <= code.start():
        return BadReply("malformed", "the sections must come in the order NAME, THOUGHT, CODE")
    fenced = _fenced(text[code.end() :], reply)
    if isinstance(fenced, BadReply):
        return fenced
    described = " ".join(text[thought.end() : code.start()].split())[:MAX_THOUGHT_CHARACTERS]
    return ParsedReply(" ".join(name["name"].split())[:MAX_NAME_CHARACTERS], described, fenced)


def _fenced(text: str, reply: Replied) -> str | BadReply:
    blocks = list(_FENCE.finditer(text))
    if len(blocks) > 1:
        return BadReply("malformed", f"{len(blocks)} code blocks follow CODE:, and one is wanted with the whole file")
    if not blocks:
        if _OPEN_FENCE.search(text):
            return BadReply("truncated", "the code block is never closed: the reply was cut off, or lacks the last ```")
        return _cut_off(reply) or BadReply("malformed", "no code block in ``` follows CODE:")
    code = blocks[0]["code"]
    if not code.strip():
        return BadReply("malformed", "the code block is empty")
    if len(code) > MAX_CODE_CHARACTERS:
        return BadReply("malformed", f"the code has {len(code)} characters, and {MAX_CODE_CHARACTERS} are allowed")
    return code


def _cut_off(reply: Replied) -> BadReply | None:
    if reply.finish != "length":
        return None
    return BadReply("truncated", "the reply was cut off at the token limit: think less, write the code sooner")


def _edited(code: str, shown: str) -> str | BadReply:
    edits = list(_EDIT.finditer(code))
    n_marks = len(_EDIT_MARK.findall(code))
    if not edits or n_marks != 3 * len(edits):
        return BadReply("bad_edit", "the code block must hold whole SEARCH / REPLACE blocks and nothing like them")
    for number, edit in enumerate(edits, start=1):
        n_found = shown.count(edit["search"]) if edit["search"].strip() else 0
        if n_found != 1:
            return BadReply("bad_edit", f"the text of SEARCH block {number} is found {n_found} times; it must be once")
        shown = shown.replace(edit["search"], edit["replace"])
    return shown
