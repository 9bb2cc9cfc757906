"""Everything that must be shown on a GPU, in one go: each benchmark under its own time limit, one table at the end.

    python3 benchmarks/gpu_all.py first|second|third|fourth|STEP...
                                  [--out FOLDER] [--budget-s 570] [--device cuda] [--quick]
    python3 benchmarks/gpu_all.py --list

The four parts fit into ten minutes each; a step is run by its name, e.g. ``verdict foreign``.
A step that fails, hangs or is cut short leaves the others their time: it ends with its limit, whatever it started with
it, and what it had written by then counts. The results are the steps' own JSON files in FOLDER (by default
``benchmarks/results``), and ``gpu_all.json`` with the end of what each step printed, written anew after each. All runs
under the sandbox that is the default. ``--quick`` is for trying this program out: little of everything.

Exit status: 0 when every figure is inside its bound, 1 when one is not, or a step has none.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernel_lsp.process.tree import kill_tree

RESULTS = ROOT / "benchmarks" / "results"
BUDGET_S = 570.0
"""Seconds of one call: each third fits into ten minutes."""
TAIL_CHARACTERS = 6000
TAIL_LINES_SHOWN = 6
WARM_S, COLD_S, VERDICTS_PER_MINUTE, FOREIGN_S = 3.0, 8.0, 30.0, 12.0
"""Bounds of a full verdict: warm, cold, how many a minute, and of a kernel with host code of its own."""
MAX_CALL_RATIO = 2.0


@dataclass(frozen=True)
class Figure:
    """One line of the table. `bound` is empty where there is none to keep."""

    what: str
    figure: str
    bound: str = ""
    is_good: bool = True


@dataclass(frozen=True)
class Step:
    """A benchmark: its command line, less the interpreter, the most that it may take, its result's name and what it
    says. `quick` are the arguments for trying it out."""

    arguments: tuple[str, ...]
    limit_s: float
    result: str
    figures: Callable[[dict[str, Any]], Iterator[Figure]]
    quick: tuple[str, ...] = ()


@dataclass(frozen=True)
class Done:
    """Outcome of a step."""

    name: str
    status: str
    elapsed_s: float
    figures: tuple[Figure, ...]
    said: str

    @property
    def is_good(self) -> bool:
        return bool(self.figures) and all(figure.is_good for figure in self.figures)


def main() -> int:
    options = _options()
    if options.list:
        print("\n".join(f"{part}: {' '.join(names)}" for part, names in PARTS.items()))
        return 0
    names = [name for word in options.steps for name in PARTS.get(word, (word,))]
    unknown = [name for name in names if name not in STEPS]
    if unknown or not names:
        print(f"no such step: {', '.join(unknown) or 'none named'}; known: {', '.join(STEPS)}", file=sys.stderr)
        return 2
    done = run_all(names, options)
    print(table(done))
    return 0 if all(each.is_good for each in done) else 1


def run_all(names: Sequence[str], options: argparse.Namespace) -> list[Done]:
    """One after the other, as far as the time goes."""
    ending = time.monotonic() + options.budget_s
    options.out.mkdir(parents=True, exist_ok=True)
    done: list[Done] = []
    for name in names:
        left_s = ending - time.monotonic()
        print(f"--- {name}, at most {min(STEPS[name].limit_s, left_s):.0f} s", flush=True)
        done.append(run_step(name, options, left_s) if left_s > 0 else Done(name, "no time left", 0.0, (), ""))
        print("\n".join(done[-1].said.splitlines()[-TAIL_LINES_SHOWN:]), flush=True)
        record = {"steps": [asdict(each) for each in done]}
        (options.out / "gpu_all.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return done


def run_step(name: str, options: argparse.Namespace, left_s: float) -> Done:
    """Run one step to its end or its limit, and read what it wrote."""
    step, started, began = STEPS[name], time.monotonic(), time.time()
    log = options.out / f"gpu_all-{name}.log"
    status = _run(_command(step, options), min(step.limit_s, left_s), log)
    said = log.read_text(encoding="utf-8", errors="replace")[-TAIL_CHARACTERS:]
    log.unlink()  # its end is in the record
    figures, problem = _read(step, options.out, began)
    return Done(name, status + problem, round(time.monotonic() - started, 1), figures, said)


def table(done: Sequence[Done]) -> str:
    """One line for each figure, one for a step that has none."""
    lines = [f"{'step':<14}{'what':<52}{'figure':>22}  bound"]
    for each in done:
        lines.append(f"{each.name:<14}{each.status:<52}{f'{each.elapsed_s:.0f} s':>22}")
        for figure in each.figures:
            mark = "" if figure.is_good else "   <-- outside"
            lines.append(f"{'':<14}{figure.what:<52}{figure.figure:>22}  {figure.bound}{mark}")
    return "\n".join(lines)


# --- below: a step


def _command(step: Step, options: argparse.Namespace) -> list[str]:
    arguments = [*step.arguments, *(step.quick if options.quick else ())]
    places = {"{out}": str(options.out), "{device}": options.device}
    for place, value in places.items():
        arguments = [argument.replace(place, value) for argument in arguments]
    return [sys.executable, *arguments]


def _run(command: list[str], limit_s: float, log: Path) -> str:
    """Return how it ended. Whatever it started ends with it."""
    with log.open("wb") as file:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"cut short after {limit_s:.0f} s"
        finally:
            if process.poll() is None:
                kill_tree(process.pid)
                process.wait()
    return "done" if status == 0 else f"ended with {status}"


def _read(step: Step, folder: Path, began: float) -> tuple[tuple[Figure, ...], str]:
    """Return what the newest result since `began` says, and what is wrong with it, if anything."""
    written = [path for path in folder.glob(step.result) if path.stat().st_mtime >= began - 1]
    if not written:
        return (), ", no result"
    newest = max(written, key=lambda path: path.stat().st_mtime)
    try:
        return tuple(step.figures(json.loads(newest.read_text(encoding="utf-8")))), ""
    except (ValueError, KeyError, TypeError, IndexError, ZeroDivisionError) as problem:  # a result that was cut short
        return (), f", its result cannot be read ({type(problem).__name__}: {problem})"


# --- below: what results say


def _at_most(what: str, value: float | None, bound: float, unit: str) -> Figure:
    if value is None:
        return Figure(what, "none", f"<= {bound:g} {unit}", is_good=False)
    return Figure(what, f"{value:.4g} {unit}", f"<= {bound:g} {unit}", is_good=value <= bound)


def _all_of(what: str, n: int, n_all: int) -> Figure:
    return Figure(what, f"{n} of {n_all}", "all", is_good=n == n_all and n_all > 0)


def _verdict(report: dict[str, Any]) -> Iterator[Figure]:
    for target, found in report["targets"].items():
        name = target.rpartition("::")[2] if "large" not in target else f"{target.rpartition('::')[2]}, 64 M"
        throughput, warm, cold = found["throughput"], found["warm"], found["cold"]
        yield Figure(f"{name}: first ever on a machine", f"{found['first_ever']['wall_s']:.4g} s")
        yield _at_most(f"{name}: cold", cold["wall_s"], COLD_S, "s")
        yield _all_of(f"{name}: cold is correct", int(cold["outcome"] == "correct"), 1)
        yield _at_most(f"{name}: warm, median of {warm['n']}", warm["median_s"], WARM_S, "s")
        yield _at_most(f"{name}: warm, slowest", warm["max_s"], WARM_S, "s")
        rate = throughput["verdicts_per_minute"]
        yield Figure(
            f"{name}: throughput", f"{rate:.4g} /min", f">= {VERDICTS_PER_MINUTE:g} /min", rate >= VERDICTS_PER_MINUTE
        )
        yield _all_of(
            f"{name}: correct, warm and throughput",
            warm["n_correct"] + throughput["n_correct"],
            warm["n"] + throughput["n"],
        )


def _corpora(report: dict[str, Any]) -> Iterator[Figure]:
    yield Figure("reached", report["device"][:22])
    yield _all_of("attacks caught", report["n_attacks_caught"], report["n_attacks"])
    yield _all_of("benign kernels passed", report["n_benign_passed"], report["n_benign"])


def _foreign(report: dict[str, Any]) -> Iterator[Figure]:
    for each in report["verdicts"]:
        if "first ever" in each["name"]:
            yield Figure(each["name"], f"{each['wall_s']:.4g} s")
        else:
            yield _at_most(each["name"], each["wall_s"], FOREIGN_S, "s")
    n_right = sum(each["is_as_it_should_be"] for each in report["verdicts"])
    yield _all_of("verdicts as they should be", n_right, len(report["verdicts"]))


def _repeatability(report: dict[str, Any]) -> Iterator[Figure]:
    for each in report["summary"]:
        shown = f"{each['n_claims']}, {each['spread']:.2%}"
        yield Figure(f"{each['kernel']}: false claims, spread", shown, "<= 1, <= 2% over 20 us", each["is_good"])


def _faults(report: dict[str, Any]) -> Iterator[Figure]:
    n_told = len(report["verdicts"])
    yield _all_of(f"{report['depth']} verdicts, {report['n_faults']} faults", n_told, report["n"])
    for name in ("duplicated", "mixed_up", "unexpected"):
        yield Figure(name, str(len(report[name])), "0", not report[name])


def _package(report: dict[str, Any]) -> Iterator[Figure]:
    for each in report["packages"]:
        yield _at_most(f"{each['name']}: per call", each["ratio_to"][each["of_the_same_arity"]], MAX_CALL_RATIO, "x")
        yield Figure(f"{each['name']}: own tests", each["tests"]["said"][:22], "pass", each["tests"]["status"] == 0)


def _baselines(report: dict[str, Any]) -> Iterator[Figure]:
    for each in report["tasks"]:
        timed = [b for b in each["baselines"] if b["kind"] == "timed"]
        yield Figure(f"{each['task']}: ways timed", f"{len(timed)} of {len(each['baselines'])}", "", bool(timed))


def _recorded(report: dict[str, Any]) -> Iterator[Figure]:
    verified = [
        name for name, task in report["tasks"].items() if task.get("summary", {}).get("evolve", {}).get("times")
    ]
    n, n_all = len(verified), len(report["tasks"])
    yield Figure("tasks with a verified kernel of a model", f"{n} of {n_all}", ">= 90%", n >= 0.9 * n_all > 0)
    for mean in report["geomeans"]:
        yield Figure(f"{mean['of']}, {mean['direction']}, {mean['n']} tasks", f"{mean['speedup']:.2f}x")


def _server(report: dict[str, Any]) -> Iterator[Figure]:
    is_measured = " eager, " in report["lens"]
    yield Figure("the lens has a measured time", "yes" if is_measured else "no", "yes", is_measured)
    yield Figure("save to measured", f"{report['measured_s']} s")
    yield Figure("hints", str(len(report["hints"])), "some", bool(report["hints"]))
    yield _at_most("processes of a cancelled measurement gone", report["gone_after_s"], 1.0, "s")
    yield Figure("not shown", ", ".join(report["missing"]) or "nothing", "nothing", not report["missing"])


STEPS = {
    "verdict": Step(
        (
            *("benchmarks/gpu_verdict.py", "--out", "{out}", "--device", "{device}"),
            *("--direction", "forward", "--direction", "backward", "--n-warm", "5", "--n-throughput", "16"),
        ),
        300,
        "gpu_verdict-*.json",
        _verdict,
        ("--target", "examples/row_softmax.py::row_softmax", "--n-warm", "1", "--n-throughput", "2"),
    ),
    "corpora": Step(
        (
            *("scripts/run_corpora.py", "--device", "{device}", "--sessions", "8"),
            *("--json", "{out}/corpora-gpu.json"),
        ),
        400,
        "corpora-gpu.json",
        _corpora,
        ("--only", "constant"),
    ),
    "foreign": Step(("benchmarks/gpu_foreign.py", "--out", "{out}"), 110, "gpu_foreign-*.json", _foreign),
    "faults": Step(
        ("benchmarks/gpu_faults.py", "--out", "{out}", "--device", "{device}"),
        480,
        "gpu_faults-*.json",
        _faults,
        ("--n", "4", "--n-faults", "1"),
    ),
    "repeatability": Step(
        ("benchmarks/gpu_repeatability.py", "--out", "{out}"), 90, "gpu_repeatability-*.json", _repeatability
    ),
    "server": Step(("benchmarks/server_on_gpu.py", "{out}/server_on_gpu.json"), 120, "server_on_gpu.json", _server),
    "package": Step(("benchmarks/gpu_package.py", "--out", "{out}"), 200, "gpu_package-*.json", _package),
    "recorded": Step(
        ("benchmarks/recorded_runs.py", "measure", "--out", "{out}", "--device", "{device}"),
        420,
        "recorded_runs-*.json",
        _recorded,
        ("--only", "swiglu"),
    ),
    "baselines": Step(
        (
            *("benchmarks/gpu_baselines.py", "--out", "{out}", "--wait-s", "60"),
            *("--task", "rms_norm", "--task", "linear_relu", "--task", "cross_entropy:backward"),
        ),
        120,
        "gpu_baselines-*.json",
        _baselines,
    ),
}
PARTS = {
    "first": ("verdict", "server", "package"),
    "second": ("corpora", "repeatability", "foreign"),
    "third": ("faults",),
    "fourth": ("recorded", "baselines"),
}
"""By importance, as far as ten minutes each allow. On one H200 (2026-11-22) verdict took 183 s, repeatability 39 s,
foreign 90 s, server 76 s, package 136 s, corpora 271 s and faults 291 s."""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--budget-s", type=float, default=BUDGET_S)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
