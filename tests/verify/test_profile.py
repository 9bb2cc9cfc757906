"""Derive lines, bounds and advice from the tools' pages and the executor's counters."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.profile import KernelProfile, LineProfile, ProfileReport
from kernel_lsp.core.verdict import KernelFacts
from kernel_lsp.plan.binding import bind
from kernel_lsp.plan.parser import parse_or_raise
from kernel_lsp.process.confinement import Confinement, SandboxLevel, support
from kernel_lsp.process.profiles import profiler_confinement
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.toolchain.tools.binaries import Tool
from kernel_lsp.toolchain.tools.ncu import parse_raw, parse_source
from kernel_lsp.verify.profile.advice import advise
from kernel_lsp.verify.profile.ncu_kernels import measured_kernels
from kernel_lsp.verify.profile.tool_machine import LocalTools, Program
from kernel_lsp.verify.profile.tools import run_ncu, run_sanitizers, run_tidy

UNCONFINED = Confinement(SandboxLevel.NONE)
HERE = Path(__file__).parent / "profiles"
RECORDED = HERE / "recorded"
SYMBOLS = {"scale<256>": "_Z5scale", "transpose_tiles": "_Z15transpose"}


TRUE = Program(("true",))


def local(confinement: Confinement) -> LocalTools:
    """This machine's tools, which all run in this confinement."""
    return LocalTools(Path("env"), lambda folder: confinement)


def bound_transpose() -> BoundOperation:
    text = (HERE / "slow_transpose.cu").read_text()
    return bind(parse_or_raise(text, "slow_transpose.cu").forward, {"x": (4096, 1024)}, {}, kernel_signatures(text))


def measured() -> tuple[KernelProfile, ...]:
    facts = KernelFacts(
        kernel="scale", symbol="_Z5scale", n_registers=16, spill_store_bytes=8, spill_load_bytes=4, stack_bytes=0,
        shared_bytes=0,
    )  # fmt: skip
    launches = parse_raw((RECORDED / "ncu_raw.csv").read_text())
    sources = parse_source((RECORDED / "ncu_source.csv").read_text())
    return measured_kernels(bound_transpose(), launches, sources, [facts], SYMBOLS, "slow_transpose.cu")


def test_launches_of_the_plan_meet_those_of_the_report() -> None:
    scale, transpose = measured()
    assert [scale.kernel, transpose.kernel] == ["scale<256>", "transpose_tiles"]
    assert [scale.launch_line, transpose.launch_line] == [7, 8]
    assert scale.share + transpose.share == pytest.approx(1.0)
    assert scale.share == pytest.approx(0.796, abs=0.01)
    assert (scale.spill_bytes, transpose.spill_bytes) == (12, 0)
    assert scale.compulsory_bytes == 2 * 4096 * 1024 * 4


def test_what_bounds_a_kernel_is_what_is_busy() -> None:
    scale, transpose = measured()
    assert (scale.bound, transpose.bound) == ("cache", "cache")
    assert scale.l2_busy == pytest.approx(0.84, abs=0.02)
    assert transpose.l1_busy == pytest.approx(0.75, abs=0.03)
    assert transpose.occupancy_limit in ("registers", "threads")


def test_a_line_says_what_it_waits_for_and_what_it_wastes() -> None:
    scale, transpose = measured()
    by_line = {line.line: line for line in scale.lines}
    assert by_line[21].stall == "global memory"
    assert by_line[21].wasted_sectors == pytest.approx(0.875)
    assert sum(line.share for line in scale.lines) == pytest.approx(1.0)
    conflict = {line.line: line for line in transpose.lines}[31]
    assert conflict.wasted_wavefronts == pytest.approx(31 / 32)
    assert "bank conflicts: 32 times the passes" in conflict.in_words()


def test_lines_of_other_files_are_left_out() -> None:
    launches = parse_raw((RECORDED / "ncu_raw.csv").read_text())
    sources = parse_source((RECORDED / "ncu_source.csv").read_text().replace("/slow_transpose.cu", "/usr/cub.cuh"))
    kernels = measured_kernels(bound_transpose(), launches, sources, [], SYMBOLS, "slow_transpose.cu")
    assert [kernel.lines for kernel in kernels] == [(), ()]


