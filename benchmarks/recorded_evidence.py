"""Print what recorded replies show about searching with models, with 95 % intervals; no model and no GPU is asked.

    python benchmarks/recorded_evidence.py [FOLDER] [--measured FILE] [--best FILE...]

FOLDER holds `TASK.STRATEGY.kernels.json`, as `recorded_runs.py replay` writes them. FILE is what `recorded_runs.py
measure` wrote. A reply that FILE has no time for counts with its estimate, against the estimate of the generator's
kernel. Each file of `--best` holds times of the best replies and of the generator's schedules, of one run. Judges are
those of `judge_corpus_replies.jsonl`, on the kernels of `judge_corpus`.

Speed-ups are over the generator's best kernel, times summed over forward and backward; the generator's kernel is kept
where no reply is faster. The best of n independent replies is exact: the mean over all choices of n recorded ones. Of a
search the first n count. Intervals of means over tasks are Student's t over tasks, whose replies depend on each other:
three tasks bound a mean badly, and their interval says so. Intervals of shares are Wilson's.

Replies to the same kernels shown in several ways (`recorded_arms.py`) are compared in pairs, by their speed-up over the
fastest kernel that the prompt shows, which is kept where the reply is incorrect or slower. One conversation wrote
several replies of a task and arm and shares text between them, so an effect needs an interval over pairs of
conversations (Student's t); that over draws takes conversations as given and resamples the draws of kernels.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np

from kernel_lsp.config import Settings
from kernel_lsp.llm.judges.calibration import Judgement, JudgeName
from kernel_lsp.llm.judges.judges import passes, probability_right, read_probability, without_prose

CORPUS = ROOT / "benchmarks" / "judge_corpus"
GOAL = 40
"""Replies wanted for each task."""
N_MANY = 20
"""Replies from which strategies of a task are compared at several numbers."""
N_RESAMPLES = 10_000
Z = 1.96
STUDENT_T = (
    12.71,
    4.30,
    3.18,
    2.78,
    2.57,
    2.45,
    2.36,
    2.31,
    2.26,
    2.23,
    2.20,
    2.18,
    2.16,
    2.14,
    2.13,
    2.12,
    2.11,
    2.10,
)
"""Quantiles at 97.5 % by degrees of freedom, from 1; the last one serves for more."""
BEST = ("best", "from_default")
"""Results with best replies to prompts that show the generator's kernels: older ones, or its default of that day."""
KEPT_DEFAULT = {"of": "generator,", "name": "no reply counts", "is_full": False}
"""Row in place of the best reply of a task that has none: the generator's kernel is kept."""
COMPARED = ("best-of-n", "evolve")
REFINED = "refine"
BASE_ARM = "ordered"
ARMS = {"random": "kernels in random order", "no_profile": "without a profile"}
"""Differences of prompts from those of BASE_ARM."""


@dataclass(frozen=True)
class Replies:
    """The recorded replies of one task and strategy. `gains` are logarithms of the speed-up, 0 for a reply that is
    incorrect or slower than the generator's kernel."""

    task: str
    strategy: str
    kind: str
    n_correct: int
    gains: tuple[float, ...]

    def after(self, n: int) -> float:
        """Return the gain after n replies: of a search the first ones, of independent replies the mean over all choices
        of n, where each is the best of as many as there are ways to draw the others among those that gain no more."""
        if not self.strategy.startswith("best-of-n"):
            return max(self.gains[:n])
        weights = [math.comb(place, n - 1) for place in range(len(self.gains))]
        return sum(weight * gain for weight, gain in zip(weights, sorted(self.gains), strict=True)) / sum(weights)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "benchmarks" / "recorded_runs")
    results = ROOT / "benchmarks" / "results" / "recorded_runs-nvidia_h200-2026-11-21.json"
    parser.add_argument("--measured", type=Path, default=results)
    best = [results.with_name(f"recorded_{kind}-nvidia_h200-2026-11-30.json") for kind in BEST]
    parser.add_argument("--best", type=Path, nargs="+", default=best)
    given = parser.parse_args()
    measured = json.loads(given.measured.read_text())["tasks"] if given.measured.is_file() else {}
    paths = sorted(given.folder.glob("*.kernels.json"))
    found = [read_replies(path, measured) for path in paths if _strategy(path) not in (BASE_ARM, *ARMS)]
    print_replies(found)
    on_gpu = [each for each in found if each.kind == "measured"]
    print_curves([each for each in on_gpu if len(each.gains) < N_MANY], "tasks of few replies")
    print_curves([each for each in on_gpu if len(each.gains) >= N_MANY], f"tasks of {N_MANY} replies and more")
    for path in filter(Path.is_file, given.best):
        print_best(json.loads(path.read_text()), path.stem)
    print_judges(judged_kernels())
    print_arms([read_arm(path) for path in paths if _strategy(path) in (BASE_ARM, *ARMS)])
    print("not recorded, 0 replies: prompts of a second model")
    return 0


