"""Split a CUDA text into parts that parse independently. Splits are after lines that close a top-level brace."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    rb"//(?:[^\n\\]|\\.)*"
    rb"|/\*.*?\*/"
    rb'|"(?:[^"\\\n]|\\.)*"'
    rb"|'(?:[^'\\\n]|\\.)*'"
    rb"|\#(?:[^\n\\]|\\\r\n|\\.)*"
    rb"|\{"
    rb"|\}",
    re.DOTALL,
)
"""Braces, and tokens that may contain characters that look like braces. Each alternative begins with a literal
character, which makes the search fast."""
_OPENS = re.compile(rb"#[ \t]*if")
_CLOSES = re.compile(rb"#[ \t]*endif")
_END_OF_LINE = re.compile(rb"[ \t]*\r?\n")
_OPENING_BRACE, _CLOSING_BRACE, _HASH = b"{}#"
_RAW_STRING = b'R"'


def split_behind_functions(data: bytes) -> list[bytes]:
    """Return the parts of `data` in order. Each consists of whole lines and ends outside of all braces and `#if`s.
    There is one part if the text has a raw string, bare carriage returns or unbalanced braces. The split ignores the
    grammar: the caller must verify that each part means the same by itself."""
    if _RAW_STRING in data or data.count(b"\r") != data.count(b"\r\n"):
        return [data]
    ends = _ends_at_the_top(data)
    if not ends or ends[-1] < len(data):
        ends.append(len(data))
    return [data[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


# --- below: braces


def _ends_at_the_top(data: bytes) -> list[int]:
    """Return the end of each line that ends with a brace closing a top-level block."""
    ends: list[int] = []
    depth = 0
    for token in _TOKEN.finditer(data):
        start = token.start()
        first = data[start]
        if first == _CLOSING_BRACE:
            depth -= 1
            if depth == 0 and (line_end := _END_OF_LINE.match(data, start + 1)):
                ends.append(line_end.end())
        elif first == _OPENING_BRACE:
            depth += 1
        elif first == _HASH:
            depth += bool(_OPENS.match(data, start)) - bool(_CLOSES.match(data, start))
        if depth < 0:
            return []
    return ends
