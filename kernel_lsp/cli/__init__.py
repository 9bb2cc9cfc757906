"""The command line, and the only package that prints. Each command imports its dependencies when it runs.

In: arguments, settings, files of the user's. Out: an exit status, progress on stderr, and on stdout results alone, as
text or JSON. Never: a verdict of its own, or a traceback for an error of the user's.
"""

from __future__ import annotations

from kernel_lsp.cli.app import app

__all__ = ["app"]
