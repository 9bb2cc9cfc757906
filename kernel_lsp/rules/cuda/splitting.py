"""Where a CUDA text can be cut, so that each part parses by itself: behind what ends with a brace at the top of it."""

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
"""What has braces that are none, and braces. Each begins with a character, which a search is fast for."""
_OPENS = re.compile(rb"#[ \t]*if")
_CLOSES = re.compile(rb"#[ \t]*endif")
_END_OF_LINE = re.compile(rb"[ \t]*\r?\n")
_OPENING_BRACE, _CLOSING_BRACE, _HASH = b"{}#"
_RAW_STRING = b'R"'


def split_behind_functions(data: bytes) -> list[bytes]:
    """The parts of `data`, in order: whole lines each, none within braces or an `#if`. One part where it has a raw
    string or carriage returns alone, or where the braces do not match. It looks at no grammar: that each part means
    the same by itself is for whoever parses it to see."""
    if _RAW_STRING in data or data.count(b"\r") != data.count(b"\r\n"):
        return [data]
    ends = _ends_at_the_top(data)
    if not ends or ends[-1] < len(data):
        ends.append(len(data))
    return [data[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


# --- below: braces


def _ends_at_the_top(data: bytes) -> list[int]:
    """Behind each line that a brace ends which closes what stands at the top."""
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
