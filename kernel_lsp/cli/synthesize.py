"""`kernel-lsp synthesize`: draw tasks from torch's operators, filter them, and write them with an index."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_lsp.cli import console
from kernel_lsp.cli.console import paste
from kernel_lsp.config import load_settings
from kernel_lsp.core.words import counted, fitted
from kernel_lsp.errors import UserError
from kernel_lsp.synthesize.attempt import Attempt
from kernel_lsp.synthesize.models import open_task_models
from kernel_lsp.synthesize.request import SCALES, SynthesisFolder, SynthesisRequest
from kernel_lsp.synthesize.run import Synthesis, SynthesisSummary, summarize, synthesize

MAX_REASON = 200
"""Maximum characters of a reason for a dropped attempt; `journal.jsonl` has all of it."""
EVERY_ATTEMPTS = 100
"""Attempts between two lines of progress."""


@console.command
async def main(
    n_tasks: int,
    out: Path,
    request: SynthesisRequest,
    n_processes: int | None,
    overrides: Mapping[str, Any],
    as_json: bool,
) -> int:
    if request.scale not in SCALES:
        raise UserError(f"there is no scale '{request.scale}'", next_step=f"scales: {', '.join(SCALES)}")
    settings, folder = load_settings(Path.cwd(), overrides), SynthesisFolder(out.absolute())
    processes = n_processes or len(os.sched_getaffinity(0))
    models = open_task_models(request.models, settings, Path.cwd(), {"paste": paste}, console.say_prompt)
    with console.stage(f"synthesizing {counted(n_tasks, 'task')} with --jobs {processes}"):
        synthesis = await synthesize(n_tasks, request, folder, settings, processes, _Progress(), models)
    summary = summarize(synthesis, folder)
    if as_json:
        console.print_json(summary)
    else:
        _print(summary)
        if synthesis.dropped and not synthesis.is_complete:
            console.stdout.print(f"  dropped    {most_frequent_reason(synthesis.dropped)}", markup=False)
    return console.EXIT_OK if synthesis.is_complete else console.EXIT_NO


class _Progress:
    """Prints a line for every so many attempts."""

    def __init__(self) -> None:
        self._n_printed = 0

    def __call__(self, synthesis: Synthesis) -> None:
        n_attempts = len(synthesis.accepted) + len(synthesis.dropped)
        if n_attempts // EVERY_ATTEMPTS > self._n_printed:  # a slow attempt settles many later ones at once, or none
            self._n_printed = n_attempts // EVERY_ATTEMPTS
            line = f"{len(synthesis.accepted)}/{synthesis.n_tasks} tasks of {n_attempts}, {synthesis.elapsed_s:.0f} s"
            console.stderr.print(line, markup=False)


def most_frequent_reason(dropped: Sequence[Attempt]) -> str:
    """Return the filter and the reason that dropped the most attempts, with their number."""
    (filter_, reason), n = Counter((attempt.dropped_by, attempt.reason) for attempt in dropped).most_common(1)[0]
    return f"{n} of {len(dropped)} by {filter_}: {fitted(reason, MAX_REASON)}"


def _print(summary: SynthesisSummary) -> None:
    say = console.stdout.print
    say(f"{'filter':<16} {'reached':>8} {'dropped':>8} {'passed':>8}", style="dim", markup=False)
    for count in summary.filters:
        numbers = f"{count.n_reached:>8} {count.n_dropped:>8} {100 * count.share_passed:>6.1f} %"
        say(f"{count.filter:<16} {numbers}", markup=False)
    stages = ", ".join(f"{name} {seconds:.0f}" for name, seconds in summary.stage_s.items())
    say(f"{summary.n_tasks}/{summary.n_wanted} tasks in {summary.folder}", style="bold", markup=False)
    say(f"  attempts   {summary.n_attempts}, of them resumed {summary.n_resumed}", markup=False)
    say(f"  duplicates {summary.n_duplicates} by graph hash; {summary.n_captured} can be captured", markup=False)
    by = ", ".join(f"{proposer} {n}" for proposer, n in summary.proposers.items())
    say(f"  composed   by {by or 'nobody'}; {counted(summary.n_opinions, 'opinion')} of models", markup=False)
    say(f"  device     {summary.device}, compiled by {summary.compiler}", markup=False)
    say(f"  held out   {summary.n_held_out} compared, {len(summary.untraced_held_out)} untraced", markup=False)
    for target, reason in summary.untraced_held_out.items():
        say(f"             {target}: {reason}", style="dim", markup=False)
    say(f"  time       {summary.elapsed_s:.0f} s; seconds of all processes: {stages}", markup=False)
    say(f"  index      {summary.index}", markup=False)
