"""Rebase known positions across an edit. Only positions near the edit are searched again."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

OFFSETS = "I"
"""Array type code of offsets: 4 bytes each."""


@dataclass(frozen=True, slots=True)
class Window:
    """The difference between two texts and their trees: the bytes ``[start, old_end)`` of one became
    ``[start, new_end)``."""

    start: int
    old_end: int
    new_end: int

    @property
    def n_more(self) -> int:
        """The distance in bytes by which the text after the window moved."""
        return self.new_end - self.old_end

    def within(self, start: int) -> Window:
        """Return the window relative to the byte `start`, which precedes it."""
        return Window(self.start - start, self.old_end - start, self.new_end - start)

    def with_lines(self, data: bytes) -> Window:
        """Return the window extended to whole lines. `data` is the new text, and lines end with a line feed."""
        end = data.find(b"\n", self.new_end)
        n_more = (len(data) if end < 0 else end) - self.new_end
        return Window(data.rfind(b"\n", 0, self.start) + 1, self.old_end + n_more, self.new_end + n_more)


def carried_places(places: Sequence[int], window: Window, found: Iterable[int]) -> list[int]:
    """Return the positions rebased to the new text, in order. `found` are the positions within the window."""
    first, behind = bisect_left(places, window.start), bisect_left(places, window.old_end)
    n_more = window.n_more
    return [*places[:first], *found, *[place + n_more for place in places[behind:]]]


class Words:
    """An index of the words in a text, with one position of each word that occurs."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.places: dict[bytes, int] = {}
        """The position of each queried word, -1 for an absent word."""

    def __contains__(self, word: bytes) -> bool:
        place = self.places.get(word)
        if place is None:
            place = self.places[word] = self.data.find(word)
        return place >= 0

    def carried(self, data: bytes, window: Window) -> Words:
        """Return the index rebased to the new text. An absent word can occur only at the window."""
        words = Words(data)
        for word, place in self.places.items():
            reach = len(word) - 1
            if place < 0:
                words.places[word] = data.find(word, max(window.start - reach, 0), window.new_end + reach)
            elif place + reach < window.start:
                words.places[word] = place
            elif place >= window.old_end:
                words.places[word] = place + window.n_more
        return words


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans of nodes, relative to the first byte of a function's body. They are in source order, and an
    enclosing node precedes its children."""

    starts: array[int]
    ends: array[int]

    def carried(self, window: Window, found: Sequence[tuple[int, int]]) -> Spans:
        """Return the spans rebased to the new tree. `found` are the spans at the window, in order."""
        first, behind = bisect_left(self.starts, window.start), bisect_left(self.starts, window.old_end)
        starts, ends = self.starts[:first], self.ends[:first]
        if first and max(ends) > window.start:
            kept = [index for index, end in enumerate(ends) if end <= window.start]
            starts = array(OFFSETS, [starts[index] for index in kept])
            ends = array(OFFSETS, [ends[index] for index in kept])
        for start, end in found:
            place = bisect_left(starts, start)
            while place < len(starts) and starts[place] == start and ends[place] > end:
                place += 1
            starts.insert(place, start)
            ends.insert(place, end)
        n_more = window.n_more
        starts.extend([start + n_more for start in self.starts[behind:]])
        ends.extend([end + n_more for end in self.ends[behind:]])
        return Spans(starts, ends)
