"""Nsight Compute: its command line, and its CSV pages as typed data.

A report is written once and printed as two pages: `raw` has every metric of every launch, `source` every line of the
`.cu` file with its machine code. Only the rows of source lines are read, which sum those of their machine code.
Durations are with cold caches and unlocked clocks, and are not a measurement of a kernel's time.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SECTIONS = (
    "SpeedOfLight",
    "LaunchStats",
    "Occupancy",
    "SourceCounters",
    "WarpStateStats",
    "MemoryWorkloadAnalysis",
    "MemoryWorkloadAnalysis_Tables",
)
"""These sections take 34 passes on an H200; the full set takes half as long again without useful additions."""
ENVIRONMENT = {"LC_ALL": "C"}
"""Prevents locale-dependent number separators."""
UNITS = {
    "ns": 1e-3,
    "us": 1.0,
    "ms": 1e3,
    "s": 1e6,
    "byte": 1.0,
    "Kbyte": 1e3,
    "Mbyte": 1e6,
    "Gbyte": 1e9,
    "byte/block": 1.0,
    "Kbyte/block": 1e3,
}
"""Factors to microseconds and bytes."""
STALL_PREFIX, STALL_SUFFIX = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
STALL_COLUMN = "stall_"
NOT_ISSUED = "(Not Issued)"
SAMPLES_COLUMN = "# Samples"


@dataclass(frozen=True)
class NcuLaunch:
    """One profiled launch: `metrics` in microseconds, bytes or as printed; `name` as demangled by ncu."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    gpu: str
    metrics: Mapping[str, float]

    def metric(self, name: str) -> float:
        """Return the value; 0 for a metric that was not collected."""
        return self.metrics.get(name, 0.0)

    @property
    def stalls(self) -> dict[str, float]:
        """Return the stall reasons between two instructions of a warp, as fractions of the total, largest first."""
        found = {
            name.removeprefix(STALL_PREFIX).removesuffix(STALL_SUFFIX): value
            for name, value in self.metrics.items()
            if name.startswith(STALL_PREFIX) and name.endswith(STALL_SUFFIX) and value > 0
        }
        total = sum(found.values()) or 1.0
        return {name: value / total for name, value in sorted(found.items(), key=lambda item: -item[1])}


@dataclass(frozen=True)
class NcuLine:
    """One line of the `.cu` file in one launch. `stalls` are samples by reason."""

    file: str
    line: int
    n_samples: int
    n_instructions: int
    stalls: Mapping[str, int] = field(default_factory=dict)
    n_sectors: int = 0
    n_sectors_needed: int = 0
    n_wavefronts: int = 0
    n_wavefronts_needed: int = 0


@dataclass(frozen=True)
class NcuSource:
    """The lines of one launch, in the report's order of launches."""

    function: str
    lines: tuple[NcuLine, ...]


def collect_command(ncu: Path, report: Path, program: Sequence[str | Path]) -> list[str | Path]:
    """Return the command to profile all kernels that `program` launches between ``cuProfilerStart`` and
    ``cuProfilerStop``."""
    sections = [argument for section in SECTIONS for argument in ("--section", section)]
    options = ["--clock-control", "none", "--profile-from-start", "off", "--import-source", "yes"]
    return [ncu, *options, *sections, "--force-overwrite", "--export", report, *program]


def raw_command(ncu: Path, report: Path) -> list[str | Path]:
    return [ncu, "--import", report, "--page", "raw", "--csv"]


def source_command(ncu: Path, report: Path) -> list[str | Path]:
    return [ncu, "--import", report, "--page", "source", "--csv", "--print-source", "cuda,sass"]


def parse_raw(text: str) -> tuple[NcuLaunch, ...]:
    """Parse a `raw` page; return no launches for other text."""
    rows = list(_rows(text, "ID"))
    if len(rows) < 3:
        return ()
    names, units = rows[0], rows[1]
    return tuple(_launch(names, units, row) for row in rows[2:] if len(row) == len(names))


def parse_source(text: str) -> tuple[NcuSource, ...]:
    """Parse the lines of a `source` page by launch. A launch with code from several files has the lines of all."""
    found: list[NcuSource] = []
    file, function = "", ""
    header: list[str] = []
    lines: list[NcuLine] = []
    for row in csv.reader(io.StringIO(text)):
        if row[:1] == ["File Path"] and len(row) > 1:
            file, header = row[1], []
        elif row[:1] == ["Function Name"] and len(row) > 1:
            if lines or function:
                found.append(NcuSource(function, tuple(lines)))
            function, lines = row[1], []
        elif row[:1] == ["Line No"]:
            header = row
        elif header and row and row[0].isdigit() and len(row) == len(header):
            lines.append(_line(file, header, row))
    if function:
        found.append(NcuSource(function, tuple(lines)))
    return tuple(found)


def _rows(text: str, first: str) -> Iterator[list[str]]:
    """Return the CSV's rows starting at the header: ncu prints warnings before it."""
    begun = False
    for row in csv.reader(io.StringIO(text)):
        begun = begun or row[:1] == [first]
        if begun:
            yield row


def _launch(names: Sequence[str], units: Sequence[str], row: Sequence[str]) -> NcuLaunch:
    texts = dict(zip(names, row, strict=True))
    metrics = {
        name: value * UNITS.get(unit, 1.0)
        for name, unit, text in zip(names, units, row, strict=True)
        if (value := _number(text)) is not None
    }
    return NcuLaunch(
        name=texts.get("Kernel Name", ""),
        grid=_triple(texts.get("Grid Size", "")),
        block=_triple(texts.get("Block Size", "")),
        gpu=texts.get("device__attribute_display_name", ""),
        metrics=metrics,
    )


def _line(file: str, header: Sequence[str], row: Sequence[str]) -> NcuLine:
    values = dict(zip(header[4:], row[4:], strict=True))
    stalls = {
        name.removeprefix(STALL_COLUMN): n
        for name, text in values.items()
        if name.startswith(STALL_COLUMN) and NOT_ISSUED not in name and (n := _count(text))
    }
    return NcuLine(
        file=file,
        line=int(row[0]),
        n_samples=_count(values.get(SAMPLES_COLUMN, "")),
        n_instructions=_count(values.get("Instructions Executed", "")),
        stalls=stalls,
        n_sectors=_count(values.get("L2 Theoretical Sectors Global", "")),
        n_sectors_needed=_count(values.get("L2 Theoretical Sectors Global Ideal", "")),
        n_wavefronts=_count(values.get("L1 Wavefronts Shared", "")),
        n_wavefronts_needed=_count(values.get("L1 Wavefronts Shared Ideal", "")),
    )


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if value == value else None


def _count(text: str) -> int:
    return round(_number(text) or 0)


def _triple(text: str) -> tuple[int, int, int]:
    numbers = [int(part) for part in text.strip("() ").split(",") if part.strip().isdigit()]
    x, y, z = (*numbers, 1, 1, 1)[:3]
    return x, y, z
