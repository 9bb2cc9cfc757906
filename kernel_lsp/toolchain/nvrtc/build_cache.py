"""Keep compiled kernels on disk by content.

An entry is one file: a line with the SHA-256 of the rest, then the outcome as JSON. It is created by rename, so a
reader sees a whole entry or none, even if the writer is killed. A lost entry costs one compile.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from kernel_lsp.core.verdict import BuildFailed, BuildOutcome, Built
from kernel_lsp.process.atomic_files import TEMPORARY_PREFIX, write_atomically

DEFAULT_MAX_BYTES = 512 << 20
PRUNE_EVERY_N_WRITES = 64
PRUNE_TO_FRACTION = 0.8
STALE_TEMPORARY_S = 3600.0

_LOGGER = logging.getLogger(__name__)
_OUTCOME: TypeAdapter[Built | BuildFailed] = TypeAdapter(BuildOutcome)


class BuildCache:
    """Compile outcomes under a directory, up to about `max_bytes`, with least recently used entries evicted first.

    Never raises: an unreadable entry is a miss, and after a failed write (logged once) it is read-only.
    """

    def __init__(self, directory: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._writes = 0
        self._writable = True

    def get(self, key: str) -> Built | BuildFailed | None:
        """Return the outcome stored under `key`; None when it is missing or damaged."""
        path = self._path(key)
        try:
            checksum, _, payload = path.read_bytes().partition(b"\n")
            if checksum.decode() != _checksum(payload):
                return None
            outcome = _OUTCOME.validate_json(payload)
        except (OSError, ValueError, ValidationError):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return outcome.model_copy(update={"from_cache": True}) if isinstance(outcome, Built) else outcome

    def put(self, key: str, outcome: Built | BuildFailed) -> None:
        """Store `outcome` under `key`, if the disk allows."""
        if not self._writable:
            return
        payload = outcome.model_dump_json().encode()
        try:
            if self._writes % PRUNE_EVERY_N_WRITES == 0:
                self._prune()
            write_atomically(self._path(key), _checksum(payload).encode() + b"\n" + payload)
            self._writes += 1
        except OSError as problem:
            self._writable = False
            _LOGGER.warning("compiled kernels are not kept in %s: %s", self._directory, problem)

    def _path(self, key: str) -> Path:
        return self._directory / key[:2] / f"{key}.json"

    def _prune(self) -> None:
        """Delete files of killed writers, and the oldest entries beyond the size limit."""
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        if total <= self._max_bytes:
            return
        for _, size, path in entries:
            if total <= self._max_bytes * PRUNE_TO_FRACTION:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """Return last use, bytes and path of every entry. Other processes may delete entries at any time."""
        for path in self._directory.glob("*/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                if not path.name.startswith(TEMPORARY_PREFIX):
                    yield status.st_mtime, status.st_size, path
                elif status.st_mtime < time.time() - STALE_TEMPORARY_S:
                    path.unlink()


def content_key(*parts: str) -> str:
    """Return the SHA-256 of the parts with their lengths, so that different lists never share a key."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def _checksum(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()
