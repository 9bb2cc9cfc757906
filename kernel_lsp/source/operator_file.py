"""Read an operator's file for what a user's code imports from it."""

from __future__ import annotations

import os
from pathlib import Path

from kernel_lsp.source.python_file import USE_PREFIX, ImportStyle


def import_statement(file: Path, out: Path, name: str, style: ImportStyle) -> str:
    """Return ``from .kernels.softmax import use_softmax``, or a statement of several lines that works for a script and
    in a package alike. Without a package the folder must be below the file's."""
    parts = Path(os.path.relpath(out, file.parent)).parts
    module = ".".join([*(part for part in parts if part not in (".", "..")), name])
    absolute, relative = (f"from {dot}{module} import {USE_PREFIX}{name}" for dot in ("", "."))
    if style == "either":
        return f"try:\n    {relative}\nexcept ImportError:  # run as a script\n    {absolute}"
    return relative if style == "relative" else absolute


def is_offered(out: Path, name: str) -> bool:
    """Return True if the operator's file exists and can replace something in the user's code."""
    return f"def {USE_PREFIX}{name}(" in _text_of(out, name)


def takes_module(out: Path, name: str) -> bool:
    """Return True if the operator is put into a module, as opposed to around a function."""
    return puts_into_module(_text_of(out, name), name)


def puts_into_module(text: str, name: str) -> bool:
    """Return True if the text of an operator's file puts it into a module."""
    return f"def {USE_PREFIX}{name}(module:" in text


def _text_of(out: Path, name: str) -> str:
    try:
        return (out / f"{name}.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