# --- replies


def read_replies(path: Path, measured: dict[str, Any]) -> Replies:
    """Read one file of kernels, with measured times where all of its correct kernels have them."""
    task, strategy = path.name.removesuffix(".kernels.json").rsplit(".", 1)
    of_gpu = measured.get(task, {})
    seed_us = _time_us(of_gpu.get("summary", {}).get("generator", {}))
    on_gpu = of_gpu.get("kernels", {}).get(strategy, [])
    if seed_us and on_gpu:
        outcomes = [(each["outcome"] == "correct", _time_us(each)) for each in on_gpu]
        return Replies(task, strategy, "measured", sum(right for right, _ in outcomes), _gains(seed_us, outcomes))
    kernels = json.loads(path.read_text())
    seed_us = max((each["best_before_us"] or 0.0 for each in kernels), default=0.0)
    outcomes = [(each["outcome"] == "correct", each["time_us"] or 0.0) for each in kernels]
    kind = "measured" if any(kernel.get("time_kind") == "measured" for kernel in kernels) else "estimated"
    return Replies(
        task,
        strategy,
        kind,
        sum(right for right, _ in outcomes),
        _gains(seed_us, outcomes),
    )


def _time_us(verdict: dict[str, Any]) -> float:
    return sum(times["ours_us"] for times in verdict.get("times", {}).values())


def _gains(seed_us: float, outcomes: Sequence[tuple[bool, float]]) -> tuple[float, ...]:
    return tuple(max(0.0, math.log(seed_us / us)) if right and us and seed_us else 0.0 for right, us in outcomes)


def print_replies(found: Sequence[Replies]) -> None:
    n, n_correct = sum(len(each.gains) for each in found), sum(each.n_correct for each in found)
    print(f"{n} recorded replies of {len({each.task for each in found})} tasks; {share(n_correct, n)} correct")
    print(f"{'task':<22}{'strategy':<22}{'replies':>8}{f'of {GOAL}':>7}{'correct':>8}{'best':>7}  times")
    for each in found:
        row = f"{each.task:<22}{each.strategy:<22}{len(each.gains):>8}{len(each.gains) / GOAL:>7.0%}{each.n_correct:>8}"
        print(f"{row}{math.exp(max(each.gains, default=0.0)):>6.2f}x  {each.kind}")


def print_curves(found: Sequence[Replies], title: str) -> None:
    """Print the gain by number of replies, and the strategies against each other on the tasks that have both."""
    print(f"\nspeed-up over the generator, geometric mean over {title}, measured")
    for strategy in (*COMPARED, REFINED):
        of_one = [each for each in found if each.strategy == strategy]
        for n in _numbers(of_one):
            print(
                f"{strategy:<11}{n:>3} replies {mean_over([each.after(n) for each in of_one])} over {len(of_one)} tasks"
            )
    by_task: dict[str, dict[str, Replies]] = defaultdict(dict)
    for each in found:
        by_task[each.task][each.strategy] = each
    pairs = [(task["evolve"], task["best-of-n"]) for task in by_task.values() if set(COMPARED) <= set(task)]
    for n in _numbers([each for pair in pairs for each in pair]):
        gains = [one.after(n) - other.after(n) for one, other in pairs]
        print(f"evolve against best-of-n, {n} replies each: {mean_over(gains)} over {len(gains)} tasks")
    further = [(task[REFINED], task["evolve"]) for task in by_task.values() if {REFINED, "evolve"} <= set(task)]
    if further:
        gains = [max(one.gains) - max(other.gains) for one, other in further]
        print(
            f"{REFINED} (further replies, to measured times) against evolve: {mean_over(gains)} over {len(gains)} tasks"
        )


