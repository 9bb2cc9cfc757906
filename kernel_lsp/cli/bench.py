"""`kernel-lsp bench`: several targets, one table."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from kernel_lsp.cli import console
from kernel_lsp.core.event import RunFinished
from kernel_lsp.core.model import SCHEMA_VERSION, Noun
from kernel_lsp.errors import KernelLspError, UserError
from kernel_lsp.evolve.optimize import start_request

SUITE_FILE = Path("examples") / "examples.toml"


class BenchEntry(Noun):
    """How one target ended. `speedups` are eager's time over ours by operation; `kind` says how they were reached."""

    target: str
    status: Literal["verified", "none", "refused"]
    detail: str
    speedups: dict[str, float] = {}
    times_us: dict[str, float] = {}
    kind: str = ""
    elapsed_s: float = 0.0


class BenchReport(Noun):
    """All of them."""

    schema_version: int = SCHEMA_VERSION
    entries: tuple[BenchEntry, ...]

    @property
    def n_verified(self) -> int:
        return sum(entry.status == "verified" for entry in self.entries)


def main(tasks: Sequence[str], backward: bool, overrides: Mapping[str, Any], as_json: bool) -> int:
    """Run the command; returns the exit status."""
    return console.run_to_exit_status(_bench(tasks, backward, overrides, as_json))


async def _bench(tasks: Sequence[str], backward: bool, overrides: Mapping[str, Any], as_json: bool) -> int:
    entries: list[BenchEntry] = []
    for target, with_backward in _suite(tasks, backward):
        console.stderr.print(f"{len(entries) + 1}: {target}", markup=False)
        entries.append(await _run(target, with_backward, overrides))
    report = BenchReport(entries=tuple(entries))
    if as_json:
        console.print_json(report)
    else:
        _print(report)
    return console.EXIT_OK if report.n_verified == len(entries) else console.EXIT_NO


def _suite(tasks: Sequence[str], backward: bool) -> list[tuple[str, bool]]:
    """The targets given, or the examples of the checkout that we stand in. Raises UserError without either."""
    if tasks:
        return [(target, backward) for target in tasks]
    if not SUITE_FILE.is_file():
        raise UserError(
            "no targets given, and there is no examples/examples.toml here",
            next_step="kernel-lsp bench model.py::Block other.py::f",
        )
    examples = tomllib.loads(SUITE_FILE.read_text(encoding="utf-8"))["example"]
    return [
        (str(SUITE_FILE.parent / example["target"]), backward and example["backward"])
        for example in examples
        if "kernel" not in example
    ]


async def _run(target: str, backward: bool, overrides: Mapping[str, Any]) -> BenchEntry:
    finished: RunFinished | None = None
    try:
        async for event in start_request(Path.cwd(), target, backward, overrides).events():
            finished = event if isinstance(event, RunFinished) else finished
    except KernelLspError as error:
        return BenchEntry(target=target, status="refused", detail=error.message)
    assert finished is not None, "a run ends with RunFinished or raises"
    comparisons = finished.comparisons
    return BenchEntry(
        target=target,
        status="verified" if finished.candidate_id is not None else "none",
        detail=finished.reason,
        speedups={name: comparison.speedup for name, comparison in comparisons.items()},
        times_us={name: comparison.ours.time_us for name, comparison in comparisons.items()},
        kind=", ".join(sorted({f"{c.ours.kind} on {c.ours.gpu}" for c in comparisons.values()})),
        elapsed_s=finished.elapsed_s,
    )


def _print(report: BenchReport) -> None:
    table = Table(box=None)
    for heading in ("target", "result", "time", "against eager", "how", "seconds"):
        table.add_column(heading)
    for entry in report.entries:
        times = ", ".join(f"{time_us:.3g} us" for time_us in entry.times_us.values())
        speedups = ", ".join(f"{speedup:.2g}x" for speedup in entry.speedups.values())
        table.add_row(entry.target, entry.status, times, speedups, entry.kind, f"{entry.elapsed_s:.0f}")
    console.stdout.print(table)
    for entry in report.entries:
        if entry.status != "verified":
            console.stdout.print(f"{entry.target}: {entry.detail}", markup=False)
    console.stdout.print(f"{report.n_verified} of {len(report.entries)} verified", markup=False)
