"""Cache the results of jobs by file: estimates, checks and runs, each with the text that it is about."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernel_lsp.config import FOLDER_NAME, Settings
from kernel_lsp.core.event import CandidateJudged
from kernel_lsp.core.finding import Finding
from kernel_lsp.core.measurement import LineEstimate
from kernel_lsp.core.profile import LineProfile, ProfileReport
from kernel_lsp.core.verdict import KernelFacts, Verdict
from kernel_lsp.engine.messages import RunSummary, TargetEstimate
from kernel_lsp.server.analysis.analysis_types import Target
from kernel_lsp.server.documents.documents import Document
from kernel_lsp.source.launch_blocks import base_name

PLAN_SOURCE = "plan"
"""Source of plan findings in a check; omitted, since the rules report the same."""


@dataclass(frozen=True)
class KnownEstimate:
    """An estimate of the target text with this digest, in the document at `serial`, under these settings."""

    estimate: TargetEstimate
    digest: str
    serial: int
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class NoEstimate:
    """Reason for a missing estimate of the target text with this digest, under these settings."""

    reason: str
    digest: str
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class KnownCapture:
    """A capture of the target text with this digest, in the document at `serial`."""

    digest: str
    serial: int


@dataclass(frozen=True)
class KnownCheck:
    """A verdict on the document's text at `serial`. One of the archive names its run and date as `origin`, and has what
    judges said of the text."""

    verdict: Verdict
    serial: int
    origin: str = ""
    judged: tuple[CandidateJudged, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return the findings, deduplicated, without those of the rules."""
        every = dict.fromkeys((*getattr(self.verdict.outcome, "findings", ()), *self.verdict.findings))
        return tuple(finding for finding in every if finding.source != PLAN_SOURCE)

    def facts(self, kernel: str) -> tuple[KernelFacts, ...]:
        """Return the facts that ptxas reports for each instance of a kernel."""
        return tuple(facts for facts in self.verdict.kernels if base_name(facts.kernel) == base_name(kernel))


@dataclass(frozen=True)
class KnownProfile:
    """A profile of the document's text at `serial`."""

    report: ProfileReport
    serial: int

    def by_line(self) -> dict[int, list[LineProfile]]:
        """Return the profiles of each 0-based line in every kernel that contains it, highest share first."""
        found: dict[int, list[LineProfile]] = {}
        for line in sorted(self.report.lines(), key=lambda line: -line.share):
            found.setdefault(line.line - 1, []).append(line)
        return found


@dataclass(frozen=True)
class VerifiedRun:
    """A run of this session that had a verified kernel before its end. `time` is the kernel's, as text."""

    job: str
    run_id: str
    workspace: Path
    uri: str
    symbol: str
    time: str
    is_over: bool = False