def _numbers(found: Sequence[Replies]) -> list[int]:
    """Return powers of two up to the smallest number of replies, and that number."""
    least = min((len(each.gains) for each in found), default=0)
    return sorted({n for n in (1, 2, 4, 8, 16, 32) if n <= least} | ({least} if least else set()))


def mean_over(gains: Sequence[float]) -> str:
    """Return the geometric mean of ratios, given by their logarithms, with its interval; one ratio has none."""
    mean = statistics.fmean(gains)
    if len(gains) < 2:
        return f"{math.exp(mean):.2f}x [no interval]"
    low, high = _interval(gains)
    return f"{math.exp(mean):.2f}x [{low:.2f}, {high:.2f}]"


def _interval(gains: Sequence[float]) -> tuple[float, float]:
    quantile = STUDENT_T[min(len(gains) - 1, len(STUDENT_T)) - 1]
    mean, half = statistics.fmean(gains), quantile * statistics.stdev(gains) / math.sqrt(len(gains))
    return math.exp(mean - half), math.exp(mean + half)


def print_best(measured: dict[str, Any], title: str) -> None:
    """Print the fastest correct reply of each task beside the generator's default schedule and its fastest one. Where
    ``counted`` is ``full``, replies without a full verdict do not count."""
    print(f"\n{title}: best replies beside the generator of {measured['date']}, times of one run in us")
    gains: dict[str, list[float]] = {"default": [], "fastest schedule": []}
    for task in sorted({row["task"] for row in measured["rows"]}):
        rows = [row for row in measured["rows"] if row["task"] == task]
        ours = {row["subject"]: row["time_us"] for row in rows if row["of"] == "generator"}
        replies = [row for row in rows if row.get("outcome") == "correct"]
        if measured.get("counted") == "full":
            replies = [row for row in replies if row["is_full"]]
        best = min(replies, key=lambda row: float(row["time_us"]), default=KEPT_DEFAULT | {"time_us": ours["default"]})
        eager = min((row["time_us"] for row in rows if row["of"] == "eager"), default=math.nan)
        compiled = min((row["time_us"] for row in rows if row["of"].startswith("compile")), default=math.nan)
        of_generator = {"default": ours["default"], "fastest schedule": min(ours.values())}
        for name, time_us in of_generator.items():
            gains[name].append(math.log(time_us / best["time_us"]) if replies else 0.0)
        shown = ", ".join(f"{name} {us:.1f} ({us / best['time_us']:.3f}x)" for name, us in of_generator.items())
        depth = "full verdict" if best["is_full"] else "screened"
        reply = f"{best['time_us']:.1f} ({best['of']} {best['name']}, {depth})"
        print(f"{task:<22}reply {reply}, {shown} of {len(ours)}, eager {eager:.1f}, compile {compiled:.1f}")
    for name, of_tasks in gains.items():
        print(f"best reply against the generator's {name}: {mean_over(of_tasks)} over {len(of_tasks)} tasks")


# --- arms: the same kernels, shown in several ways


@dataclass(frozen=True)
class Arm:
    """The replies of one task and arm. `gains` are as those of `Replies`, by prompt, over the fastest kernel shown;
    `conversations` says which one wrote the reply to each prompt."""

    task: str
    name: str
    n_timed: int
    gains: dict[int, float]
    conversations: dict[int, int]


def read_arm(path: Path) -> Arm:
    """Read one file of kernels; those without an outcome were not measured, those without a time are not correct."""
    kernels = [kernel for kernel in json.loads(path.read_text()) if kernel["outcome"]]
    gains = dict.fromkeys((int(kernel["slot"]) for kernel in kernels), 0.0)
    timed = [kernel for kernel in kernels if kernel["time_us"]]
    gains |= {each["slot"]: max(0.0, math.log(each["best_before_us"] / each["time_us"])) for each in timed}
    task = path.name.removesuffix(".kernels.json").rsplit(".", 1)[0]
    conversations = {kernel["slot"]: kernel["conversation"] for kernel in kernels}
    return Arm(task, _strategy(path), len(timed), gains, conversations)


