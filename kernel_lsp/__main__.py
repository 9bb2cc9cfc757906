"""`python -m kernel_lsp` and the `kernel-lsp` script."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from kernel_lsp.cli import app

    app()


if __name__ == "__main__":
    main()
