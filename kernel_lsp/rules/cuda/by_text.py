"""What is found in a function's body by its text, since there is little of it among many nodes."""

from __future__ import annotations

import re
from bisect import bisect_left

from tree_sitter import Node

from kernel_lsp.rules.cuda.nodes import binaries_around

_IN_NAMES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_BEFORE_NO_NAME = _IN_NAMES | frozenset(b".")
_QUOTIENT = re.compile(rb"/(?![/*=])|%(?!=)")
_QUOTIENT_TOKENS = ("/", "%")


def next_mention(data: bytes, word: bytes, start: int, end: int) -> int:
    """The first place in the bytes ``[start, end)`` where the name stands other than as a field, -1 without one. A
    search for the text, since a pattern for each name would have to be compiled."""
    start = data.find(word, start, end)
    while start >= 0:
        after = start + len(word)
        is_whole = data[start - 1] not in _BEFORE_NO_NAME and data[after] not in _IN_NAMES
        if is_whole and data[start - 2 : start] != b"->":
            return start
        start = data.find(word, after, end)
    return -1


def quotients_in(body: Node, data: bytes) -> list[Node]:
    """The divisions and remainders in a body, in the order of the text."""
    places = [match.start() for match in _QUOTIENT.finditer(data, body.start_byte, body.end_byte)]
    tokens = [body.descendant_for_byte_range(place, place + 1) for place in places]
    return binaries_around([token for token in tokens if token is not None and token.type in _QUOTIENT_TOKENS])


def numbers_in(body: Node, places: list[int]) -> list[Node]:
    """The number literals in a body at those of the places, which are in order, that lie in it."""
    first = bisect_left(places, body.start_byte)
    if first == len(places) or places[first] >= body.end_byte:
        return []
    inside = places[first : bisect_left(places, body.end_byte, lo=first)]
    nodes = [body.descendant_for_byte_range(start, start + 1) for start in inside]
    return list({node.id: node for node in nodes if node is not None and node.type == "number_literal"}.values())