def print_arms(found: Sequence[Arm]) -> None:
    """Print each arm, and the paired differences of the others to BASE_ARM."""
    found = [each for each in found if each.gains]
    if not found:
        return
    print("\nreplies to the same kernels shown in several ways; speed-up over the fastest one shown, geometric mean")
    for name in (BASE_ARM, *ARMS):
        arms = [each for each in found if each.name == name]
        if not arms:
            continue
        gains = [gain for each in arms for gain in each.gains.values()]
        n_faster = sum(gain > 0 for gain in gains)
        counts = f"timed {share(sum(each.n_timed for each in arms), len(gains))}, faster {n_faster}"
        by_task = ", ".join(f"{each.task} {math.exp(statistics.fmean(each.gains.values())):.3f}x" for each in arms)
        print(f"{name:<11}{math.exp(statistics.fmean(gains)):.3f}x over {len(gains)} prompts ({by_task}), {counts}")
    base = {each.task: each for each in found if each.name == BASE_ARM}
    for name, title in ARMS.items():
        compared = [(each, base[each.task]) for each in found if each.name == name and each.task in base]
        groups = [(arm.task, *group) for arm, other in compared for group in pairs(arm, other)]
        for task, conversation, gains in groups:
            print(f"{title} against {BASE_ARM}, {task} {conversation}: {len(gains)} pairs, {over_draws([gains])}")
        if groups:
            gains_of = [gains for _, _, gains in groups]
            print(f"{title} against {BASE_ARM}, {sum(map(len, gains_of))} pairs: {difference(gains_of)}")


def pairs(arm: Arm, base: Arm) -> list[tuple[str, list[float]]]:
    """Return the differences of gains at the same prompt, grouped by the two conversations that wrote the replies."""
    groups: dict[str, list[float]] = defaultdict(list)
    for n in sorted(set(arm.gains) & set(base.gains)):
        groups[f"{arm.conversations[n]}-{base.conversations[n]}"].append(arm.gains[n] - base.gains[n])
    return list(groups.items())


def difference(groups: Sequence[Sequence[float]]) -> str:
    """Return the geometric mean ratio of paired replies, one group for each pair of conversations, all of the same
    weight, and its intervals."""
    shown = over_draws(groups)
    if len(groups) < 2:
        return f"{shown}; one pair of conversations shows nothing about others"
    low, high = _interval([statistics.fmean(group) for group in groups])
    found = "no effect that they can show" if low <= 1.0 <= high else "a difference"
    return f"{shown}, over {len(groups)} pairs of conversations [{low:.3f}, {high:.3f}]: {found}"


def over_draws(groups: Sequence[Sequence[float]]) -> str:
    """Return the mean ratio with the interval that resamples the pairs of each group."""
    draw, means = np.random.default_rng(0), []
    for group in groups:
        given = np.array(group)
        means.append(given[draw.integers(0, len(given), (N_RESAMPLES, len(given)))].mean(axis=1))
    low, high = np.exp(np.quantile(np.stack(means).mean(axis=0), (0.025, 0.975)))
    mean = math.exp(statistics.fmean(statistics.fmean(group) for group in groups))
    return f"{mean:.3f}x over draws [{low:.3f}, {high:.3f}]"


def _strategy(path: Path) -> str:
    return path.name.removesuffix(".kernels.json").rsplit(".", 1)[1]


# --- judges


@dataclass(frozen=True)
class JudgedKernel:
    """A kernel of the corpus that compiles, with what the judges said."""

    task: str
    outcome: str
    judgements: tuple[Judgement, ...]


