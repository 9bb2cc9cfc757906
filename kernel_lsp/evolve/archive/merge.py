"""Merge archives of several workspaces into a new one, and note where each run comes from."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from kernel_lsp.config import FOLDER_NAME
from kernel_lsp.core.model import SCHEMA_VERSION, Noun
from kernel_lsp.errors import UserError
from kernel_lsp.evolve.archive.archive import ARCHIVE_NAME, Archive

RUN_TABLES = ("runs", "candidates", "verdicts", "events", "replies", "proposals", "run_values")
"""Tables with a run's rows, `runs` first: the others refer to it."""
SHARED_TABLES = ("artifacts", "innovations")
"""Tables keyed by content: equal keys have equal rows."""


class MergedArchive(Noun):
    """One source of a merge. `already_there` are runs of the same id and content."""

    source: str
    runs: tuple[str, ...]
    already_there: tuple[str, ...]


class Merge(Noun):
    """JSON output of `kernel-lsp archive merge --json`."""

    schema_version: int = SCHEMA_VERSION
    archive: str
    sources: tuple[MergedArchive, ...]


def merge_archives(sources: Sequence[Path], workspace: Path) -> Merge:
    """Copy every run of the workspaces `sources` into the archive of `workspace`, all or nothing for each source.

    Merging again adds what is new. Raises UserError for a workspace without an archive, and for two runs of one id that
    differ; EnvironmentProblem for an archive that cannot be written.
    """
    files = [_file(source) for source in sources]
    with Archive(workspace) as archive:
        merged = tuple(_merge(archive, file, source) for file, source in zip(files, sources, strict=True))
    return Merge(archive=str(workspace / FOLDER_NAME), sources=merged)


# --- below: one source


def _file(workspace: Path) -> Path:
    file = workspace / FOLDER_NAME / ARCHIVE_NAME
    if not file.is_file():
        raise UserError("there is no archive", file=str(file), next_step="name a folder in which kernel-lsp ran")
    return file


def _merge(archive: Archive, file: Path, source: Path) -> MergedArchive:
    known = {record.run_id: record.started for record in archive.runs()}
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as other:
        theirs = dict(other.execute("SELECT run_id, started FROM runs ORDER BY rowid").fetchall())
        differing = [run_id for run_id in theirs if known.get(run_id, theirs[run_id]) != theirs[run_id]]
        if differing:
            raise UserError(f"two runs have the id {differing[0]}", file=str(file), next_step="merge it elsewhere")
        new = tuple(run_id for run_id in theirs if run_id not in known)
        with archive.writing() as db:
            for table in SHARED_TABLES:
                _copy(other, db, table, "", ())
            for run_id in new:
                for table in RUN_TABLES:
                    _copy(other, db, table, "WHERE run_id = ?", (run_id,))
            _copy(other, db, "origins", "", ())  # of an archive that was merged itself
            origin = (str(source.absolute()), datetime.now(UTC).isoformat(timespec="seconds"))
            db.executemany("INSERT OR IGNORE INTO origins VALUES (?, ?, ?)", [(run_id, *origin) for run_id in new])
    return MergedArchive(source=str(source), runs=new, already_there=tuple(set(theirs) - set(new)))


def _copy(other: sqlite3.Connection, db: sqlite3.Connection, table: str, where: str, given: tuple[str, ...]) -> None:
    """Copy a table's rows in their order. An archive of an older version may lack the table."""
    if not other.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
        return
    for row in other.execute(f"SELECT * FROM {table} {where} ORDER BY rowid", given):
        db.execute(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(row))})", row)
