"""Archive of all runs, in one SQLite file under `.kernel-lsp/` in the workspace, and the merge of several into a new
one.

Each finished evaluation is committed at once, in write-ahead mode, so killing any process loses no finished result.
Texts are stored once, by content hash. The folder has its own .gitignore.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from kernel_lsp.config import FOLDER_NAME, find_workspace
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.digest import sha256_of
from kernel_lsp.core.event import Event
from kernel_lsp.core.model import SCHEMA_VERSION, Noun
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.errors import EnvironmentProblem, UserError, WorkspaceBusyError

ARCHIVE_NAME = "archive.sqlite3"
LOCK_NAME = "lock"
ARCHIVE_VERSION = 1
BUSY_TIMEOUT_S = 10.0
RUN_ID_BYTES = 3
N_RUNS_NAMED = 5

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS artifacts (hash TEXT PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY, target TEXT NOT NULL, request TEXT NOT NULL, task TEXT,
    status TEXT NOT NULL, started TEXT NOT NULL, finished TEXT
);
CREATE TABLE IF NOT EXISTS candidates (
    run_id TEXT NOT NULL REFERENCES runs, candidate_id TEXT NOT NULL, origin TEXT NOT NULL, text_hash TEXT NOT NULL,
    PRIMARY KEY (run_id, candidate_id)
);
CREATE TABLE IF NOT EXISTS verdicts (
    run_id TEXT NOT NULL REFERENCES runs, candidate_id TEXT NOT NULL, depth TEXT NOT NULL, verdict TEXT NOT NULL,
    PRIMARY KEY (run_id, candidate_id, depth)
);
CREATE TABLE IF NOT EXISTS events (
    run_id TEXT NOT NULL REFERENCES runs, sequence INTEGER NOT NULL, date TEXT NOT NULL, event TEXT NOT NULL,
    PRIMARY KEY (run_id, sequence)
);
CREATE TABLE IF NOT EXISTS replies (
    run_id TEXT NOT NULL REFERENCES runs, key TEXT NOT NULL, recorded TEXT NOT NULL, PRIMARY KEY (run_id, key)
);
CREATE TABLE IF NOT EXISTS proposals (
    run_id TEXT NOT NULL REFERENCES runs, slot INTEGER NOT NULL, record TEXT NOT NULL, PRIMARY KEY (run_id, slot)
);
CREATE TABLE IF NOT EXISTS run_values (
    run_id TEXT NOT NULL REFERENCES runs, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (run_id, name)
);
CREATE TABLE IF NOT EXISTS origins (
    run_id TEXT NOT NULL REFERENCES runs, source TEXT NOT NULL, merged TEXT NOT NULL, PRIMARY KEY (run_id, source)
);
CREATE TABLE IF NOT EXISTS innovations (identity TEXT PRIMARY KEY, innovation TEXT NOT NULL);
"""


@dataclass(frozen=True)
class RunRecord:
    """One run in the archive. `request` is its original request, so that it can be resumed."""

    run_id: str
    target: str
    request: dict[str, Any]
    task_json: str | None
    status: str
    started: str


