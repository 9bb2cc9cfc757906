"""`python -m kernel_lsp` and the `kernel-lsp` script."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. `serve` goes past it: an editor waits for the first answer, and importing the other
    commands' options would take longer than answering."""
    if sys.argv[1:] == ["serve"]:
        from kernel_lsp.server.main import serve

        sys.exit(serve())
    from kernel_lsp.cli import app

    app()


if __name__ == "__main__":
    main()
