"""`kernel-lsp record`: note what a program calls the workspace's functions and modules with, and their share of a
step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kernel_lsp.cli import console
from kernel_lsp.config import find_workspace
from kernel_lsp.core.recording import RecordedTarget, Recording, rank_hot_spots
from kernel_lsp.engine.hot_spots import speedups_of
from kernel_lsp.errors import KernelLspError, UserError
from kernel_lsp.record.run import record
from kernel_lsp.source.recorded import check_recording_can_be_written, read_recording, write_recording

MAX_LISTED = 20
EXAMPLE = "kernel-lsp record -- python train.py"


def main(command: Sequence[str], steps: int | None, seconds: float | None, show: bool, as_json: bool) -> int:
    """Run the command; returns the program's exit status, or with `show` 0."""
    try:
        workspace = find_workspace(Path.cwd())
        if show:
            return _show(workspace, as_json)
        if not command:
            raise UserError("no program is named", next_step=f"e.g. {EXAMPLE}")
        return _record(command, workspace, steps, seconds, as_json)
    except KernelLspError as error:
        console.print_error(error)
        return console.EXIT_COULD_NOT


def _record(command: Sequence[str], workspace: Path, steps: int | None, seconds: float | None, as_json: bool) -> int:
    check_recording_can_be_written(workspace)
    ran = record(command, workspace, steps, seconds)
    if ran.recording is None:
        console.stderr.print(f"nothing recorded: {ran.problem}", style="yellow", markup=False)
        return ran.status
    if as_json:
        console.print_json(ran.recording)
    else:
        _print(ran.recording, console.stderr.print)
    file = write_recording(workspace, ran.recording)
    for line in (ran.note, f"wrote {file}"):
        if line:
            console.stderr.print(line, markup=False)
    return ran.status


def _show(workspace: Path, as_json: bool) -> int:
    """Print the hot spots of the last recording, and of earlier ones of other programs."""
    recording = read_recording(workspace)
    if recording is None:
        raise UserError("this workspace has no recording", file=str(workspace), next_step=f"e.g. {EXAMPLE}")
    if as_json:
        console.print_json(recording)
        return console.EXIT_OK
    from kernel_lsp.engine.archived import list_runs

    spots = rank_hot_spots(recording, speedups_of(list_runs(workspace), workspace))
    say = console.stdout.print
    say(f"{' '.join(recording.command)}, {recording.date}, {recording.device}", markup=False)
    say(f"{'share':>7} {'saves':>13} {'calls':>9}  target", style="bold", markup=False)
    for spot in spots[:MAX_LISTED]:
        saves = f"{'up to ' if spot.speedup is None else ''}{spot.gain:.1%}"
        how = f"  {spot.speedup.ratio:.3g}x, {spot.speedup.kind}" if spot.speedup is not None else ""
        of = f"  ({' '.join(spot.source.command)}, {spot.source.date[:10]})" if spot.source is not None else ""
        say(f"{spot.share:>7.1%} {saves:>13} {spot.n_calls:>9,}  {spot.target}  {spot.inputs}{how}{of}", markup=False)
    return console.EXIT_OK


def _print(recording: Recording, say: Callable[..., None]) -> None:
    """Print the targets, the largest share first."""
    per_step = f", {recording.step_us / 1e3:.3g} ms each" if recording.step_us else ""
    n = recording.n_steps
    say(f"{' '.join(recording.command)}: {n:,} step{'s' if n != 1 else ''}{per_step}, {recording.device}", markup=False)
    say(f"{'share':>7} {'calls':>9}  target", style="bold", markup=False)
    for name, target in list(recording.targets.items())[:MAX_LISTED]:
        say(f"{target.share:>7.1%} {target.n_calls:>9,}  {name}{_configurations(target)}", markup=False)
    if len(recording.targets) > MAX_LISTED:
        say(f"{'':>17}  and {len(recording.targets) - MAX_LISTED} more", markup=False)


def _configurations(target: RecordedTarget) -> str:
    if not target.configurations:
        return ""
    first, n_more = target.configurations[0], len(target.configurations) - 1
    return f"  {first.inputs}{f' (and {n_more} more)' if n_more else ''}"
