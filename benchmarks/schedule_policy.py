"""Compare orders of schedules on tasks that were not trained on: random, evolutionary, cost model and policy.

    python benchmarks/schedule_policy.py benchmarks/results/schedule_times-GPU-DATE.json [--pools FILE... [--ablate]]
        [--jobs N] [--out FILE]

Tasks are split into folds by graph (one graph at several sizes is in one fold) and, more strictly, by family (graphs
with the same kinds of heavy operators). Every order begins with the default schedule; a budget counts it. "Best
known" is the fastest of the task's measured schedules. `reached` is the share of tasks on which an order finds at least
95 % of the best known; `share` is the mean of best known over best found. p-values are of a paired permutation test
(signs of the tasks' differences from random order, 20,000 draws, two-sided).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np

from kernel_lsp.training.policy import Policy
from kernel_lsp.training.ppo import PpoSettings, Trainer
from kernel_lsp.training.ranker import Fitted, folds
from kernel_lsp.training.table import ScheduleTable, TimedTask, matrix

BUDGETS: tuple[int | str, ...] = (2, 4, "half")
POOL_BUDGETS = (4, 8, 16)
ORDERS = ("random", "evolutionary", "cost model", "policy", "policy, at once")
SETTINGS = PpoSettings()
GOAL = 0.95
N_RANDOM_ORDERS = 400
N_EVOLUTIONS = 40
N_SEEDS = 3
N_PERMUTATIONS = 20_000
N_PARENTS = 4
"""Parents of an evolutionary generation, as in the search."""

SWITCHES = ("single_turn_warmup", "rejection_finetuning", "critic_pretraining")
ABLATIONS: dict[str, dict[str, bool]] = {
    "all three": {},
    **{f"without {name.replace('_', ' ')}": {name: False} for name in SWITCHES},
    "none": dict.fromkeys(SWITCHES, False),
}
Curve = np.ndarray[Any, Any]
"""Best time so far over the best known, after each pick: one row per order, padded with its last value."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument(
        "--pools", nargs="+", type=Path, help="tables with more schedules of each task, for larger budgets"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=N_SEEDS)
    parser.add_argument("--jobs", type=int, default=1, help="processes that train")
    parser.add_argument("--only-pools", action="store_true", help="leave out the table's own splits")
    parser.add_argument("--ablate", action="store_true", help="also train without each stabilizer, for unseen graphs")
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=ORDERS)
    arguments = parser.parse_args()
    table = ScheduleTable.read(arguments.table)
    tasks = table.usable()
    result: dict[str, Any] = {"gpu": table.gpu, "table": arguments.table.name, "splits": {}}
    pools = [task for path in arguments.pools or () for task in ScheduleTable.read(path).usable()]
    parts: list[tuple[str, list[TimedTask], Sequence[TimedTask], Sequence[int | str]]] = []
    if not arguments.only_pools:
        parts.append(("", [*tasks], tasks, BUDGETS))
    if pools:
        result["pools"] = [path.name for path in arguments.pools]
        parts.append(("pools, ", [*tasks, *pools], pools, POOL_BUDGETS))
    variants = [replace(SETTINGS, **each) for each in ABLATIONS.values()]
    for prefix, learned, ordered, budgets in parts:
        for name, key in SPLITS.items():
            split, is_ablated = Split(learned, ordered, key), arguments.ablate and key is by_graph
            split.train(arguments.seeds, variants if is_ablated else variants[:1], arguments.jobs)
            curves = compare(split, arguments.seeds, SETTINGS, ("random", *arguments.orders))
            result["splits"][prefix + name] = report(prefix + name, ordered, curves, budgets)
            if is_ablated:
                result["ablations"] = ablate(split, prefix + name, arguments.seeds, budgets)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def by_graph(task: TimedTask) -> str:
    return task.graph


def by_family(task: TimedTask) -> str:
    return task.family


SPLITS: dict[str, Callable[[TimedTask], str]] = {"unseen graph": by_graph, "unseen family": by_family}


