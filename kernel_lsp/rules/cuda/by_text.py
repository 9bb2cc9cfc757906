"""Find rare constructs of a function body by text search, which is faster than a walk over its many nodes."""

from __future__ import annotations

import re

from tree_sitter import Node

from kernel_lsp.rules.cuda.nodes import binaries_around

_IN_NAMES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_BEFORE_NO_NAME = _IN_NAMES | frozenset(b".")
_QUOTIENT = re.compile(rb"/(?![/*=])|%(?!=)")
_QUOTIENT_TOKENS = ("/", "%")
_POINT = re.compile(rb"\.(?:(?<=[\d']\.)|(?=\d))[\d']*(?:[eE][+-]?\d+)?(?![a-zA-Z0-9.'])")
"""The decimal point of ``0.5``, ``5.`` or ``.5e3`` without a suffix. It begins with a literal character, which makes
the search fast."""
_EXPONENT = re.compile(rb"[eE](?<=[\d'][eE])[+-]?\d+(?![a-zA-Z0-9.'])")
"""The exponent of ``1e3`` without a suffix."""


def next_mention(data: bytes, word: bytes, start: int, end: int) -> int:
    """Return the first position in the bytes ``[start, end)`` where the name occurs other than as a field, -1
    without one. A plain text search avoids compiling a pattern per name."""
    start = data.find(word, start, end)
    while start >= 0:
        after = start + len(word)
        is_whole = data[start - 1] not in _BEFORE_NO_NAME and data[after] not in _IN_NAMES
        if is_whole and data[start - 2 : start] != b"->":
            return start
        start = data.find(word, after, end)
    return -1


def quotients_in(body: Node, data: bytes) -> list[Node]:
    """Return the divisions and remainders of a body in source order."""
    places = [match.start() for match in _QUOTIENT.finditer(data, body.start_byte, body.end_byte)]
    tokens = [body.descendant_for_byte_range(place, place + 1) for place in places]
    return binaries_around([token for token in tokens if token is not None and token.type in _QUOTIENT_TOKENS])


def doubles_in(body: Node, data: bytes) -> list[Node]:
    """Return the number literals of a body that may be doubles, in source order."""
    places = [
        m.start() for pattern in (_POINT, _EXPONENT) for m in pattern.finditer(data, body.start_byte, body.end_byte)
    ]
    nodes = [body.descendant_for_byte_range(start, start + 1) for start in sorted(places)]
    return list({node.id: node for node in nodes if node is not None and node.type == "number_literal"}.values())
