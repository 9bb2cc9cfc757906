"""`kernel-lsp export`: a verified kernel in a form to keep or to ship, or, with `--format`, the prompts and rewards of
models as a dataset."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from kernel_lsp import __version__
from kernel_lsp.cli import console
from kernel_lsp.config import FOLDER_NAME, Settings, find_workspace, load_settings
from kernel_lsp.core.digest import sha256_of
from kernel_lsp.core.model import SCHEMA_VERSION, Noun
from kernel_lsp.core.words import counted
from kernel_lsp.errors import UserError
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.dataset import Format, parquet_module, rows, write_dataset
from kernel_lsp.evolve.archive.dataset_folder import write_folder
from kernel_lsp.evolve.archive.dataset_profiles import Profiles, profile_runs
from kernel_lsp.evolve.run.export_source import Winner, archived_winner, checked_winner
from kernel_lsp.evolve.run.optimize import describe_verification
from kernel_lsp.export.package.project import PackageParts, Provenance, default_package_name, write_package
from kernel_lsp.export.python.operator import write_operator
from kernel_lsp.plan.parser import parse_or_raise

KERNEL_SUFFIX = ".cu"


@console.command
async def main(
    source: str,
    forms: Mapping[str, Path | None],
    task: str | None,
    name: str | None,
    overrides: Mapping[str, Any],
    as_json: bool,
) -> int:
    form, directory = _chosen(source, forms)
    winner = await _winner(source, task, load_settings(Path.cwd(), overrides))
    exported = _write_operator(winner, directory) if form == "operator" else _write_package(winner, directory, name)
    if as_json:
        console.print_json(exported)
    else:
        _print(exported)
    return console.EXIT_OK


def _chosen(source: str, forms: Mapping[str, Path | None]) -> tuple[str, Path]:
    asked = [(form, directory) for form, directory in forms.items() if directory is not None]
    if len(asked) != 1:
        raise UserError(
            "give one form at a time" if asked else "no form to write: give --operator or --package",
            next_step=f"kernel-lsp export {source} --operator DIR: the kernel and a PyTorch operator, .cu and .py\n"
            f"kernel-lsp export {source} --package DIR: a project that pip installs\n"
            "kernel-lsp export RUN --format jsonl: what models were asked and earned, as a data set",
        )
    return asked[0]


async def _winner(source: str, task: str | None, settings: Settings) -> Winner:
    if not source.endswith(KERNEL_SUFFIX):
        if task is not None:
            raise UserError("a run has its task", next_step="give --task with a .cu file alone")
        return archived_winner(Path.cwd(), source)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    with console.stage(f"checking {source}"):
        return await checked_winner(Path(source), task, Path.cwd(), settings, today)


def _write_operator(winner: Winner, directory: Path) -> Exported:
    text, verified = winner.candidate.text, describe_verification(winner.verdict)
    plan = parse_or_raise(text, f"{winner.task.name}{KERNEL_SUFFIX}")
    paths = write_operator(winner.task, text, plan, directory, verification=verified)
    return Exported(
        form="operator",
        name=winner.task.name,
        directory=str(directory),
        files=tuple(map(str, paths)),
        candidate_id=winner.candidate.id,
        verified=verified,
    )


def _write_package(winner: Winner, directory: Path, name: str | None) -> Exported:
    text, provenance = winner.candidate.text, _provenance(winner)
    plan = parse_or_raise(text, f"{winner.task.name}{KERNEL_SUFFIX}")
    name = name or default_package_name(winner.task)
    files = write_package(PackageParts(winner.task, text, plan, name, provenance), directory)
    return Exported(
        form="package",
        name=name,
        directory=str(directory),
        files=tuple(map(str, files)),
        candidate_id=winner.candidate.id,
        verified=provenance.verified,
    )


def _provenance(winner: Winner) -> Provenance:
    origin, verdict = winner.candidate.origin, winner.verdict
    return Provenance(
        task=winner.task.target,
        task_sha256=sha256_of(winner.task.model_dump_json()),
        kernel_sha256=sha256_of(winner.candidate.text),
        candidate_id=winner.candidate.id,
        proposed_by=origin.model or origin.proposer,
        verified=describe_verification(verdict),
        verified_on=verdict.device,
        times=verdict.times,
        library_steps=verdict.library_steps,
        kernel_lsp_version=__version__,
        torch_version=winner.task.torch_version,
        date=winner.date,
    )


def _print(exported: Exported) -> None:
    say = console.stdout.print
    say(f"{exported.name}: {exported.form} written to {exported.directory}", style="bold", markup=False)
    say(f"  verified  {exported.verified}", markup=False)
    for position, file in enumerate(exported.files):
        say(f"  {'files' if position == 0 else '':<9} {file}", markup=False)
    imported = f"`from {exported.name} import {exported.name}` with {exported.directory} on the path"
    installed = f"pip install --no-build-isolation {exported.directory}"
    say(f"  next      {installed if exported.form == 'package' else imported}", markup=False)


ExportForm = Literal["operator", "package"]


class Exported(Noun):
    """One exported form of a verified kernel. `verified` gives the device and the evidence of its verdict."""

    schema_version: int = SCHEMA_VERSION
    form: ExportForm
    name: str
    """Name to import."""
    directory: str
    files: tuple[str, ...]
    candidate_id: str
    verified: str


FORMATS: dict[str, Format] = {"jsonl": "jsonl", "parquet": "parquet"}
ALL_RUNS = "all"


class DatasetWritten(Noun):
    """JSON output of `kernel-lsp export RUN --format jsonl --json`."""

    schema_version: int = SCHEMA_VERSION
    file: str
    format: str
    n_rows: int
    runs: tuple[str, ...]


@console.command
async def export_dataset(run: str, out: Path, form: str, overrides: Mapping[str, Any] | None, as_json: bool) -> int:
    """Export a dataset; with `overrides`, which are those of the settings, kernels are profiled for it."""
    if form not in FORMATS:
        raise UserError(f"there is no format '{form}'", next_step=f"formats: {', '.join(FORMATS)}")
    is_folder = form == "parquet" and not out.suffix
    if overrides is not None and not is_folder:
        raise UserError("profiles are columns of a folder", next_step="give --format parquet --out DIR")
    workspace = find_workspace(Path.cwd())
    if not (workspace / FOLDER_NAME).exists():
        raise UserError("there are no runs here", file=str(workspace), next_step="kernel-lsp optimize TARGET --model M")
    with Archive(workspace) as archive:
        records = archive.runs() if run == ALL_RUNS else [archive.run(run)]
        runs = tuple(record.run_id for record in reversed(records))
        if is_folder:
            profiles: Profiles = {}
            if overrides is not None:
                parquet_module()  # before minutes of profiles
                settings = load_settings(Path.cwd(), overrides)
                profiles = await profile_runs(archive, runs, settings, partial(console.stderr.print, markup=False))
            n_rows = write_folder(archive, runs, out, profiles).n_rows
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
