"""API keys: from the environment or the system's keyring, used for a call and kept nowhere else."""

from __future__ import annotations

import os
import re
from functools import lru_cache

KEYRING_SERVICE = "kernel-lsp"
HIDDEN = "[key]"
MIN_SECRET_CHARACTERS = 8
"""Shorter values are placeholders such as ``none`` or ``ollama``, and hiding them would garble prose."""

_SECRET_NAME = re.compile(r"(?:API_?KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS)", re.IGNORECASE)
_LOOKS_SECRET = re.compile(
    r"\b(?:sk|pk|rk|xai|gsk|hf)[-_][A-Za-z0-9_-]{16,}|\bAIza[A-Za-z0-9_-]{20,}|(?<=Bearer )[\w.~+/-]{8,}"
)
_found_in_keyring: set[str] = set()


def find_key(variable: str) -> str | None:
    """The key of that name: the environment variable, else the keyring's entry for it under ``kernel-lsp``."""
    return os.environ.get(variable) or _from_keyring(variable)


def hide_keys(message: str) -> str:
    """A provider's message with every key that we know of, and everything shaped like one, replaced."""
    return _LOOKS_SECRET.sub(HIDDEN, hide_known_keys(message))


def hide_known_keys(reply: str) -> str:
    """A reply with the keys that we know of replaced. Shapes are left alone: code has names like ``key_block_size``."""
    for secret in _secrets():
        reply = reply.replace(secret, HIDDEN)
    return reply


# --- below


def _secrets() -> list[str]:
    named = {value for name, value in os.environ.items() if _SECRET_NAME.search(name)}
    found = (value for value in named | _found_in_keyring if len(value) >= MIN_SECRET_CHARACTERS)
    return sorted(found, key=len, reverse=True)


@lru_cache(maxsize=32)
def _from_keyring(variable: str) -> str | None:
    try:
        import keyring
    except ImportError:
        return None  # the keyring is optional
    try:
        value = keyring.get_password(KEYRING_SERVICE, variable)
    except keyring.errors.KeyringError:
        return None  # a locked or missing keyring is like one without the key
    if value:
        _found_in_keyring.add(value)
    return value or None