def test_the_most_promising_changes_are_those_that_were_planted() -> None:
    advice = advise(measured(), time_us=117.0, floor_us=7.8)
    assert [(a.kernel, a.line) for a in advice[:2]] == [("scale<256>", 20), ("transpose_tiles", 31)]
    assert advice[0].title == "Let neighbouring threads access neighbouring elements"
    assert "8.0 times the sectors" in advice[0].evidence
    assert advice[1].title == "Pad or swizzle the shared tile"
    assert len(advice) <= 3
    assert all(0 < a.gain < 1 for a in advice)


# --- below: single rules


def kernel(**changes: Any) -> KernelProfile:
    """A kernel with nothing wrong."""
    good: dict[str, Any] = {
        "kernel": "k",
        "operation": "op",
        "share": 1.0,
        "bound": "memory",
        "grid": (4096, 1, 1),
        "block": (256, 1, 1),
        "n_registers": 32,
        "occupancy": 1.0,
        "occupancy_limit": "threads",
        "n_waves": 16.0,
        "bytes_moved": 1_000_000,
        "compulsory_bytes": 1_000_000,
        "device_memory_busy": 0.9,
        "lines": (LineProfile(line=5, kernel="k", share=1.0, n_instructions=9, n_sectors=100, n_sectors_needed=100),),
    }
    return KernelProfile(**{**good, **changes})


def titles(**changes: Any) -> list[str]:
    return [advice.title for advice in advise([kernel(**changes)], time_us=100.0, floor_us=10.0)]


def test_a_kernel_with_nothing_wrong_gets_no_advice() -> None:
    assert titles() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spill_bytes": 64}, "more registers"),
        ({"occupancy": 0.25, "occupancy_limit": "shared memory"}, "more warps"),
        ({"n_waves": 0.4}, "more blocks"),
        ({"n_waves": 1.1}, "whole waves"),
        ({"bytes_moved": 2_000_000}, "every element once"),
        ({"stalls": {"other warps at a barrier": 0.4}}, "warp shuffles"),
        ({"stalls": {"global memory": 0.7}, "bound": "latency"}, "more loads in flight"),
    ],
)
def test_a_rule_speaks_when_its_cause_is_there(changes: dict[str, Any], words: str) -> None:
    (title,) = titles(**changes)
    assert words in title


@pytest.mark.parametrize(
    "changes",
    [
        {"occupancy": 0.25, "bound": "compute"},
        {"n_waves": 9.1},
        {"bytes_moved": 2_000_000, "device_memory_busy": 0.1},
        {"stalls": {"other warps at a barrier": 0.05}},
        {"stalls": {"global memory": 0.7}},
        {"bound": "launch", "n_waves": 0.1},
    ],
)
def test_a_rule_is_silent_when_its_cause_does_not_matter(changes: dict[str, Any]) -> None:
    assert titles(**changes) == []


def test_small_operations_of_several_launches_are_to_be_fused() -> None:
    advice = advise([kernel(share=0.5), kernel(share=0.5)], time_us=10.0, floor_us=1.0)
    assert [a.title for a in advice] == ["Fuse launches"]
    assert advise([kernel(share=0.5), kernel(share=0.5)], time_us=900.0, floor_us=1.0) == ()


def test_at_the_floor_there_is_nothing_to_advise() -> None:
    assert advise([kernel(spill_bytes=64)], time_us=11.0, floor_us=10.0) == ()


def test_no_gain_goes_below_the_floor() -> None:
    wasteful = kernel(lines=(LineProfile(line=5, kernel="k", share=1, n_instructions=1, n_sectors=32,
                                         n_sectors_needed=1),))  # fmt: skip
    (advice,) = advise([wasteful], time_us=20.0, floor_us=10.0)
    assert advice.gain == pytest.approx(0.5)


def test_the_summary_has_what_matters() -> None:
    kernels = measured()
    report = ProfileReport(
        kind="measured", file="slow_transpose.cu", device="H200", date="2026-11-21", shapes={}, time_us=117.0,
        floor_us=7.8, floor_basis="33.6 MB at 4.3 TB/s", kernels=kernels, advice=advise(kernels, 117.0, 7.8),
    )  # fmt: skip
    text = report.summary()
    assert "117 us measured on H200, 15.0 times the speed of light of 7.8 us" in text
    assert "scale<256>: 80% of the time, bound by the caches (L2 84% busy" in text
    assert "1. Let neighbouring threads" in text
    assert report.hottest is not None
    assert report.hottest.kernel == "scale<256>"
    assert [line.line for line in report.lines()] == sorted(line.line for line in report.lines())


# --- below: the tools as processes


