"""Locate the rule's page that a diagnostic links to: in the checkout's docs, or generated in the user's cache, since an
installed package has no documentation files."""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache
from pathlib import Path

import kernel_lsp
from kernel_lsp.config import default_cache_directory

BESIDE = Path(kernel_lsp.__file__).parent.parent
"""Parent folder of ``docs/rules`` in a checkout."""


@lru_cache(maxsize=8)
def page_file(page: str, beside: Path = BESIDE, cache: Path | None = None) -> Path | None:
    """Return the file of a page such as ``docs/rules/cuda.md``; None if it is missing and cannot be written."""
    path = beside / page
    if path.is_file():
        return path
    folder = (default_cache_directory() if cache is None else cache) / "rules" / kernel_lsp.__version__
    written = folder / path.name
    try:
        _write(written)
    except OSError:
        return None
    return written


def rule_place(code: str) -> tuple[Path, int] | None:
    """Return the page of a rule and the 0-based line of its heading; None for any other code. Imports the rules."""
    from kernel_lsp.rules.registry import RULES

    rule = next((rule for rule in RULES if rule.code == code), None)
    path = page_file(rule.documentation.partition("#")[0]) if rule is not None else None
    if path is None:
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    return path, lines.index(f"## {code}") if f"## {code}" in lines else 0


# --- below


def _write(path: Path) -> None:
    """Write atomically, so that another server never reads half a page."""
    from kernel_lsp.rules.pages import render

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(render("cuda" if path.stem == "cuda" else "pytorch"))
    os.replace(file.name, path)