def judged_kernels() -> list[JudgedKernel]:
    """Read the corpus, its labels and the recorded judgements. A judgement belongs to the kernel that it quotes."""
    labels = tomllib.loads(CORPUS.with_name("judge_corpus_labels.toml").read_text())
    lines = CORPUS.with_name("judge_corpus_replies.jsonl").read_text().splitlines()
    replies = [entry for entry in map(json.loads, lines) if "request" in entry]
    found = []
    for name, each in labels.items():
        code = without_prose((CORPUS / name).read_text())
        quoting = [reply for reply in replies if code in reply["request"]["messages"][-1]["content"]]
        given = tuple(judgement for reply in quoting if (judgement := _judgement(reply)) is not None)
        if each["outcome"] != "build_failed":
            found.append(JudgedKernel(each["task"], each["outcome"], given))
    return found


def _judgement(reply: dict[str, Any]) -> Judgement | None:
    said, request = read_probability(reply["outcome"].get("text", "")), reply["request"]
    if said is None:
        return None
    judge: JudgeName = request["prompt"].removeprefix("judge_")
    return Judgement(judge=judge, model="", said=said, probability=said, request_key="", prompt_hash="")


def print_judges(kernels: Sequence[JudgedKernel]) -> None:
    """Print the valid share of what reaches hardware, and the kernels run until the first correct one."""
    print(f"\njudges on {len(kernels)} kernels that compile, of {len({each.task for each in kernels})} functions")
    threshold = Settings().judge_threshold
    rows = {
        "off": kernels,
        "at least half of them": [each for each in kernels if _half_of(each.judgements, threshold)],
        "each of them": [each for each in kernels if passes(each.judgements, threshold)],
    }
    n_correct = sum(each.outcome == "correct" for each in kernels)
    for name, reach in rows.items():
        n_valid = sum(each.outcome == "correct" for each in reach)
        lost = f"{n_correct - n_valid} of {n_correct} correct ones held back"
        print(f"{name:<22} {len(reach):>3} reach hardware, valid {share(n_valid, len(reach))}, {lost}")
    screened = [each for each in kernels if each.outcome == "correct"]
    print(f"{'executor, no judge':<22} {len(screened):>3} reach hardware, valid {share(len(screened), len(screened))}")
    print(f"kernels run until a function's first correct one: {_until_first(kernels)}")


def _half_of(judgements: Sequence[Judgement], threshold: float) -> bool:
    return 2 * sum(each.said >= threshold for each in judgements) >= len(judgements)


def _until_first(kernels: Sequence[JudgedKernel]) -> str:
    """Compare the judges' order with random ones; the interval is that of the mean difference over functions."""
    by_task: dict[str, list[JudgedKernel]] = defaultdict(list)
    for each in kernels:
        by_task[each.task].append(each)
    ordered, at_random = [], []
    for group in by_task.values():
        n, n_correct = len(group), sum(each.outcome == "correct" for each in group)
        if n_correct:
            ranked = sorted(group, key=lambda each: (-probability_right(each.judgements), each.outcome == "correct"))
            ordered.append(1 + next(place for place, each in enumerate(ranked) if each.outcome == "correct"))
            at_random.append((n + 1) / (n_correct + 1))
    saved = [theirs - ours for ours, theirs in zip(ordered, at_random, strict=True)]
    draw = random.Random(0)
    means = sorted(statistics.fmean(draw.choices(saved, k=len(saved))) for _ in range(N_RESAMPLES))
    low, high = means[int(0.025 * N_RESAMPLES)], means[int(0.975 * N_RESAMPLES)]
    shown = f"judges' order {statistics.fmean(ordered):.2f}, random order {statistics.fmean(at_random):.2f}"
    return f"{shown}, saved {statistics.fmean(saved):.2f} [{low:.2f}, {high:.2f}] over {len(saved)} functions"


def share(n: int, of: int) -> str:
    """Return a count's share with Wilson's interval."""
    if not of:
        return "- of 0"
    p, z2 = n / of, Z * Z
    centre, half = p + z2 / (2 * of), Z * math.sqrt(p * (1 - p) / of + z2 / (4 * of * of))
    low, high = max(0.0, (centre - half) / (1 + z2 / of)), min(1.0, (centre + half) / (1 + z2 / of))
    return f"{n} of {of} = {p:.0%} [{low:.0%}, {high:.0%}]"


if __name__ == "__main__":
    sys.exit(main())