class Knowledge:
    """Results by document or file. They live as long as the server; the archive is persistent."""

    def __init__(self) -> None:
        self._estimates: dict[tuple[str, str], KnownEstimate] = {}
        self._no_estimates: dict[tuple[str, str], NoEstimate] = {}
        self._captures: dict[tuple[str, str], KnownCapture] = {}
        self._checks: dict[str, KnownCheck] = {}
        self._profiles: dict[str, KnownProfile] = {}
        self._verified: dict[str, VerifiedRun] = {}
        self._runs: dict[Path, tuple[RunSummary, ...]] = {}
        self._of_file: dict[str, list[RunSummary]] = {}

    def learn_estimate(self, uri: str, symbol: str, estimate: KnownEstimate) -> None:
        self._estimates[uri, symbol] = estimate
        self._no_estimates.pop((uri, symbol), None)

    def estimate(self, uri: str, symbol: str) -> KnownEstimate | None:
        return self._estimates.get((uri, symbol))

    def settings_of_estimates(self) -> tuple[tuple[str, str, Settings], ...]:
        """Yield the document, symbol and settings of each estimate or missing estimate."""
        return tuple((*key, known.settings) for key, known in (self._estimates | self._no_estimates).items())

    def forget_estimate(self, uri: str, symbol: str) -> None:
        """Drop an estimate whose settings have changed."""
        self._estimates.pop((uri, symbol), None)
        self._no_estimates.pop((uri, symbol), None)

    def learn_capture(self, uri: str, symbol: str, capture: KnownCapture) -> None:
        self._captures[uri, symbol] = capture

    def capture(self, uri: str, symbol: str) -> KnownCapture | None:
        """Return the target's last capture."""
        return self._captures.get((uri, symbol))

    def learn_no_estimate(self, uri: str, symbol: str, why: NoEstimate) -> None:
        self._no_estimates[uri, symbol] = why

    def why_no_estimate(self, uri: str, target: Target) -> str:
        """Return why this text of the target has no estimate, empty without an error. A retry would fail again."""
        why = self._no_estimates.get((uri, target.symbol))
        return why.reason if why is not None and why.digest == target.digest else ""

    def lines(self, document: Document, targets: Iterable[Target]) -> list[tuple[int, LineEstimate, bool]]:
        """Return the current line of each estimate in the document, and whether the target has changed since."""
        found = []
        for target in targets:
            known = self._estimates.get((document.uri, target.symbol))
            for line in known.estimate.lines if known is not None else ():
                assert known is not None
                now = document.line_now(line.line - 1, known.serial) if line.file == document.name else None
                if now is not None and document.line_text(now).strip() == line.text:
                    found.append((now, line, known.digest != target.digest))
        return found

    def learn_check(self, uri: str, check: KnownCheck) -> None:
        self._checks[uri] = check

    def check(self, uri: str) -> KnownCheck | None:
        return self._checks.get(uri)

    def learn_profile(self, uri: str, profile: KnownProfile) -> None:
        self._profiles[uri] = profile

    def profile(self, document: Document) -> KnownProfile | None:
        return self._profiles.get(document.uri)

    def profiled_lines(self, document: Document) -> dict[int, list[LineProfile]]:
        """Return the profiles by current line, without edited lines."""
        known = self._profiles.get(document.uri)
        if known is None:
            return {}
        now = [(document.line_now(line, known.serial), found) for line, found in known.by_line().items()]
        return {line: found for line, found in now if line is not None}

    def is_profile_stale(self, document: Document) -> bool:
        known = self._profiles.get(document.uri)
        return known is not None and known.serial != document.serial

    def forget(self, uri: str) -> None:
        """Drop the results of a closed document."""
        self._checks.pop(uri, None)
        self._profiles.pop(uri, None)
        for of_targets in (self._estimates, self._no_estimates, self._captures):
            for key in [key for key in of_targets if key[0] == uri]:
                del of_targets[key]

    def learn_verified(self, run: VerifiedRun) -> None:
        self._verified[run.job] = run

    def run_over(self, job: str) -> None:
        """Note the end of a run, if it had a verified kernel."""
        if job in self._verified:
            self._verified[job] = replace(self._verified[job], is_over=True)

    def verified(self, job: str | None) -> VerifiedRun | None:
        """Return the run of a job, by default the newest run, that had a verified kernel before its end."""
        return self._verified.get(job) if job is not None else next(reversed(self._verified.values()), None)

    def verified_of(self, uri: str, symbol: str) -> VerifiedRun | None:
        """Return the target's run that goes on though it has a verified kernel."""
        found = [run for run in self._verified.values() if (run.uri, run.symbol) == (uri, symbol) and not run.is_over]
        return found[-1] if found else None

    def learn_runs(self, workspace: Path, runs: tuple[RunSummary, ...]) -> None:
        self._runs[workspace] = runs
        self._index()

    def learn_run(self, workspace: Path, run: RunSummary) -> None:
        """Record a finished run."""
        others = tuple(other for other in self._runs.get(workspace, ()) if other.run_id != run.run_id)
        self._runs[workspace] = (run, *others)
        self._index()

    def runs(self, workspace: Path) -> tuple[RunSummary, ...]:
        """Return the runs of a workspace, newest first."""
        return self._runs.get(workspace, ())

    def run(self, run_id: str) -> RunSummary | None:
        return next((run for runs in self._runs.values() for run in runs if run.run_id == run_id), None)

    def last_result(self, path: Path | None, symbol: str) -> RunSummary | None:
        """Return the target's newest run that found a kernel."""
        return next((run for run in self._of(path, symbol) if run.candidate_id is not None), None)

    def interrupted(self, path: Path | None, symbol: str) -> RunSummary | None:
        """Return the target's newest run, if it did not finish."""
        newest = next(iter(self._of(path, symbol)), None)
        return newest if newest is not None and newest.is_resumable else None

    def is_stale(self, run: RunSummary, target: Target) -> bool:
        """Return True when the code has changed since the run."""
        return run.digest != target.digest

    def _of(self, path: Path | None, symbol: str) -> list[RunSummary]:
        """Return the runs of a file, whatever symbolic links it was opened through."""
        if path is None or not self._of_file:
            return []
        return [run for run in self._of_file.get(os.path.realpath(path), ()) if _same_target(run.symbol, symbol)]

    def _index(self) -> None:
        """Index the runs by target: lenses are requested often, runs end rarely."""
        self._of_file = {}
        for runs in self._runs.values():
            for run in runs:
                self._of_file.setdefault(os.path.realpath(run.file), []).append(run)


def _same_target(run_symbol: str, symbol: str) -> bool:
    """Match a run to a target. A KernelBench file's run has no symbol: it belongs to its class `Model`."""
    return run_symbol == symbol or (not run_symbol and symbol == "Model")


POLL_S = 2.0
"""Interval between two looks at the dates of an archive's files, in seconds. Not every client watches files."""
FILES = ("archive.sqlite3", "archive.sqlite3-wal")

ABSENT = (0, 0)

Signature = tuple[tuple[int, int], ...]


class ArchiveWatch:
    """Call `on_change` with each workspace whose archive has changed since it was last looked at. `is_busy` names the
    workspaces that are left alone for now, since their changes are our own."""

    def __init__(self, on_change: Callable[[Path], None], is_busy: Callable[[Path], bool]) -> None:
        self._on_change, self._is_busy = on_change, is_busy
        self._seen: dict[Path, Signature] = {}

    def add(self, workspace: Path) -> bool:
        """Watch a workspace from now on; return False if it was watched already."""
        is_new = workspace not in self._seen
        self._seen.setdefault(workspace, _signature(workspace))
        return is_new

    async def run(self) -> None:
        """Poll all archives until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            self.look()

    def look(self) -> None:
        """Report the archives that have changed."""
        for workspace, seen in tuple(self._seen.items()):
            now = _signature(workspace)
            if now != seen and not self._is_busy(workspace):
                self._seen[workspace] = now
                self._on_change(workspace)


def _signature(workspace: Path) -> Signature:
    return tuple(_stat(workspace / FOLDER_NAME / name) for name in FILES)


def _stat(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return ABSENT
    # A reader makes an empty log for as long as it reads.
    return (found.st_mtime_ns, found.st_size) if found.st_size else ABSENT
