"""A rule's diagnostic has a page to link to, also where the package is installed without the project's folder."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.rules.registry import RULES
from kernel_lsp.server.features.explanations import BESIDE, page_file


def test_in_a_checkout_the_page_is_the_project_s() -> None:
    assert page_file("docs/rules/cuda.md") == BESIDE / "docs" / "rules" / "cuda.md"


def test_without_one_it_is_written_to_the_cache(tmp_path: Path) -> None:
    for rule in RULES:
        page, _, anchor = rule.documentation.partition("#")
        path = page_file(page, tmp_path, tmp_path / "cache")
        assert path is not None
        assert path.is_relative_to(tmp_path / "cache")
        assert f"## {anchor.upper()}\n" in path.read_text()
    assert [each.name for each in sorted(path.parent.iterdir())] == ["cuda.md", "pytorch.md"]


def test_where_nothing_can_be_written_there_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert page_file("docs/rules/cuda.md", tmp_path, tmp_path / "file") is None
