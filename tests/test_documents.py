"""Pages name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
FOLDERS = ("kernel_lsp", "tests", "scripts", "benchmarks", "examples", "docs")
OF_USERS = frozenset(("my_module.py", "tasks/000017_conv2d_gelu_add.py"))
"""Names of files that a page makes up."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_python_files_that_exist(page: Path) -> None:
    known = {f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in ROOT.joinpath(folder).rglob("*.py")}
    named = set(re.findall(r"`([a-z][a-z0-9_/]*\.py)`", page.read_text(encoding="utf-8"))) - OF_USERS
    assert [name for name in sorted(named) if not any(path.endswith(f"/{name}") for path in known)] == []
