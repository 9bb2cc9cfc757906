"""Headers and bodies, also broken ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp.server.protocol.handshake import MAX_HEADER_BYTES, Frames, frame


def check(data: bytes, *bodies: bytes) -> None:
    assert list(Frames().feed(data)) == list(bodies)


def test_a_body_comes_out_as_it_went_in() -> None:
    check(frame(b"{}"), b"{}")


def test_two_bodies_may_come_at_once() -> None:
    check(frame(b"one") + frame(b"two"), b"one", b"two")


@given(st.lists(st.binary(max_size=30), max_size=4), st.integers(1, 7))
def test_bodies_survive_any_cutting(bodies: list[bytes], size: int) -> None:
    data = b"".join(map(frame, bodies))
    frames = Frames()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert [body for piece in pieces for body in frames.feed(piece)] == bodies


@pytest.mark.parametrize(
    "header",
    [
        b"content-length:2\r\n\r\n",
        b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\nContent-Length: 2\r\n\r\n",
        b"CONTENT-LENGTH:   2  \r\nX: y\r\n\r\n",
    ],
)
def test_headers_are_read_as_http_s_are(header: bytes) -> None:
    check(header + b"{}", b"{}")


@pytest.mark.parametrize(
    "garbage",
    [
        b"hello\r\n\r\n",
        b"Content-Length: -5\r\n\r\n",
        b"Content-Length: many\r\n\r\n",
        b"Content-Length: 999999999999\r\n\r\n",
        b"\r\n\r\n",
        b"x" * 3 * MAX_HEADER_BYTES,
    ],
)
def test_what_is_no_header_is_skipped(garbage: bytes) -> None:
    check(garbage + frame(b"{}"), b"{}")


def test_garbage_is_not_kept() -> None:
    frames = Frames()
    for _ in range(100):
        list(frames.feed(b"x" * 10_000))
    assert len(frames._buffer) <= MAX_HEADER_BYTES
