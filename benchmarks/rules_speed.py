"""Measure the static rules: `python benchmarks/rules_speed.py [words of names]`. Exit 1 when over a budget.

Each figure is the best of several tries, each with a text of its own; budgets are of processor time, to which other
work on the machine adds least, though it adds: the load is printed with them. A check is parsing and rules; beside it
stands what the parser alone takes of that. After an edit, the tree before it and what was found in other functions are
at hand. An analysis is all that an edit waits for: parsing, rules, plan, targets and the answer as JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rules_speed_texts import CUDA_SHAPES, PYTORCH_SHAPES, Make, pytorch_text, small_functions

from kernel_lsp.rules import cuda, pytorch
from kernel_lsp.rules.finding import RuleFinding
from kernel_lsp.server.analysis.analysis_types import ANALYSIS
from kernel_lsp.server.analysis.analysis_worker import analyse

N_TRIES = 5
BUDGET_MS = 150.0
"""Milliseconds for 5,000 lines, in either language."""
N_LINES_SHORT = 2000
BUDGET_SHORT_FIRST_MS = 100.0
BUDGET_SHORT_MS = 50.0
"""Milliseconds for a PyTorch file of 2,000 lines."""
NUMBERS = itertools.count()
NO_BUDGET_MS = float("inf")
"""For whole analyses of Python, of which nothing is demanded."""

Findings = tuple[RuleFinding, ...]


@dataclass(frozen=True)
class Task:
    """A text, what is to be timed with it, and the parser's part of that."""

    text: str
    check: Callable[[], Findings]
    parse: Callable[[], object]


@dataclass(frozen=True)
class Row:
    """`prepare` makes a task for a number."""

    name: str
    prepare: Callable[[int], Task]
    budget_ms: float = BUDGET_MS


@dataclass(frozen=True)
class Figure:
    name: str
    n_lines: int
    n_findings: int
    best_ms: float
    best_wall_ms: float
    best_parse_ms: float
    budget_ms: float

    @property
    def is_over(self) -> bool:
        return self.best_ms > self.budget_ms

    def __str__(self) -> str:
        budget = "no budget" if self.budget_ms == NO_BUDGET_MS else f"of {self.budget_ms:g} ms"
        return (
            f"{self.name:38} {self.n_lines:5} lines {self.n_findings:4} findings {self.best_ms:7.1f} ms {budget}"
            f"{' OVER' if self.is_over else ''}, {self.best_parse_ms:.1f} of them parsing, wall {self.best_wall_ms:.1f}"
        )


def rows() -> Iterator[Row]:
    """Every shape, as a file that is new and after an edit."""
    for name, make in CUDA_SHAPES.items():
        yield Row(f"CUDA, {name}", _first_cuda(make))
        yield Row(f"CUDA, {name}, edited", _edited_cuda(make))
    yield Row("CUDA, analysis after an edit", _edited_analysis("cuda", small_functions))
    for name, make in PYTORCH_SHAPES.items():
        yield Row(f"PyTorch, {name}", _first_pytorch(make))
        yield Row(f"PyTorch, {name}, edited", _edited_pytorch(make))
    yield Row("PyTorch, short mixture", _first_pytorch(_short), BUDGET_SHORT_FIRST_MS)
    yield Row("PyTorch, short mixture, edited", _edited_pytorch(_short), BUDGET_SHORT_MS)
    yield Row("PyTorch, analysis after an edit", _edited_analysis("python", _short), NO_BUDGET_MS)


def measured(row: Row) -> Figure:
    """Each try of each row has a text of its own, so that nothing is kept from the one before."""
    times, walls, parses, text, n_findings = [], [], [], "", 0
    for _ in range(N_TRIES):
        task = row.prepare(next(NUMBERS))
        start, start_wall = time.process_time(), time.perf_counter()
        n_findings = len(task.check())
        times.append((time.process_time() - start) * 1000)
        walls.append((time.perf_counter() - start_wall) * 1000)
        start, text = time.process_time(), task.text
        task.parse()
        parses.append((time.process_time() - start) * 1000)
    return Figure(row.name, text.count("\n"), n_findings, min(times), min(walls), min(parses), row.budget_ms)


def main() -> int:
    words = sys.argv[1:]
    n_over = 0
    for row in rows():
        if all(word in row.name for word in words):
            figure = measured(row)
            n_over += figure.is_over
            print(figure, flush=True)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return int(n_over > 0)


# --- below: tasks


def _short(mark: int) -> str:
    return pytorch_text(N_LINES_SHORT, mark)


def _first_cuda(make: Make) -> Callable[[int], Task]:
    def task(number: int) -> Task:
        text = make(number)
        return Task(text, lambda: cuda.check(text), lambda: cuda.parse(text))

    return task


def _edited_cuda(make: Make) -> Callable[[int], Task]:
    def task(number: int) -> Task:
        text = make(number)
        tree = cuda.parse(text)
        cuda.check(text, tree=tree)
        edited = _edited(text)
        return Task(edited, lambda: cuda.check(edited, tree=cuda.parse(edited, tree)), lambda: cuda.parse(edited, tree))

    return task


def _first_pytorch(make: Make) -> Callable[[int], Task]:
    def task(number: int) -> Task:
        text = make(number)
        return Task(text, lambda: pytorch.check(text), lambda: pytorch.parse(text))

    return task


def _edited_pytorch(make: Make) -> Callable[[int], Task]:
    def task(number: int) -> Task:
        text = make(number)
        pytorch.check(text)
        edited = _edited(text)
        return Task(edited, lambda: pytorch.check(edited), lambda: pytorch.parse(edited))

    return task


def _edited_analysis(language: str, make: Make) -> Callable[[int], Task]:
    def task(number: int) -> Task:
        text = make(number)
        _analysis(language, text)
        edited = _edited(text)
        parse = cuda.parse if language == "cuda" else pytorch.parse
        return Task(edited, lambda: _analysis(language, edited), lambda: parse(edited))

    return task


def _edited(text: str) -> str:
    """The text with a space more at the end of the line in the middle."""
    end = text.index("\n", len(text) // 2)
    return f"{text[:end]} {text[end:]}"


def _analysis(language: str, text: str) -> Findings:
    analysis = analyse(language, f"/kernels/file.{language}", text)
    json.dumps(ANALYSIS.dump_python(analysis, mode="json"))
    return analysis.findings


if __name__ == "__main__":
    sys.exit(main())
