"""`kernel-lsp export RUN --format`: the prompts and rewards of models as a dataset."""

from __future__ import annotations

import itertools
from pathlib import Path

from kernel_lsp.cli import console
from kernel_lsp.config import FOLDER_NAME, find_workspace
from kernel_lsp.core.model import SCHEMA_VERSION, Noun
from kernel_lsp.core.words import counted
from kernel_lsp.errors import UserError
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.dataset import Format, rows, write_dataset
from kernel_lsp.evolve.archive.dataset_folder import write_folder

FORMATS: dict[str, Format] = {"jsonl": "jsonl", "parquet": "parquet"}
ALL_RUNS = "all"


class DatasetWritten(Noun):
    """JSON output of `kernel-lsp export RUN --format jsonl --json`."""

    schema_version: int = SCHEMA_VERSION
    file: str
    format: str
    n_rows: int
    runs: tuple[str, ...]


def main(run: str, out: Path, form: str, as_json: bool) -> int:
    """Run the command; returns the exit status."""
    return console.run_to_exit_status(_write(run, out, form, as_json))


async def _write(run: str, out: Path, form: str, as_json: bool) -> int:
    if form not in FORMATS:
        raise UserError(f"there is no format '{form}'", next_step=f"formats: {', '.join(FORMATS)}")
    workspace = find_workspace(Path.cwd())
    if not (workspace / FOLDER_NAME).exists():
        raise UserError("there are no runs here", file=str(workspace), next_step="kernel-lsp optimize TARGET --model M")
    with Archive(workspace) as archive:
        records = archive.runs() if run == ALL_RUNS else [archive.run(run)]
        runs = tuple(record.run_id for record in reversed(records))
        if form == "parquet" and not out.suffix:
            n_rows = write_folder(archive, runs, out).n_rows
        else:
            found = itertools.chain.from_iterable(rows(archive, id_) for id_ in runs)
            n_rows = write_dataset(found, out, FORMATS[form])
    written = DatasetWritten(file=str(out.absolute()), format=form, n_rows=n_rows, runs=runs)
    if as_json:
        console.print_json(written)
    else:
        console.stdout.print(f"wrote {counted(n_rows, 'row')} of {counted(len(runs), 'run')} to {out}", markup=False)
        if not n_rows:
            console.stderr.print("no model was asked in these runs: kernel-lsp optimize TARGET --model M", markup=False)
    return console.EXIT_OK