class Split:
    """Tasks to order, in folds, and for each fold the tasks to learn from: those without a key of the fold."""

    def __init__(
        self, learned: Sequence[TimedTask], tasks: Sequence[TimedTask], key: Callable[[TimedTask], str]
    ) -> None:
        self.tasks = tasks
        self.fitted: dict[tuple[int, int], Fitted] = {}
        """By fold and seed."""
        self.policies: dict[tuple[int, PpoSettings], Policy] = {}
        self.folds: list[tuple[list[int], list[TimedTask]]] = []
        for part in folds(tasks, key):
            keys = {key(tasks[place]) for place in part}
            self.folds.append((part, [task for task in learned if key(task) not in keys]))

    def train(self, n_seeds: int, variants: Sequence[PpoSettings], n_jobs: int) -> None:
        """Train cost models, and a policy of each variant, for every fold and seed, in several processes."""
        places = [(number, seed) for number in range(len(self.folds)) for seed in range(n_seeds)]
        jobs = [
            (self.folds[number][1], seed, [replace(each, seed=seed) for each in variants]) for number, seed in places
        ]
        with ProcessPoolExecutor(n_jobs, mp_context=get_context("spawn")) as processes:
            for (number, seed), (fitted, policies) in zip(places, processes.map(_trained, jobs), strict=True):
                self.fitted[number, seed] = fitted
                self.policies |= {(number, settings): policy for settings, policy in policies.items()}


def _trained(job: tuple[Sequence[TimedTask], int, Sequence[PpoSettings]]) -> tuple[Fitted, dict[PpoSettings, Policy]]:
    learned, seed, variants = job
    fitted = Fitted.on(learned, seed)
    return fitted, {settings: Trainer(fitted.pool, settings).train() for settings in variants}


# --- orders, as curves


def curve(times: Curve, order: Sequence[int]) -> Curve:
    """Return the share of the best known after each pick of an order."""
    best = np.minimum.accumulate(times[list(order)])
    padded: Curve = times.min() / np.concatenate([best, np.full(len(times) - len(best), best[-1])])
    return padded


def random_curves(task: TimedTask, draw: random.Random) -> Curve:
    n = len(task.correct)
    orders = [[0, *draw.sample(range(1, n), n - 1)] for _ in range(N_RANDOM_ORDERS)]
    return np.stack([curve(task.times_us, order) for order in orders])


def evolutionary_curves(task: TimedTask, draw: random.Random) -> Curve:
    """Replay the search on the table: parents by rank, the child is an unmeasured schedule with the fewest changes."""
    schedules = [each.schedule for each in task.correct]
    n = len(schedules)
    changes = [[len(set(one.items()) ^ set(other.items())) for other in schedules] for one in schedules]
    found = []
    for _ in range(N_EVOLUTIONS):
        order = [0]
        while len(order) < n:
            parents = sorted(order, key=lambda place: task.times_us[place])[:N_PARENTS]
            parent = draw.choices(parents, weights=[1 / (rank + 1) for rank in range(len(parents))])[0]
            left = [place for place in range(n) if place not in order]
            order.append(min(left, key=lambda place: (changes[parent][place], draw.random())))
        found.append(curve(task.times_us, order))
    return np.stack(found)


def compare(split: Split, n_seeds: int, settings: PpoSettings, orders: Sequence[str]) -> dict[str, list[Curve]]:
    """Return the curves of each order for every task, from models that were trained on the other folds."""
    draw = random.Random(0)
    of_seeds = [replace(settings, seed=seed) for seed in range(n_seeds)]
    makers: dict[str, Callable[[], list[Curve]]] = {
        "random": lambda: [random_curves(task, draw) for task in split.tasks],
        "evolutionary": lambda: [evolutionary_curves(task, draw) for task in split.tasks],
        "cost model": lambda: cost_model_curves(split, n_seeds),
        "policy": lambda: policy_curves(split, of_seeds),
        "policy, at once": lambda: policy_curves(split, of_seeds, at_once=True),
    }
    return {name: make() for name, make in makers.items() if name in orders}


def cost_model_curves(split: Split, n_seeds: int) -> list[Curve]:
    found: list[list[Curve]] = [[] for _ in split.tasks]
    for number, (part, _) in enumerate(split.folds):
        for fitted in (split.fitted[number, seed] for seed in range(n_seeds)):
            for place in part:
                scores = fitted.cost_model(matrix(split.tasks[place], fitted.names))
                order = [0, *(each for each in np.argsort(scores, kind="stable") if each != 0)]
                found[place].append(curve(split.tasks[place].times_us, order))
    return [np.stack(each) for each in found]


def policy_curves(split: Split, settings: Sequence[PpoSettings], *, at_once: bool = False) -> list[Curve]:
    """Return the curves of policies with these settings; `at_once` picks all before the first is measured."""
    tasks = split.tasks
    found: list[list[Curve]] = [[] for _ in tasks]
    for number, (part, _) in enumerate(split.folds):
        for each in settings:
            others = split.fitted[number, each.seed].pool_of([tasks[place] for place in part])
            policy = split.policies[number, each]
            orders = policy.order_at_once(others) if at_once else policy.order(others, others.exists.shape[1] - 1)
            for place, order in zip(part, orders, strict=True):
                distinct = list(dict.fromkeys(int(pick) for pick in order if pick < len(tasks[place].correct)))
                found[place].append(curve(tasks[place].times_us, distinct))
    return [np.stack(each) for each in found]


