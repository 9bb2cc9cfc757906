"""Handle `#line` directives, which claim other line numbers or another file. Findings need true locations, so the
compiler gets the text without them; code that uses its own line number would then be a different program."""

from __future__ import annotations

import re

from kernel_lsp.toolchain.integrity.masking import mask_literals

_LINE_DIRECTIVE = re.compile(r"^[ \t\v\f]*(?:\#|%:|\?\?=)[ \t\v\f]*(?:line\b|[0-9])[^\n]*$", re.MULTILINE)
PLACE_NAMES = ("__LINE__", "__FILE__", "__FILE_NAME__", "__BASE_FILE__", "__builtin_LINE", "__builtin_FILE")
_ASKS_FOR_ITS_PLACE = re.compile(rf"\b(?:{'|'.join(PLACE_NAMES)}|source_location)\b")


def line_directives(text: str) -> tuple[int, ...]:
    """Return the 1-based lines of the directives, in a text whose line splices are resolved."""
    code = mask_literals(text)
    return tuple(code.count("\n", 0, match.start()) + 1 for match in _LINE_DIRECTIVE.finditer(code))


def asks_for_its_place(text: str) -> bool:
    """Return True when the code depends on its line number or file name."""
    return _ASKS_FOR_ITS_PLACE.search(mask_literals(text)) is not None


def without_line_directives(text: str) -> str:
    """Blank the directives; one that spans several lines stays."""
    lines = text.split("\n")
    for number in line_directives(text):
        if not lines[number - 1].rstrip().endswith("\\"):
            lines[number - 1] = ""
    return "\n".join(lines)
