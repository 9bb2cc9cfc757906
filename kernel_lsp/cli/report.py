"""`kernel-lsp report`: what a run found, in words, as one HTML page, or as data."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kernel_lsp.cli import console
from kernel_lsp.config import FOLDER_NAME, find_workspace
from kernel_lsp.engine.archived import run_report, run_result
from kernel_lsp.export.report import render_report

PAGE_NAME = "report.html"
PIPE_WIDTH = 120
"""Characters in a line where no terminal says how many it has."""


@console.command
async def main(run_id: str, as_html: bool, out: Path | None, as_json: bool) -> int:
    directory = Path.cwd()
    if as_json:
        console.print_json(await asyncio.to_thread(run_report, directory, run_id))
    elif as_html or out is not None:
        console.stdout.print(str(_write_page(directory, run_id, out)), markup=False)
    else:
        from kernel_lsp.server.features.reports import run_report as in_words

        _print_words(in_words(run_result(directory, run_id)))
    return console.EXIT_OK


def _print_words(markdown: str) -> None:
    """Render the Markdown, in a pipe in lines of a fixed width."""
    from rich.markdown import Markdown

    is_terminal = console.stdout.is_terminal
    console.stdout.print(Markdown(markdown), width=None if is_terminal else PIPE_WIDTH)


def _write_page(directory: Path, run_id: str, out: Path | None) -> Path:
    report = run_report(directory, run_id)
    path = out or find_workspace(directory) / FOLDER_NAME / "results" / report.run_id / PAGE_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_report(report), encoding="utf-8")
    return path.absolute()