# --- figures


def at(curves: Sequence[Curve], budget: int | str) -> list[Curve]:
    """Return the share of the best known at a budget, for each task and order."""
    return [c[:, min(c.shape[1], c.shape[1] // 2 if budget == "half" else int(budget)) - 1] for c in curves]


def p_value(differences: Curve) -> float:
    """Return the two-sided p-value of a paired permutation test of the mean."""
    draw = np.random.default_rng(0)
    signs = draw.choice((-1.0, 1.0), (N_PERMUTATIONS, len(differences)))
    means = np.abs((signs * differences).mean(axis=1))
    return float((1 + (means >= abs(differences.mean()) - 1e-12).sum()) / (N_PERMUTATIONS + 1))


def report(
    title: str, tasks: Sequence[TimedTask], curves: dict[str, list[Curve]], budgets: Sequence[int | str]
) -> list[dict[str, Any]]:
    """Print a table and return its rows."""
    rows = []
    counts = f"{len(tasks)} tasks, {sum(len(task.correct) for task in tasks)} schedules, "
    counts += f"{len({task.graph for task in tasks})} graphs, {len({task.family for task in tasks})} families"
    print(f"\n{title}: {counts}\n{'budget':>7} {'order':<15} {'reached':>8} {'p':>8} {'share':>7} {'p':>8}")
    for budget in budgets:
        base = [np.array([each.mean() for each in figure]) for figure in _figures(curves["random"], budget)]
        for name, found in curves.items():
            reached, share = (np.array([each.mean() for each in figure]) for figure in _figures(found, budget))
            row = {"budget": budget, "order": name, "reached": float(reached.mean()), "share": float(share.mean())}
            p = ["-", "-"]
            if name != "random":
                row |= {"p_reached": p_value(reached - base[0]), "p_share": p_value(share - base[1])}
                p = [f"{row['p_reached']:.4f}", f"{row['p_share']:.4f}"]
            rows.append(row)
            print(f"{budget:>7} {name:<15} {row['reached']:>8.1%} {p[0]:>8} {row['share']:>7.3f} {p[1]:>8}", flush=True)
    return rows


def _figures(curves: Sequence[Curve], budget: int | str) -> tuple[list[Curve], list[Curve]]:
    """Return for each task and order: is the goal reached, and the share."""
    shares = at(curves, budget)
    return [each >= GOAL for each in shares], shares


def ablate(split: Split, title: str, n_seeds: int, budgets: Sequence[int | str]) -> list[dict[str, Any]]:
    """Print and return the policy's figures without each stabilizer: the spread over seeds, and the difference from all
    three with its 95 % interval over tasks."""
    rows = []
    print(f"\nstabilizers, {title}, {n_seeds} seeds")
    print(f"{'variant':<30} {'budget':>6} {'reached':>8} {'difference':<21} {'share by seed':<20} difference")
    curves = {}
    for name, switches in ABLATIONS.items():
        curves[name] = policy_curves(split, [replace(SETTINGS, seed=seed, **switches) for seed in range(n_seeds)])
        for budget in budgets:
            reached, shares = (np.stack(each) for each in _figures(curves[name], budget))
            base = [np.stack(each) for each in _figures(next(iter(curves.values())), budget)]
            row: dict[str, Any] = {"variant": name, "budget": budget, "reached": float(reached.mean())}
            row["share_by_seed"] = [round(float(each), 4) for each in shares.mean(axis=0)]
            row["reached_difference"] = interval_of_mean(reached.mean(axis=1) - base[0].mean(axis=1))
            row["share_difference"] = interval_of_mean(shares.mean(axis=1) - base[1].mean(axis=1))
            rows.append(row)
            seeds = " ".join(f"{each:.4f}" for each in row["share_by_seed"])
            points = "{:+.1%} [{:+.1%}, {:+.1%}]".format(*row["reached_difference"])
            share = "{:+.4f} [{:+.4f}, {:+.4f}]".format(*row["share_difference"])
            print(f"{name:<30} {budget:>6} {row['reached']:>8.1%} {points:<21} {seeds:<20} {share}", flush=True)
    return rows


def interval_of_mean(differences: Curve) -> tuple[float, float, float]:
    """Return the mean over tasks with its percentile bootstrap interval."""
    draw = np.random.default_rng(0)
    means = differences[draw.integers(0, len(differences), (N_PERMUTATIONS, len(differences)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(differences.mean()), float(low), float(high)


if __name__ == "__main__":
    sys.exit(main())
