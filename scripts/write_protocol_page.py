"""Writes docs/protocol.md from the protocol's declarations: `python scripts/write_protocol_page.py`."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.server.protocol.pages import render

PAGE = Path(__file__).parent.parent / "docs" / "protocol.md"

if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