def program(folder: Path, name: str, body: str) -> Tool:
    """A program that stands for a tool."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Tool(name=name, purpose="", path=path, version="1.0")


NCU = f"""
case "$*" in
  *--export*) for last; do :; done; while [ "$1" != --export ]; do shift; done; echo report > "$2" ;;
  *raw*) cat {RECORDED}/ncu_raw.csv ;;
  *) cat {RECORDED}/ncu_source.csv ;;
esac
"""
SANITIZER = f"""
while [ "$1" != --tool ]; do shift; done; tool=$2
while [ "$1" != --save ]; do shift; done; cp {RECORDED}/$tool.xml "$2"; exit 86
"""


def test_ncu_is_run_and_its_pages_are_read(tmp_path: Path) -> None:
    pages = asyncio.run(run_ncu(program(tmp_path, "ncu", NCU), TRUE, tmp_path, local(UNCONFINED)))
    assert (pages.run.status, pages.run.version) == ("ran", "1.0")
    assert (len(pages.launches), len(pages.sources)) == (2, 2)


def test_ncu_that_may_not_read_counters_says_so(tmp_path: Path) -> None:
    refuses = program(tmp_path, "ncu", "echo '==ERROR== ERR_NVGPUCTRPERM - no permission' >&2; exit 1")
    pages = asyncio.run(run_ncu(refuses, TRUE, tmp_path, local(UNCONFINED)))
    assert pages.run.status == "failed"
    assert "ERR_NVGPUCTRPERM" in pages.run.reason
    assert pages.launches == ()


def test_all_four_sanitizers_run(tmp_path: Path) -> None:
    runs, findings = asyncio.run(run_sanitizers(program(tmp_path, "cs", SANITIZER), TRUE, tmp_path, local(UNCONFINED)))
    assert [run.tool for run in runs] == ["cs memcheck", "cs racecheck", "cs initcheck", "cs synccheck"]
    assert {run.status for run in runs} == {"ran"}
    assert [finding.line for finding in findings] == [13, 18, 23, 27]


def test_a_sanitizer_that_writes_no_report_has_failed_and_found_nothing(tmp_path: Path) -> None:
    runs, findings = asyncio.run(
        run_sanitizers(
            program(tmp_path, "cs", "echo 'Device not supported'; exit 255"), TRUE, tmp_path, local(UNCONFINED)
        )
    )
    assert {run.status for run in runs} == {"failed"}
    assert {run.reason for run in runs} == {"Device not supported"}
    assert findings == ()


def test_a_tool_that_is_not_there_is_absent_with_its_name(tmp_path: Path) -> None:
    ran, findings = asyncio.run(run_tidy(Tool(name="clang-tidy", purpose=""), tmp_path / "k.cu", (), SandboxLevel.NONE))
    assert (ran.status, ran.reason, findings) == ("absent", "clang-tidy is not installed", ())


def test_kineto_events_become_kernels_per_run() -> None:
    from dataclasses import dataclass

    from kernel_lsp.worker.timing.baseline import kernels_of

    @dataclass
    class Range:
        start: float
        end: float

    @dataclass
    class Event:
        name: str
        device_type: str
        time_range: Range

    recorded = json.loads((RECORDED / "kineto_events.json").read_text())
    events = [Event(name, device, Range(start, end)) for name, device, start, end in recorded]
    kernels = kernels_of(events)
    assert len(kernels) == 2
    assert [kernel["n_calls"] for kernel in kernels] == [1, 1]
    assert kernels[0]["time_us"] == pytest.approx(29.2, abs=1)
    assert "vectorized_elementwise_kernel" in kernels[1]["name"]


full = pytest.mark.skipif(support().level is not SandboxLevel.LANDLOCK_SECCOMP, reason="no Landlock or seccomp here")


def held(folder: Path) -> Confinement:
    return profiler_confinement(support().level, Path(sys.executable), scratch=folder, needs_counters=True)


@full
def test_a_profiler_runs_confined_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    pages = asyncio.run(run_ncu(program(folder, "ncu", NCU), TRUE, folder, local(held(folder))))
    assert (pages.run.status, pages.run.sandbox) == ("ran", "landlock")


@full
def test_a_profiler_that_needs_more_than_it_may_gets_it_and_that_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    needs_more = program(folder, "ncu", f"touch {tmp_path}/outside || exit 1\n{NCU}")
    pages = asyncio.run(run_ncu(needs_more, TRUE, folder, local(held(folder))))
    assert pages.run.status == "ran"
    assert pages.run.sandbox == "limits alone: it wrote nothing under landlock"
