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
def test_a_page_names_files_that_exist(page: Path) -> None:
    known = {f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in ROOT.joinpath(folder).rglob("*.*")}
    named, linked = names_in(page.read_text(encoding="utf-8"))
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in known)] == []
    assert [name for name in linked if not page.parent.joinpath(name).exists()] == []


def test_a_path_in_prose_is_seen_and_none_in_a_code_block() -> None:
    assert names_in("see `verify/ray.py` and [x](x.md#y)\n```\n`model.py`\n```\n") == (["verify/ray.py"], ["x.md"])


def names_in(text: str) -> tuple[list[str], list[str]]:
    """Return the Python files, raw results and links to pages that prose names; code blocks show a user's files."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    named = (
        set(re.findall(r"`([a-z][a-z0-9_/]*\.py|(?:benchmarks/results/)?[\w.-]+-\d{4}-\d\d-\d\d\.json)`", prose))
        - OF_USERS
    )
    return sorted(named), sorted(set(re.findall(r"\]\(([\w./-]+\.md)(?:#[^)]*)?\)", prose)))
