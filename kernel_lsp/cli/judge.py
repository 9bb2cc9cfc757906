"""`kernel-lsp judge calibrate`: measure the accuracy of judges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernel_lsp.cli import console
from kernel_lsp.cli.console import paste
from kernel_lsp.config import load_settings
from kernel_lsp.core.words import counted
from kernel_lsp.evolve.run.judge_calibration import CalibrationReport, calibrate
from kernel_lsp.llm.judges.calibration import COLUMNS, cells
from kernel_lsp.llm.recording import RecordedReply, write_recording

HEADING = "{:<12} {:>7} {:>6} {:>8} {:>9} {:>6} {:>5} {:>4} {:>8}  {}"


@console.command
async def main(
    corpus: Path, overrides: Mapping[str, Any], as_json: bool, record: Path | None, replay: Path | None
) -> int:
    settings = load_settings(Path.cwd(), overrides)
    replies: list[RecordedReply] = []
    with console.stage(f"evaluating and judging {corpus}"):
        report = await calibrate(
            corpus,
            Path.cwd(),
            settings,
            replay=replay,
            callbacks={"paste": paste},
            record=replies.append,
            on_prompt=console.say_prompt,
        )
    if record is not None:
        write_recording(record, [], replies)
    if as_json:
        console.print_json(report)
    else:
        print_report(report)
    return console.EXIT_OK


def print_report(report: CalibrationReport) -> None:
    """One row per judge and model, then what it cost and what it would have saved."""
    say = console.stdout.print
    say(HEADING.format(*COLUMNS))
    for row in map(cells, report.scores):
        say(HEADING.format(*row), markup=False)
    say("precision: faulty of those held back; recall: held back of all faulty; lost: correct and held back")
    say(
        f"{counted(report.n_calls, 'call')}, ${report.cost_usd:.4f}; evaluating all took {report.evaluate_s:.1f} s",
        markup=False,
    )
    say(f"the fits are in {report.file}; runs in this workspace use them", markup=False)
