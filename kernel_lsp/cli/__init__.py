"""The command line, and the only package that prints. Each command imports its dependencies when it runs."""

from __future__ import annotations

from kernel_lsp.cli.app import app

__all__ = ["app"]
