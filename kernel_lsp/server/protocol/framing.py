"""LSP's base protocol: a header with a length, then that many bytes of JSON. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_HEADER_BYTES = 4096
MAX_BODY_BYTES = 256 << 20
_LENGTH = re.compile(rb"(?:^|\r\n)content-length[ \t]*:[ \t]*(\d{1,12})[ \t]*(?:\r\n|$)", re.IGNORECASE)
_NEXT_HEADER = re.compile(rb"content-length[ \t]*:", re.IGNORECASE)
_HEADER_END = b"\r\n\r\n"


class Frames:
    """Split bytes into message bodies. Malformed input is skipped up to the next header."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.n_skipped = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes; return the bodies that are now complete."""
        self._buffer += data
        while (body := self._next()) is not None:
            yield body

    def _next(self) -> bytes | None:
        while True:
            end = self._buffer.find(_HEADER_END)
            if end < 0:
                self._skip_garbage()
                return None
            length = self._length(end)
            if length is None:
                self._resynchronize(end)
                continue
            start = end + len(_HEADER_END)
            if len(self._buffer) < start + length:
                return None
            body = bytes(self._buffer[start : start + length])
            del self._buffer[: start + length]
            return body

    def _length(self, end: int) -> int | None:
        match = _LENGTH.search(self._buffer, 0, end)
        if match is None or int(match[1]) > MAX_BODY_BYTES or end > MAX_HEADER_BYTES:
            return None
        return int(match[1])

    def _resynchronize(self, end: int) -> None:
        """Drop a malformed header; a valid one may begin inside it."""
        again = _NEXT_HEADER.search(self._buffer, 1)
        cut = min(again.start(), end + len(_HEADER_END)) if again is not None else end + len(_HEADER_END)
        self.n_skipped += cut
        del self._buffer[:cut]

    def _skip_garbage(self) -> None:
        """Bound the buffer: keep at most one header's length of data without a header end."""
        if len(self._buffer) > MAX_HEADER_BYTES:
            excess = len(self._buffer) - MAX_HEADER_BYTES
            self.n_skipped += excess
            del self._buffer[:excess]


def frame(body: bytes) -> bytes:
    """Return a body with its header."""
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