class Archive:
    """One connection. Every method commits before it returns. Use as a context manager."""

    def __init__(self, workspace: Path) -> None:
        """Open or create the archive. Raises EnvironmentProblem when the folder cannot be written or is not ours."""
        self.folder = workspace / FOLDER_NAME
        try:
            make_folder(self.folder)
            self._connection = _connect(self.folder / ARCHIVE_NAME)
        except (OSError, sqlite3.Error) as error:
            raise EnvironmentProblem(
                f"the archive cannot be opened: {error}",
                file=str(self.folder),
                next_step="make the folder writable, free some space, or run in another directory",
            ) from error

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def start_run(self, target: str, request: dict[str, Any], *, status: str = "running") -> str:
        """Record a new run, ``running`` or ``queued``, and return its id."""
        run_id = f"{datetime.now(UTC):%m%d-%H%M%S}-{secrets.token_hex(RUN_ID_BYTES)}"
        with self.writing() as db:
            db.execute(
                "INSERT INTO runs VALUES (?, ?, ?, NULL, ?, ?, NULL)",
                (run_id, target, json.dumps(request), status, _now()),
            )
        return run_id

    def save_task(self, run_id: str, task_json: str) -> None:
        with self.writing() as db:
            db.execute("UPDATE runs SET task = ? WHERE run_id = ?", (task_json, run_id))

    def go_on(self, run_id: str) -> None:
        """Record that a queued or interrupted run is running."""
        with self.writing() as db:
            db.execute("UPDATE runs SET status = 'running', finished = NULL WHERE run_id = ?", (run_id,))

    def drop_queued(self, run_id: str) -> None:
        """Forget a run that has not begun."""
        with self.writing() as db:
            db.execute("DELETE FROM runs WHERE run_id = ? AND status = 'queued'", (run_id,))

    def finish_run(self, run_id: str, status: str) -> None:
        """Record the end of the run: ``finished``, ``interrupted`` or ``failed``."""
        with self.writing() as db:
            db.execute("UPDATE runs SET status = ?, finished = ? WHERE run_id = ?", (status, _now(), run_id))

    def run(self, run_id: str) -> RunRecord:
        """Return the run with that id, the newest for ``last``, or the newest of that target. Raises UserError when
        there is none."""
        known = self.runs()
        chosen = known[:1] if run_id == "last" else [each for each in known if run_id in (each.run_id, each.target)]
        if not chosen:
            names = ", ".join(f"{record.run_id} ({record.target})" for record in known[:N_RUNS_NAMED]) or "none yet"
            raise UserError(f"no run '{run_id}' in {self.folder}", next_step=f"known runs, newest first: {names}")
        return chosen[0]

    def runs(self) -> list[RunRecord]:
        """Return every run, newest first."""
        rows = self._connection.execute(
            "SELECT run_id, target, request, task, status, started FROM runs ORDER BY started DESC, rowid DESC"
        )
        return [RunRecord(row[0], row[1], json.loads(row[2]), row[3], row[4], row[5]) for row in rows]

    def save_candidate(self, run_id: str, candidate: Candidate) -> None:
        """Store the candidate, unless it is stored already."""
        text_hash = sha256_of(candidate.text)
        with self.writing() as db:
            db.execute("INSERT OR IGNORE INTO artifacts VALUES (?, ?)", (text_hash, candidate.text))
            db.execute(
                "INSERT OR IGNORE INTO candidates VALUES (?, ?, ?, ?)",
                (run_id, candidate.id, candidate.origin.model_dump_json(), text_hash),
            )

    def save_verdict(self, run_id: str, verdict: Verdict, event: Event) -> None:
        """Store a verdict and its event, both or neither. Raises sqlite3.IntegrityError when it is already stored."""
        with self.writing() as db:
            db.execute(
                "INSERT INTO verdicts VALUES (?, ?, ?, ?)",
                (run_id, verdict.candidate_id, verdict.depth, verdict.model_dump_json()),
            )
            _insert_event(db, run_id, event)

    def save_event(self, run_id: str, event: Event) -> None:
        with self.writing() as db:
            _insert_event(db, run_id, event)

    def verdict(self, run_id: str, candidate_id: str, depth: str) -> Verdict | None:
        """Return the verdict of that depth, if there is one."""
        row = self._connection.execute(
            "SELECT verdict FROM verdicts WHERE run_id = ? AND candidate_id = ? AND depth = ?",
            (run_id, candidate_id, depth),
        ).fetchone()
        return Verdict.model_validate_json(row[0]) if row else None

    def verdicts(self, run_id: str) -> list[Verdict]:
        """Return every verdict of the run, in order."""
        rows = self._connection.execute("SELECT verdict FROM verdicts WHERE run_id = ? ORDER BY rowid", (run_id,))
        return [Verdict.model_validate_json(row[0]) for row in rows]

    def dates_of(self, candidate_id: str) -> list[tuple[str, str]]:
        """Return each run with a verdict on the candidate, and the date of its last event about it, newest first."""
        rows = self._connection.execute(
            "SELECT v.run_id, MAX(e.date) FROM verdicts v JOIN events e ON e.run_id = v.run_id"
            " AND e.event LIKE '%' || v.candidate_id || '%' WHERE v.candidate_id = ? GROUP BY v.run_id ORDER BY 2 DESC",
            (candidate_id,),
        )
        return [(row[0], row[1]) for row in rows]

    def candidates(self, run_id: str) -> list[Candidate]:
        """Return every candidate of the run, in the order proposed."""
        rows = self._connection.execute(
            "SELECT origin, content FROM candidates JOIN artifacts ON hash = text_hash"
            " WHERE run_id = ? ORDER BY candidates.rowid",
            (run_id,),
        )
        return [Candidate(text=text, origin=Origin.model_validate_json(origin)) for origin, text in rows]

    def events(self, run_id: str) -> list[Event]:
        """Return the events of the run, in order."""
        rows = self._connection.execute("SELECT event FROM events WHERE run_id = ? ORDER BY sequence", (run_id,))
        return [_EVENT.validate_json(row[0]) for row in rows]

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query; for tables defined in other modules (`model_records`, `innovations`)."""
        return self._connection.execute(query, tuple(parameters)).fetchall()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open one transaction. A full disk raises EnvironmentProblem, and the transaction is rolled back."""
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
        except sqlite3.OperationalError as error:
            raise EnvironmentProblem(
                f"the archive cannot be written: {error}",
                file=str(self.folder / ARCHIVE_NAME),
                next_step="free some space or fix the permissions, then resume the run",
            ) from error


