"""Runs the attack corpus and the benign corpus through the whole pipeline, and prints both rates.

    python scripts/run_corpora.py [--device cpu|cuda] [--attacks DIR] [--benign DIR] [--json FILE]
                                  [--only WORD] [--skip WORD]... [--sessions N]

Every attack must be caught and every benign kernel must pass: the exit status is 1 otherwise. A `.cu` file says in its
`task:` line what it claims to compute. An attack says in a comment above its plan how it cheats and which verdict is
right; on the CPU it must be that one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernel_lsp.core.measurement import Measurement
from tests.corpora import Kernel, Outcome, evaluate_all, is_caught, is_passed, is_right, read_kernels, what_failed

MAX_SESSIONS = 8
"""By default: each has an interpreter with torch."""


def main() -> int:
    arguments = _arguments()
    known = _chosen(arguments.attacks, arguments)
    attacks = [kernel for kernel in known if not kernel.needs or arguments.device.startswith(kernel.needs)]
    benign = _chosen(arguments.benign, arguments)
    started = time.monotonic()
    outcomes = asyncio.run(_evaluated(attacks, benign, arguments))
    n_caught, n_passed = _counts(outcomes, attacks, benign)
    print(f"attacks caught: {n_caught} of {len(attacks)}; benign passed: {n_passed} of {len(benign)}")
    if len(attacks) < len(known):
        print(f"not run: {len(known) - len(attacks)} that only a GPU can tell")
    print(f"on {_where(outcomes)}, in {time.monotonic() - started:.0f} s")
    wrong = [outcome for outcome in outcomes if not _is_good(outcome, arguments.device)]
    for outcome in wrong:  # again, since a log may keep its last lines alone
        _print(outcome, is_good=False)
        print(f"      {what_failed(outcome)}", flush=True)
    return 1 if wrong else 0


async def _evaluated(attacks: list[Kernel], benign: list[Kernel], arguments: argparse.Namespace) -> list[Outcome]:
    """All outcomes. Each is printed as soon as it is known, and the file has those that are."""
    outcomes: list[Outcome] = []
    every = evaluate_all([*attacks, *benign], device=arguments.device, n_sessions=arguments.sessions)
    async for found in every:
        for outcome in found:
            _print(outcome, is_good=_is_good(outcome, arguments.device))
        outcomes += found
        _write(arguments.json, outcomes, attacks, benign)
    return outcomes


def _is_good(outcome: Outcome, device: str) -> bool:
    """A GPU may find an attack in another way than the executor, whose verdicts the attacks list."""
    if outcome.kernel.strategy and device != "cpu":
        return is_caught(outcome)
    return is_right(outcome)


def _counts(outcomes: Sequence[Outcome], attacks: Sequence[Kernel], benign: Sequence[Kernel]) -> tuple[int, int]:
    """Count the attacks that were caught and the benign kernels that passed."""
    return (
        sum(outcome.kernel in attacks and is_caught(outcome) for outcome in outcomes),
        sum(outcome.kernel in benign and is_passed(outcome) for outcome in outcomes),
    )


def _where(outcomes: Sequence[Outcome]) -> str:
    return next((outcome.verdict.device for outcome in outcomes if outcome.verdict.device != "none"), "nowhere")


def _measured_with(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """GPU, driver and torch, where something was timed."""
    times = [comparison.ours for outcome in outcomes for comparison in outcome.verdict.times.values()]
    ours = next((each for each in times if isinstance(each, Measurement)), None)
    if ours is None:
        return {}
    return {"gpu": ours.gpu, "driver": ours.driver, "torch_version": ours.torch_version}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="run the attack corpus and the benign corpus")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N, cuda:all or ssh://HOST")
    parser.add_argument("--attacks", type=Path, default=ROOT / "tests" / "attacks", help="a folder of .cu files")
    parser.add_argument("--benign", type=Path, default=ROOT / "tests" / "benign", help="a folder of .cu files")
    parser.add_argument("--only", default="", help="only files whose name holds this")
    parser.add_argument("--skip", action="append", default=[], help="no files whose name holds this")
    parser.add_argument("--sessions", type=int, default=_n_sessions(), help="tasks at once; by default one a core")
    parser.add_argument("--json", type=Path, help="where to write the verdicts")
    return parser.parse_args()


def _n_sessions() -> int:
    return min(len(os.sched_getaffinity(0)), MAX_SESSIONS)


def _chosen(folder: Path, arguments: argparse.Namespace) -> list[Kernel]:
    return [
        kernel
        for kernel in read_kernels(folder)
        if arguments.only in kernel.file.name and not any(word in kernel.file.name for word in arguments.skip)
    ]


def _print(outcome: Outcome, *, is_good: bool) -> None:
    kernel, verdict = outcome.kernel, outcome.verdict
    message = (
        outcome.problem
        or getattr(verdict.outcome, "message", "")
        or "; ".join(finding.message for finding in getattr(verdict.outcome, "findings", ())[:1])
    )
    mark = "ok   " if is_good else "WRONG"
    print(
        f"{mark} {kernel.file.parent.name}/{kernel.file.name:<44} {verdict.outcome.kind:<12} {message[:150]}",
        flush=True,
    )


def _write(file: Path | None, outcomes: Sequence[Outcome], attacks: Sequence[Kernel], benign: Sequence[Kernel]) -> None:
    if file is None:
        return
    n_caught, n_passed = _counts(outcomes, attacks, benign)
    record = {
        "device": _where(outcomes),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **_measured_with(outcomes),
        "n_attacks": len(attacks),
        "n_attacks_caught": n_caught,
        "n_benign": len(benign),
        "n_benign_passed": n_passed,
        "verdicts": [
            {
                "file": f"{outcome.kernel.file.parent.name}/{outcome.kernel.file.name}",
                "kind": outcome.verdict.outcome.kind,
                "failed": what_failed(outcome),
                "message": getattr(outcome.verdict.outcome, "message", ""),
                "evaluate_s": round(outcome.verdict.evaluate_s, 3),
            }
            for outcome in outcomes
        ],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
