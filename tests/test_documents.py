"""Pages name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernel_lsp.errors import page
from tests.test_import_rules import ROOMS

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
FOLDERS = ("kernel_lsp", "tests", "scripts", "benchmarks", "examples", "docs")
OF_USERS = frozenset(("my_module.py", "tasks/000017_conv2d_gelu_add.py"))
"""Names of files that a page makes up."""


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_page_names_files_that_exist(file: Path) -> None:
    known = {f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in ROOT.joinpath(folder).rglob("*.*")}
    named, linked = names_in(file.read_text(encoding="utf-8"))
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in known)] == []
    assert [name for name in linked if not file.parent.joinpath(name).exists()] == []


def test_messages_name_pages_that_a_wheel_has_too(tmp_path: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in ROOT.joinpath("kernel_lsp").rglob("*.py")]
    named = sorted({name for text in texts for name in re.findall(r"""page\(['"]([\w-]+\.md)['"]\)""", text)})
    assert named == ["checks.md", "generator.md", "kernel-format.md", "ptx-instructions.md"]
    for name in named:
        assert page(name) == f"docs/{name}"
        assert page(name, tmp_path) == str(tmp_path / "docs" / name)
        assert ROOT.joinpath("kernel_lsp", "docs", name).is_file()
    assert '"docs/*.md"' in ROOT.joinpath("pyproject.toml").read_text(encoding="utf-8")


def test_the_architecture_names_every_room_in_order_and_every_package_of_a_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(ROOMS)
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*)", text, re.MULTILINE))
    packages = [path.parent for path in ROOT.glob("kernel_lsp/*/*/__init__.py")]
    missing = [path.name for path in packages if not re.search(rf"`(\w+/)?{path.name}`", rows[path.parent.name])]
    assert missing == []


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
