"""The command line, and the only room that prints. Each command imports what it needs when it runs."""

from __future__ import annotations

from kernel_lsp.cli.app import app

__all__ = ["app"]
