"""Digest of a target's text: a result with another digest is of other code. Calls that we inserted do not count."""

from __future__ import annotations

import hashlib
import re

from kernel_lsp.source.python_file import PythonFile

DIGEST_CHARACTERS = 16
USE_PREFIX = "use_"
"""``use_softmax(softmax)(x)`` stands for ``softmax(x)``, ``use_rms_norm(RMSNorm(8))`` for ``RMSNorm(8)``: the kernels
where they can, and what was there before everywhere else."""
_IMPORTED = re.compile(rf"^\s*from \S+ import ({USE_PREFIX}\w+)\s*$", re.MULTILINE)


def digest_of(text: str) -> str:
    """Return the digest of a text."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:DIGEST_CHARACTERS]


def target_digest(source: PythonFile, line: int, end_line: int) -> str:
    """Return the digest of a definition with the comments and decorators above it: a pragma is part of a target. Lines
    are 1-based and inclusive."""
    first = line
    while first > 1 and source.lines[first - 2].lstrip().startswith(("#", "@")):
        first -= 1
    text = "\n".join(source.lines[first - 1 : end_line])
    if USE_PREFIX in text:
        for name in set(_IMPORTED.findall("\n".join(source.lines))):
            text = _unwrapped(text, name)
    return digest_of(text)


# --- below


def _unwrapped(text: str, name: str) -> str:
    """Replace ``name(X)`` by ``X``, as before the operator was used."""
    parts = text.split(f"{name}(")
    unwrapped = parts[0]
    for part in parts[1:]:
        end = _closing(part)
        unwrapped += part[:end] + part[end + 1 :] if end >= 0 else f"{name}({part}"
    return unwrapped


def _closing(text: str) -> int:
    """Return the position of the parenthesis that closes one opened before `text`; -1 without any."""
    depth = 1
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position
    return -1
