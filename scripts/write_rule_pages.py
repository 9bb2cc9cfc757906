"""Writes docs/rules/ from the rules' declarations: `python scripts/write_rule_pages.py`."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.rules.pages import TITLES, render

PAGES = Path(__file__).parent.parent / "docs" / "rules"


def main() -> None:
    PAGES.mkdir(parents=True, exist_ok=True)
    for language in TITLES:
        (PAGES / f"{language}.md").write_text(render(language), encoding="utf-8")


if __name__ == "__main__":
    main()
