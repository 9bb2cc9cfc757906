"""`kernel-lsp archive merge`: the runs of several workspaces in one archive."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernel_lsp.cli import console
from kernel_lsp.core.words import counted
from kernel_lsp.evolve.archive.archive import merge_archives


@console.command
async def main(sources: Sequence[Path], out: Path, as_json: bool) -> int:
    merge = merge_archives(sources, out)
    if as_json:
        console.print_json(merge)
        return console.EXIT_OK
    for source in merge.sources:
        n_known = len(source.already_there)
        console.stdout.print(
            f"{source.source}: {counted(len(source.runs), 'run')}, {n_known} there before", markup=False
        )
    console.stdout.print(f"merged into {merge.archive}", style="bold", markup=False)
    return console.EXIT_OK
