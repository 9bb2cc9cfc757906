"""Blank comments and literals of CUDA text, so that simple rules see only code. Preserves lines and columns."""

from __future__ import annotations

import re
from functools import lru_cache

from kernel_lsp.source.preprocessor import blanked

_NOT_CODE = re.compile(
    r"""
      (?P<line_comment>//(?:\\\n|[^\n])*)
    | (?P<block_comment>/\*.*?(?:\*/|\Z))
    | (?P<raw>(?<!\w)(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)")
    | (?P<string>"(?:\\.|[^"\\\n])*")
    | (?P<number>(?<!\w)\.?[0-9](?:'\w|[eEpP][+-]|[\w.])*)
    | (?P<character>'(?:\\.|[^'\\\n])+')
    """,
    re.VERBOSE | re.DOTALL,
)
"""Includes numbers, which are code, because their digit separators look like quotes."""
_GLOBAL_FUNCTION = re.compile(
    r"\b__global__\b[^;{}]{0,500}?\b(?P<name>[A-Za-z_]\w*)\s*\((?=[^;{}]{0,4000}\)[^;{}()]{0,200}\{)"
)
_LAUNCH_BOUNDS = re.compile(
    r"\b__(?:launch_bounds|cluster_dims|maxnreg|block_size)__\s*\([^()]*(?:\([^()]*\)[^()]*)*\)"
)


@lru_cache(maxsize=4)
def mask_comments(text: str) -> str:
    """Replace every comment in `text` by spaces; string literals stay."""
    return _NOT_CODE.sub(lambda match: blanked(match[0]) if match.lastgroup in _COMMENTS else match[0], text)


@lru_cache(maxsize=4)
def mask_literals(text: str) -> str:
    """Replace every comment, string and character literal in `text` by spaces."""
    return _NOT_CODE.sub(lambda match: match[0] if match.lastgroup == "number" else blanked(match[0]), text)


def kernel_at_line(text: str, line: int) -> str | None:
    """Return the `__global__` function that contains the 1-based `line`; None outside of all."""
    for name, first, last in kernel_spans(text):
        if first <= line <= last:
            return name
    return None


@lru_cache(maxsize=8)
def kernel_spans(text: str) -> tuple[tuple[str, int, int], ...]:
    """Return name, first line and last line (1-based) of each `__global__` function with a body."""
    code = _LAUNCH_BOUNDS.sub(lambda match: blanked(match[0]), mask_literals(text))
    spans = []
    for match in _GLOBAL_FUNCTION.finditer(code):
        end = _end_of_body(code, code.find("{", match.end()))
        spans.append((match["name"], code.count("\n", 0, match.start()) + 1, code.count("\n", 0, end) + 1))
    return tuple(spans)


_COMMENTS = ("line_comment", "block_comment")


def _end_of_body(code: str, start: int) -> int:
    depth = 0
    for position in range(start, len(code)):
        if code[position] == "{":
            depth += 1
        elif code[position] == "}":
            depth -= 1
            if depth == 0:
                return position
    return len(code)