def check_workspace_is_free(workspace: Path) -> None:
    """Raise WorkspaceBusyError when a run holds the workspace now. Writes nothing."""
    path = workspace / FOLDER_NAME / LOCK_NAME
    if path.exists():
        with suppress(PermissionError), path.open() as file:
            _lock(file, path.parent)


def is_workspace_free(workspace: Path) -> bool:
    """Return True when no run holds the workspace now."""
    try:
        check_workspace_is_free(workspace)
    except WorkspaceBusyError:
        return False
    return True


@contextmanager
def workspace_lock(workspace: Path) -> Iterator[None]:
    """Lock the workspace for one run. Raises WorkspaceBusyError naming the holder. The kernel releases it when we
    die."""
    folder = workspace / FOLDER_NAME
    try:
        make_folder(folder)
        file = (folder / LOCK_NAME).open("a+")
    except OSError as error:
        raise EnvironmentProblem(
            f"the workspace folder cannot be written: {error.strerror or error}",
            file=str(folder),
            next_step="make it writable, free some space, or run in another directory",
        ) from error
    with file:
        _lock(file, folder)
        with suppress(OSError):  # the process id is informative only; the lock holds without it
            os.ftruncate(file.fileno(), 0)
            os.pwrite(file.fileno(), str(os.getpid()).encode(), 0)  # unbuffered, so that closing cannot fail
        yield


def _lock(file: IO[str], folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        raise WorkspaceBusyError(
            f"another run holds this workspace (process {holder})",
            file=str(folder),
            next_step="wait for it to end, stop it, or run in another directory",
        ) from None


def make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # a killed process loses nothing; a power cut may
    connection.executescript(_SCHEMA)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, ARCHIVE_VERSION):
        raise sqlite3.DatabaseError(f"it was written by another version of kernel_lsp (format {version})")
    if version == 0:  # readers leave the file as it is: servers watch its date
        connection.execute(f"PRAGMA user_version = {ARCHIVE_VERSION}")
    return connection


