"""`kernel-lsp train`: learn an order of schedules from measured times, and go on with live rewards of a device."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernel_lsp.cli import console
from kernel_lsp.config import load_settings
from kernel_lsp.core.words import counted
from kernel_lsp.errors import UserError
from kernel_lsp.evolve.archive.schedule_times import schedule_tables
from kernel_lsp.training.live import DeadlineReached, Journal, LivePool, LiveSettings, open_tasks, train_live
from kernel_lsp.training.ppo import PpoSettings, Trainer
from kernel_lsp.training.ranker import FILE, Models, Order, read_models, trained, write_models
from kernel_lsp.training.table import ScheduleTable, TimedTask

MIN_TASKS = 5
"""Minimum tasks to learn from: fewer say nothing about another one."""


@dataclass(frozen=True)
class LiveRequest:
    """Targets whose schedules are measured during the training, for `deadline_s` seconds at most. `journal` is by
    default a file beside the models."""

    targets: tuple[str, ...] = ()
    n_rounds: int = 8
    deadline_s: float = 600.0
    journal: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)


@console.command
async def main(
    tables: Sequence[Path], workspaces: Sequence[Path], out: Path | None, order: str, seed: int, live: LiveRequest
) -> int:
    out = out or FILE
    if order not in ("cost_model", "policy"):
        raise UserError(f"there is no order '{order}'", next_step="orders: cost_model, policy")
    if len(set(live.targets)) < len(live.targets):
        raise UserError("a live target is named twice", next_step="name each once")
    chosen: Order = "policy" if order == "policy" else "cost_model"
    recorded = None
    if tables or workspaces or not live.targets:
        found = [*map(_read, tables), *schedule_tables(workspaces)]
        tasks = _usable(found)
        _check_writable(out)
        with console.stage(f"training on {len(tasks)} tasks"):
            models, recorded = trained(tasks, settings=PpoSettings(seed=seed), order=chosen, seed=seed)
            models.about["gpus"] = sorted({table.gpu for table in found})
    else:
        models = _installed()
        _check_writable(out)
    if live.targets:
        await _train_live(models, recorded, live, out, seed)
    write_models(models, out)
    say = console.stdout.print
    say(f"{models.about['n_tasks']} tasks, {models.about['n_schedules']} schedules, {len(models.names)} features")
    say(f"{out}: {out.stat().st_size / 1024:.0f} KiB, orders by {models.order}", style="bold", markup=False)
    return console.EXIT_OK


async def _train_live(models: Models, recorded: Trainer | None, live: LiveRequest, out: Path, seed: int) -> None:
    """Train the models' policy on the live targets, and describe that in `about`."""
    settings, ends = load_settings(Path.cwd(), live.overrides), time.monotonic() + live.deadline_s
    path = live.journal or out.with_suffix(".live.jsonl")
    with Journal.open(path) as journal, console.stage(f"opening {counted(len(live.targets), 'task')}"):
        async with open_tasks(live.targets, Path.cwd(), settings) as tasks:
            try:
                pool = await LivePool.of(tasks, models, journal, LiveSettings(seed=seed), ends)
            except DeadlineReached:
                step = f"give it more than {live.deadline_s:g} s: --deadline"
                raise UserError("the default schedules were not evaluated in time", next_step=step) from None
            training = await train_live(pool, models.policy, n_rounds=live.n_rounds, recorded=recorded)
            bests = [f"{pool.default_us(place):.4g} -> {pool.best_us(place):.4g} us" for place in range(len(tasks))]
    about: dict[str, Any] = {
        "devices": sorted({task.device for task in tasks}),
        "kinds": sorted(pool.kinds),
        "n_tasks": len(tasks),
        "n_evaluated": pool.n_evaluated + pool.n_replayed,
        "n_rounds": training.n_rounds,
    }
    models.about["live"] = about

    def say(text: str) -> None:
        console.stdout.print(text, markup=False)

    ended = ", when the time was over" if training.is_cut else ""
    say(f"live rewards of {', '.join(about['devices'])}: {training.n_rounds} of {live.n_rounds} rounds{ended}")
    say(f"  {pool.n_evaluated} schedules evaluated, {pool.n_replayed} known from {path}, {pool.n_failed} failed")
    for task, best in zip(tasks, bests, strict=True):
        say(f"  {task.name}: {best} ({', '.join(about['kinds'])})")
    if training.curve:
        first, last = training.curve[0], training.curve[-1]
        say(f"  share of the best known time: {first:.3f} in the first round, {last:.3f} in the last")


def _usable(tables: Sequence[ScheduleTable]) -> list[TimedTask]:
    """Return the tasks to learn from. Raises UserError where there are too few."""
    tasks = [task for table in tables for task in table.usable()]
    if len(tasks) < MIN_TASKS:
        step = "measure more: kernel-lsp optimize --device cuda, or benchmarks/schedule_jobs.py"
        n_more = f"{len(tasks)} of at least {MIN_TASKS} tasks have measured schedules"
        raise UserError(f"too little to learn from: {n_more}", next_step=step)
    return tasks


def _installed() -> Models:
    """Return the models that searches use, to train further. Raises UserError without any."""
    models = read_models()
    if models is None:
        step = "give tables of measured times, too"
        raise UserError("there are no trained models to go on with", file=str(FILE), next_step=step)
    return models


def _check_writable(out: Path) -> None:
    """Raise UserError, before anything is trained, for a file that cannot be written: that of the searches lies where
    kernel-lsp is installed."""
    near = out if out.exists() else out.parent
    reason = "no such folder" if not near.exists() else "it is a folder" if out.is_dir() else ""
    reason = reason or ("" if os.access(near, os.W_OK) else "permission denied")
    if reason:
        step = "name another file with -o; searches read the one that is installed"
        raise UserError(f"the trained models cannot be written: {reason}", file=str(out), next_step=step)


def _first_error(error: ValueError) -> str:
    """Return the first field that is wrong, as pydantic words it."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".lstrip(": ")


def _read(path: Path) -> ScheduleTable:
    try:
        return ScheduleTable.read(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else _first_error(error)
        step = "name a file of benchmarks/schedule_jobs.py --join"
        raise UserError(f"no table of times: {reason}", file=str(path), next_step=step) from None
