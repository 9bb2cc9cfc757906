"""Find the identifiers in texts of expressions."""

from __future__ import annotations

import re

from kernel_lsp.rules.cuda.variables import IDENTIFIER

MAX_KEPT_NAMES, MAX_NAMED_CHARACTERS = 16384, 400
"""Maximum texts whose names are cached, and maximum characters of each."""
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_names: dict[str, frozenset[str]] = {}
"""The names in texts of expressions. Expressions repeat, and most survive an edit of others."""


def names_in_text(text: str) -> frozenset[str]:
    """Return every identifier in the text of an expression, including field names. Comments
    have none."""
    names = _names.get(text)
    return _names_of(text) if names is None else names


def _names_of(text: str) -> frozenset[str]:
    is_one = text.isidentifier() and text.isascii()
    names = frozenset((text,) if is_one else IDENTIFIER.findall(_COMMENT.sub(" ", text) if "/" in text else text))
    if len(text) <= MAX_NAMED_CHARACTERS:
        if len(_names) >= MAX_KEPT_NAMES:
            _names.clear()
        _names[text] = names
    return names
