"""`kernel-lsp train`: learn an order of schedules from measured times."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from kernel_lsp.cli import console
from kernel_lsp.errors import UserError
from kernel_lsp.evolve.archive.schedule_times import schedule_tables
from kernel_lsp.training.ppo import PpoSettings
from kernel_lsp.training.ranker import FILE, Order, train_models, write_models
from kernel_lsp.training.table import ScheduleTable, TimedTask

MIN_TASKS = 5
"""Minimum tasks to learn from: fewer say nothing about another one."""


@console.command
async def main(tables: Sequence[Path], workspaces: Sequence[Path], out: Path | None, order: str, seed: int) -> int:
    out = out or FILE
    if order not in ("cost_model", "policy"):
        raise UserError(f"there is no order '{order}'", next_step="orders: cost_model, policy")
    found = [*map(_read, tables), *schedule_tables(workspaces)]
    tasks: list[TimedTask] = [task for table in found for task in table.usable()]
    if len(tasks) < MIN_TASKS:
        step = "measure more: kernel-lsp optimize --device cuda, or benchmarks/schedule_jobs.py"
        n_more = f"{len(tasks)} of at least {MIN_TASKS} tasks have measured schedules"
        raise UserError(f"too little to learn from: {n_more}", next_step=step)
    chosen: Order = "policy" if order == "policy" else "cost_model"
    _check_writable(out)
    with console.stage(f"training on {len(tasks)} tasks"):
        models = train_models(tasks, settings=PpoSettings(seed=seed), order=chosen, seed=seed)
        models.about["gpus"] = sorted({table.gpu for table in found})
        write_models(models, out)
    say = console.stdout.print
    say(f"{models.about['n_tasks']} tasks, {models.about['n_schedules']} schedules, {len(models.names)} features")
    say(f"{out}: {out.stat().st_size / 1024:.0f} KiB, orders by {order}", style="bold", markup=False)
    return console.EXIT_OK


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
