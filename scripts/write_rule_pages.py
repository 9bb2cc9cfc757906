"""Writes docs/rules/ and the probes' table of docs/test-cases.md: `python scripts/write_rule_pages.py`."""

from __future__ import annotations

import re
from pathlib import Path

from kernel_lsp.rules.registry import TITLES, render
from kernel_lsp.verify.probes.table import TABLE

DOCS = Path(__file__).parent.parent / "docs"
PROBES = DOCS / "test-cases.md"
HEAD = "| probe | proposes | defences |\n|---|---|---|\n"


def main() -> None:
    for language in TITLES:
        (DOCS / "rules" / f"{language}.md").write_text(render(language), encoding="utf-8")
    rows = "".join(f"| {row.name} | {row.words} | {', '.join(row.defences)} |\n" for row in TABLE)
    page = re.sub(rf"{re.escape(HEAD)}(\|.*\n)*", lambda _: HEAD + rows, PROBES.read_text(encoding="utf-8"))
    PROBES.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
