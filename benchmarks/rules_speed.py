"""How long the static rules take: `python benchmarks/rules_speed.py`. Exit 1 when over a budget.

The files are made of the project's own examples and of the rules' examples, repeated to the size that the
budget is stated for. Each figure is processor time, the best of several tries: other work only ever adds to it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.rules import cuda, pytorch
from kernel_lsp.rules.registry import rules_of

ROOT = Path(__file__).parent.parent
N_TRIES = 7
N_LINES_CUDA = 5000
N_LINES_PYTORCH = 2000
BUDGET_CUDA_MS = 150.0
BUDGET_PYTORCH_MS = 50.0


@dataclass(frozen=True)
class Figure:
    name: str
    n_lines: int
    n_findings: int
    best_ms: float
    budget_ms: float


def cuda_text(n_lines: int) -> str:
    """Kernels of the examples and of the rules' good and bad examples, in turn."""
    parts = [(ROOT / "examples" / "row_softmax.cu").read_text().split("\n\n", 1)[1]]
    parts += [text for rule in rules_of("cuda") for text in (rule.good, rule.bad) if "// op:" not in text]
    return _repeated(parts, n_lines, "//")


def pytorch_text(n_lines: int) -> str:
    """The modules and functions of the examples and of the rules' examples, in turn."""
    parts = [path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))]
    parts += [text for rule in rules_of("pytorch") for text in (rule.good, rule.bad)]
    parts = [part.replace("from __future__ import annotations\n", "") for part in parts]
    return _repeated(parts, n_lines, "#")


def measure() -> list[Figure]:
    """Every figure."""
    kernels, models = cuda_text(N_LINES_CUDA), pytorch_text(N_LINES_PYTORCH)
    tree = cuda.parse(kernels)
    edited = kernels.replace("2 * i", "3 * i", 1) + "\n"
    return [
        _figure("CUDA, parse and check", kernels, lambda: cuda.check(kernels), BUDGET_CUDA_MS),
        _figure("CUDA, after an edit", edited, lambda: _check_again(edited, tree), BUDGET_CUDA_MS),
        _figure("PyTorch, parse and check", models, lambda: pytorch.check(models), BUDGET_PYTORCH_MS),
    ]


def main() -> int:
    figures = measure()
    for figure in figures:
        print(
            f"{figure.name:28} {figure.n_lines:6} lines {figure.n_findings:5} findings "
            f"{figure.best_ms:7.1f} ms (budget {figure.budget_ms:.0f} ms)"
        )
    return int(any(figure.best_ms > figure.budget_ms for figure in figures))


# --- below: texts and timing


def _check_again(text: str, tree: cuda.ParsedCuda) -> tuple:
    return cuda.check(text, tree=cuda.parse(text, tree))


def _repeated(parts: list[str], n_lines: int, comment: str) -> str:
    lines: list[str] = []
    while len(lines) < n_lines:
        for part in parts:
            lines += [f"{comment} part", *part.splitlines()]
    return "\n".join(lines[:n_lines]) + "\n"


def _figure(name: str, text: str, run: Callable[[], tuple], budget_ms: float) -> Figure:
    times, n_findings = [], 0
    for _ in range(N_TRIES):
        start = time.process_time()
        n_findings = len(run())
        times.append((time.process_time() - start) * 1000)
    return Figure(name, text.count("\n"), n_findings, min(times), budget_ms)


if __name__ == "__main__":
    sys.exit(main())
