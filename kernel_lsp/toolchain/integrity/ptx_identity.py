"""Identify equal programs: hash PTX without the parts that do not run."""

from __future__ import annotations

import hashlib
import re

HASH_HEX_DIGITS = 16

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SECTION = re.compile(r"^\s*\.section\b.*\Z", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"^\s*\.(?:loc|file|version|target|address_size)\b[^\n]*$", re.MULTILINE)
_ENTRY = re.compile(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)")
_NAME = re.compile(r"[$%]?[A-Za-z_$][\w$]*")
_REGISTER = re.compile(r"%[a-z]+\d+|\$L_\w+|[\w$]+_param_\d+")


def program_hash(ptx: str) -> str:
    """Hash the instructions, ignoring lines, comments and the names of kernels, registers, labels and parameters."""
    text = _NOT_RUN.sub("", _SECTION.sub("", _COMMENT.sub("", ptx)))
    renamed: dict[str, str] = {name: f"@{position}" for position, name in enumerate(_ENTRY.findall(text))}

    def rename(match: re.Match[str]) -> str:
        name = match[0]
        if name not in renamed and _REGISTER.fullmatch(name):
            renamed[name] = f"@{len(renamed)}"
        return renamed.get(name, name)

    words = " ".join(_NAME.sub(rename, text).split())
    return hashlib.sha256(words.encode()).hexdigest()[:HASH_HEX_DIGITS]
