"""Train the policy of schedules on live tasks, and compare it with random order at an equal budget, live.

    python benchmarks/live_policy.py --train T1 T2 --unseen T3 --device cuda --budget 8 --deadline-s 90 --out FILE

Every candidate of every task is evaluated at last, as far as the time goes, so that "best known" is the fastest of the
pool, and the share of a random order is the mean over `N_ORDERS` orders of measured times. Shares are best known over
best found. `n_unmeasured` says what the deadline left out: "best known" is then of what was measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernel_lsp.config import load_settings
from kernel_lsp.training.live import DeadlineReached, Journal, LivePool, LiveSettings, open_tasks, train_live
from kernel_lsp.training.ranker import Models, read_models

N_ORDERS = 2000
ORDERS = ("random", "installed", "live")
SHARE_OF_TRAINING = 0.6
"""Share of the time after which the training ends, so that the comparison gets its measurements."""


def share(best: float, found: float) -> float:
    return float(np.exp(best - found))


def described(pool: LivePool, place: int, picks: dict[str, np.ndarray], budget: int, seed: int) -> dict[str, Any]:
    """Return one task's row: shares of the best known time, by order."""
    times, exists = pool.pool.log_times[place], pool.pool.exists[place]
    known = np.flatnonzero(exists & np.isfinite(times))
    best, draw = float(times[known].min()), np.random.default_rng(seed)
    others = known[known > 0]
    orders = [draw.permutation(others)[: budget - 1] for _ in range(N_ORDERS)]
    random = np.array([share(best, float(min(0.0, times[order].min(initial=np.inf)))) for order in orders])
    row = {
        "task": pool.tasks[place].opened.name,
        "n_candidates": int(exists.sum()),
        "n_unmeasured": int((exists & np.isinf(times)).sum()),
        "default_us": pool.default_us(place),
        "best_known_us": pool.default_us(place) * float(np.exp(best)),
        "random": {"share": float(random.mean()), "reached": float(np.mean(random >= 0.95))},
    }
    for name, rows in picks.items():
        reached = share(best, float(times[rows[place]].min()))
        row[name] = {
            "share": reached,
            "reached": reached >= 0.95,
            "better_than_random": float(np.mean(reached > np.array(random))),
        }
    return row


async def compared(pool: LivePool, orders: dict[str, Models], budget: int) -> dict[str, np.ndarray]:
    """Return the picks of each policy, whose times are measured."""
    found = {}
    with suppress(DeadlineReached):
        for name, models in orders.items():
            found[name] = await pool.follow(models.policy, budget - 1)
    return found


async def fill(pool: LivePool) -> None:
    """Evaluate all candidates that have no time yet, a few at once, until the deadline."""
    places = np.argwhere(pool.pool.exists & np.isinf(pool.pool.log_times))
    with suppress(DeadlineReached):
        for start in range(0, len(places), 4 * len(pool.tasks)):
            part = places[start : start + 4 * len(pool.tasks)]
            await pool.measure((part[:, 0], part[:, 1]))


async def main(options: argparse.Namespace) -> int:
    started, models, untrained = time.monotonic(), read_models(), read_models()
    assert models is not None
    assert untrained is not None
    settings = load_settings(ROOT, {"device": options.device})
    live_settings = LiveSettings(n_candidates=options.candidates, n_picks=options.budget - 1, seed=options.seed)
    ends = started + options.deadline_s
    result: dict[str, Any] = {"device": options.device, "budget": options.budget, "seed": options.seed}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with Journal.open(options.out.with_suffix(".journal.jsonl")) as journal:
        async with open_tasks([*options.train, *options.unseen], Path.cwd(), settings) as tasks:
            opened_s = time.monotonic() - started
            pools = {"trained": tasks[: len(options.train)], "unseen": tasks[len(options.train) :]}
            rows: dict[str, list[dict[str, Any]]] = {}
            try:
                live = {
                    kind: await LivePool.of(own, untrained, journal, live_settings, ends)
                    for kind, own in pools.items()
                    if own
                }
            except DeadlineReached:
                print(f"the defaults were not measured within {options.deadline_s:g} s ({opened_s:.0f} s to open)")
                return 1
            live["trained"].ends = started + SHARE_OF_TRAINING * options.deadline_s
            training = await train_live(live["trained"], models.policy, n_rounds=options.rounds)
            live["trained"].ends = ends
            for kind, pool in live.items():
                picks = await compared(pool, {"installed": untrained, "live": models}, options.budget)
                await fill(pool)
                rows[kind] = [
                    described(pool, place, picks, options.budget, options.seed) for place in range(len(pool.tasks))
                ]
            result |= {
                "devices": sorted({task.device for task in tasks}),
                "kinds": sorted(set().union(*(pool.kinds for pool in live.values()))),
                "opened_s": opened_s,
                "rounds": training.n_rounds,
                "is_cut": training.is_cut,
                "curve": training.curve,
                "n_evaluated": sum(pool.n_evaluated for pool in live.values()),
                "n_failed": sum(pool.n_failed for pool in live.values()),
                "elapsed_s": time.monotonic() - started,
                "tasks": rows,
            }
            options.out.write_text(json.dumps(result, indent=1) + "\n")
            report(result)
    return 0


def report(result: dict[str, Any]) -> None:
    cut, ends = " (cut)" if result["is_cut"] else "", [*result["curve"][:1], *result["curve"][-1:]]
    curve = " to ".join(f"{each:.3f}" for each in ends)
    print(f"live on {', '.join(result['devices'])}, {result['kinds']}: {result['rounds']} rounds{cut}, shares {curve}")
    counts = f"{result['n_evaluated']} evaluated, {result['n_failed']} failed"
    print(f"{counts}; opened in {result['opened_s']:.0f} s, {result['elapsed_s']:.0f} s in all")
    for kind, rows in result["tasks"].items():
        for row in rows:
            found = (f"{name} {row[name]['share']:.3f}" for name in ORDERS if name in row)
            of = f"{row['default_us']:.1f} -> {row['best_known_us']:.1f} us of {row['n_candidates']}"
            missing = f", {row['n_unmeasured']} not measured" if row["n_unmeasured"] else ""
            print(f"{kind} {row['task'].rpartition('/')[2]}: {of}{missing}; {', '.join(found)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", nargs="+", required=True)
    parser.add_argument("--unseen", nargs="*", default=[])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--candidates", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deadline-s", type=float, default=90.0)
    parser.add_argument("--out", type=Path, required=True)
    sys.exit(asyncio.run(main(parser.parse_args())))