def _insert_event(db: sqlite3.Connection, run_id: str, event: Event) -> None:
    (sequence,) = db.execute("SELECT COALESCE(MAX(sequence), 0) + 1 FROM events WHERE run_id = ?", (run_id,)).fetchone()
    db.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (run_id, sequence, _now(), event.model_dump_json()))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


RUN_TABLES = ("runs", "candidates", "verdicts", "events", "replies", "proposals", "run_values")
"""Tables with a run's rows, `runs` first: the others refer to it."""
SHARED_TABLES = ("artifacts", "innovations")
"""Tables keyed by content: equal keys have equal rows."""


class MergedArchive(Noun):
    """One source of a merge. `already_there` are runs of the same id and content."""

    source: str
    runs: tuple[str, ...]
    already_there: tuple[str, ...]


def existing_archive(directory: Path) -> Archive:
    """Open the archive of the directory's workspace. Raises UserError where there is none, and creates none: its folder
    would make any directory a workspace."""
    workspace = find_workspace(directory)
    if not (workspace / FOLDER_NAME / ARCHIVE_NAME).is_file():
        next_step = "go to the folder of your project, or: kernel-lsp optimize model.py::MyModule"
        raise UserError("there are no runs here", file=str(workspace), next_step=next_step)
    return Archive(workspace)


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
    files = [archive_file(source) for source in sources]
    with Archive(workspace) as archive:
        merged = tuple(_merge(archive, file, source) for file, source in zip(files, sources, strict=True))
    return Merge(archive=str(workspace / FOLDER_NAME), sources=merged)


def archive_file(workspace: Path) -> Path:
    """Return the file of a workspace's archive. Raises UserError without one."""
    file = workspace / FOLDER_NAME / ARCHIVE_NAME
    if not file.is_file():
        raise UserError("there is no archive", file=str(file), next_step="name a folder in which kernel-lsp ran")
    return file


def _merge(archive: Archive, file: Path, source: Path) -> MergedArchive:
    known = {record.run_id: record.started for record in archive.runs()}
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as other:
        theirs = dict(_rows(other, file, "SELECT run_id, started FROM runs ORDER BY rowid"))
        differing = [run_id for run_id in theirs if known.get(run_id, theirs[run_id]) != theirs[run_id]]
        if differing:
            raise UserError(f"two runs have the id {differing[0]}", file=str(file), next_step="merge it elsewhere")
        new = tuple(run_id for run_id in theirs if run_id not in known)
        with archive.writing() as db:
            for table in SHARED_TABLES:
                _copy(other, file, db, table)
            for run_id in new:
                for table in RUN_TABLES:
                    _copy(other, file, db, table, "WHERE run_id = ?", (run_id,))
            _copy(other, file, db, "origins")  # of an archive that was merged itself
            origin = (str(source.absolute()), datetime.now(UTC).isoformat(timespec="seconds"))
            db.executemany("INSERT OR IGNORE INTO origins VALUES (?, ?, ?)", [(run_id, *origin) for run_id in new])
    return MergedArchive(source=str(source), runs=new, already_there=tuple(set(theirs) - set(new)))


def _copy(
    other: sqlite3.Connection,
    file: Path,
    db: sqlite3.Connection,
    table: str,
    where: str = "",
    given: tuple[str, ...] = (),
) -> None:
    """Copy a table's rows in their order."""
    for row in _rows(other, file, f"SELECT * FROM {table} {where} ORDER BY rowid", given):
        db.execute(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def _rows(other: sqlite3.Connection, file: Path, query: str, given: tuple[str, ...] = ()) -> list[tuple[Any, ...]]:
    """Return what a query finds in the archive `file`. Raises UserError where it is none, or of another version."""
    try:
        return other.execute(query, given).fetchall()
    except sqlite3.Error as error:
        step = "name a folder whose archive this version of kernel-lsp wrote"
        raise UserError(f"the archive cannot be read: {error}", file=str(file), next_step=step) from None
