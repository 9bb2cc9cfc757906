"""How long the static rules take: `python benchmarks/rules_speed.py`. Exit 1 when over a budget.

The files are made of the project's own examples and of the rules' examples, repeated to the size that the
budget is stated for. Each figure is the best of several tries; budgets are of processor time, to which other work on
the machine adds least. An analysis is all that an edit waits for: parsing, rules, plan, targets and the answer as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.rules import cuda, pytorch
from kernel_lsp.rules.registry import rules_of
from kernel_lsp.server.analysed import ANALYSIS
from kernel_lsp.server.analyst import analyse

ROOT = Path(__file__).parent.parent
N_TRIES = 7
N_LINES_CUDA = 5000
N_LINES_PYTORCH = 2000
BUDGET_CUDA_MS = 150.0
BUDGET_PYTORCH_FIRST_MS = 100.0
BUDGET_PYTORCH_MS = 50.0
NO_BUDGET_MS = float("inf")
"""For whole analyses of Python, of which nothing is demanded."""


@dataclass(frozen=True)
class Figure:
    name: str
    n_lines: int
    n_findings: int
    best_ms: float
    best_wall_ms: float
    budget_ms: float

    @property
    def is_over(self) -> bool:
        return self.best_ms > self.budget_ms


def cuda_text(n_lines: int, seed: int) -> str:
    """Kernels of the examples and of the rules' good and bad examples, in turn."""
    parts = [(ROOT / "examples" / "row_softmax.cu").read_text().split("\n\n", 1)[1]]
    parts += [text for rule in rules_of("cuda") for text in (rule.good, rule.bad) if "// op:" not in text]
    return _repeated(parts, n_lines, lambda part, mark: part.replace(") {\n", f") {{  // {mark} {seed}\n"))


def pytorch_text(n_lines: int, seed: int) -> str:
    """The modules and functions of the examples and of the rules' examples, in turn."""
    parts = [path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))]
    parts += [text for rule in rules_of("pytorch") for text in (rule.good, rule.bad)]
    parts = [part.replace("from __future__ import annotations\n", "") for part in parts]
    return _repeated(parts, n_lines, lambda part, mark: part.replace(":\n", f":  # {mark} {seed}\n"))


def measure() -> list[Figure]:
    """Every figure. Each try has texts of its own, so that nothing is kept from the one before."""
    return [
        _figure("CUDA, first check", _fresh_kernels, BUDGET_CUDA_MS),
        _figure("CUDA, small functions, first", _fresh_cuda, BUDGET_CUDA_MS),
        _figure("CUDA, small functions, edited", _edited_cuda, BUDGET_CUDA_MS),
        _figure("CUDA, analysis after an edit", _edited_cuda_analysis, BUDGET_CUDA_MS),
        *(_figure(f"CUDA, {name}", _shaped(make), BUDGET_CUDA_MS) for name, make in CUDA_SHAPES.items()),
        _figure("PyTorch, first check", _fresh_pytorch, BUDGET_PYTORCH_FIRST_MS),
        _figure("PyTorch, after an edit", _edited_pytorch, BUDGET_PYTORCH_MS),
        _figure("PyTorch, analysis after edit", _edited_pytorch_analysis, NO_BUDGET_MS),
    ]


def main() -> int:
    figures = measure()
    for figure in figures:
        budget = "no budget" if figure.budget_ms == NO_BUDGET_MS else f"of {figure.budget_ms:g} ms"
        print(
            f"{figure.name:30} {figure.n_lines:6} lines {figure.n_findings:5} findings "
            f"{figure.best_ms:7.1f} ms {budget}{' OVER' if figure.is_over else ''}, wall {figure.best_wall_ms:.1f} ms"
        )
    return int(any(figure.is_over for figure in figures))


# --- below: shapes of CUDA files


def _one_kernel(lines: list[str], mark: int) -> str:
    head = [f"__global__ void k{mark}(const float* __restrict__ x, float* __restrict__ out, int n) {{"]
    return "\n".join([*head, *lines[: N_LINES_CUDA - 2], "}", ""])


def _giant(mark: int) -> str:
    rounds = (
        [f"  float v{i} = x[{i}] * 2.0f;", f"  if ({i} < n) {{", f"    out[{i}] = expf(v{i}) / (1.0f + v{i});", "  }"]
        for i in range(N_LINES_CUDA // 4)
    )
    return _one_kernel([line for lines in rounds for line in lines], mark)


def _deep(mark: int) -> str:
    depth = N_LINES_CUDA // 2 - 2
    return _one_kernel([*(f"if (n > {i}) {{" for i in range(depth)), *("}" for _ in range(depth))], mark)


def _table(mark: int) -> str:
    rows = "\n".join(f"  {i}.5f, {i}.25f, 0.{i}f, 1e-{i % 9}f," for i in range(N_LINES_CUDA - 3))
    return f"__constant__ float table{mark}[] = {{\n{rows}\n}};\n"


def _long_line(mark: int) -> str:
    numbers = ", ".join(f"{i % 1000}.5f" for i in range(120_000))  # a megabyte
    return f"__constant__ float table{mark}[] = {{{numbers}}};\n" + _giant(mark)


def _comments(mark: int) -> str:
    return "\n".join(f"// {mark} {i}: why __syncthreads() stands here" for i in range(N_LINES_CUDA)) + "\n"


def _definitions(mark: int) -> str:
    return "\n".join(f"#define STEP_{mark}_{i}(x, y) ((x) < (y) ? (x) : {i})" for i in range(N_LINES_CUDA)) + "\n"


def _host(mark: int) -> str:
    functions = (
        f"void launch{mark}_{i}(const float* x, float* y, int n, cudaStream_t s) {{\n"
        f"  k{i}<<<n, 256, 0, s>>>(x, y);\n"
        "  check(cudaGetLastError());\n"
        "  if (n > 4) {\n"
        "    check(cudaStreamSynchronize(s));\n"
        "  }\n"
        "}\n\n"
        for i in range(N_LINES_CUDA // 8)
    )
    return "".join(functions)


def _declarations(mark: int) -> str:
    return (
        "\n".join(f"__global__ void k{mark}_{i}(const float* x, float* y, int n);" for i in range(N_LINES_CUDA)) + "\n"
    )


def _dense(mark: int) -> str:
    """One kernel with an index, a product and a call on each line, and hundreds of findings."""
    lines = ["  int i = blockIdx.x * blockDim.x + threadIdx.x;", "  if (i >= n) return;", "  float acc = 0.0f;"]
    lines += [
        f"  acc += x[i * n + {k}] * x[{k} * n + i % {k + 1}] + fmaxf(x[i + {k}], 0.0f) / (1.0f + expf(-acc));"
        for k in range(N_LINES_CUDA)
    ]
    return _one_kernel(lines, mark)


def _tiles(mark: int) -> str:
    """One kernel of 500 tiled loops with shared memory."""
    lines = ["  __shared__ float tile[32][33];", "  int t = threadIdx.x, row = blockIdx.x;"]
    for k in range(N_LINES_CUDA // 8):
        lines += [
            f"  float sum{k} = 0.0f;",
            f"  for (int k{k} = 0; k{k} < n; k{k} += 32) {{",
            f"    tile[threadIdx.y][t] = row < n ? x[row * n + k{k} + t] : 0.0f;",
            "    __syncthreads();",
            f"    for (int j = 0; j < 32; ++j) sum{k} += tile[threadIdx.y][j] * x[j];",
            "    __syncthreads();",
            "  }",
            f"  if (row < n) out[row * n + {k}] = sum{k};",
        ]
    return _one_kernel(lines, mark)


def _templates(mark: int) -> str:
    functions = (
        f"template <typename T, int N_{i}>\n"
        f"__global__ void scale{mark}_{i}(const T* x, T* y, int64_t n, float factor) {{\n"
        "  const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;\n"
        f"  if (i < n) y[i] = static_cast<T>(static_cast<float>(x[i]) * factor + {i}.5f);\n"
        "}\n"
        for i in range(N_LINES_CUDA // 5)
    )
    return "".join(functions)


def _kernels_of_the_project(mark: int) -> str:
    """The kernels of examples, tests and benchmarks, one after the other."""
    files = [path for name in ("examples", "tests", "benchmarks") for path in sorted((ROOT / name).rglob("*.cu"))]
    texts = [path.read_text(errors="replace") for path in files]
    return _repeated(texts, N_LINES_CUDA, lambda part, n: part.replace(") {\n", f") {{  // {n} {mark}\n"))


def _windows(mark: int) -> str:
    return _fresh_kernels(mark)[0].replace("\n", "\r\n")


CUDA_SHAPES: dict[str, Callable[[int], str]] = {
    "one kernel": _giant,
    "one kernel, nested": _deep,
    "a table": _table,
    "a line of a megabyte": _long_line,
    "comments": _comments,
    "macros": _definitions,
    "launches": _host,
    "declarations": _declarations,
    "one kernel, dense": _dense,
    "one kernel, tiles": _tiles,
    "templates": _templates,
    "the project's kernels": _kernels_of_the_project,
    "line ends of Windows": _windows,
}
"""Files of 5,000 lines, each all of one kind."""


# --- below: texts and timing

Task = tuple[str, Callable[[], tuple]]
"""A text, and what is to be timed with it."""


def _shaped(make: Callable[[int], str]) -> Callable[[int], Task]:
    def task(seed: int) -> Task:
        text = make(seed)
        return text, lambda: cuda.check(text)

    return task


def _fresh_kernels(seed: int) -> Task:
    kernels = (ROOT / "examples" / "row_softmax.cu").read_text().split("\n\n", 1)[1]
    text = _repeated([kernels], N_LINES_CUDA, lambda part, mark: part.replace(") {\n", f") {{  // {mark} {seed}\n"))
    return text, lambda: cuda.check(text)


def _fresh_cuda(seed: int) -> Task:
    text = cuda_text(N_LINES_CUDA, seed)
    return text, lambda: cuda.check(text)


def _edited_cuda(seed: int) -> Task:
    text = cuda_text(N_LINES_CUDA, seed)
    tree = cuda.parse(text)
    cuda.check(text, tree=tree)
    edited = text.replace("threadIdx.x;", "threadIdx.x + 1;", 1)
    return edited, lambda: cuda.check(edited, tree=cuda.parse(edited, tree))


def _edited_cuda_analysis(seed: int) -> Task:
    text = cuda_text(N_LINES_CUDA, seed)
    _analysis("cuda", text)
    edited = text.replace("threadIdx.x;", "threadIdx.x + 1;", 1)
    return edited, lambda: _analysis("cuda", edited)


def _edited_pytorch_analysis(seed: int) -> Task:
    text = pytorch_text(N_LINES_PYTORCH, seed)
    _analysis("python", text)
    edited = text.replace("return x", "return x + 1", 1)
    return edited, lambda: _analysis("python", edited)


def _analysis(language: str, text: str) -> tuple:
    analysis = analyse(language, f"/kernels/file.{language}", text)
    json.dumps(ANALYSIS.dump_python(analysis, mode="json"))
    return analysis.findings


def _fresh_pytorch(seed: int) -> Task:
    text = pytorch_text(N_LINES_PYTORCH, seed)
    return text, lambda: pytorch.check(text)


def _edited_pytorch(seed: int) -> Task:
    text = pytorch_text(N_LINES_PYTORCH, seed)
    pytorch.check(text)
    edited = text.replace("return x", "return x + 1", 1)
    return edited, lambda: pytorch.check(edited)


def _repeated(parts: list[str], n_lines: int, marked: Callable[[str, str], str]) -> str:
    """The parts in turn, each time with another mark in its functions: what is kept of one is of no use to another."""
    lines: list[str] = []
    while len(lines) < n_lines:
        for part in parts:
            lines += marked(part, str(len(lines))).splitlines()
    return "\n".join(lines[:n_lines]) + "\n"


def _figure(name: str, make: Callable[[int], Task], budget_ms: float) -> Figure:
    times, walls, text, n_findings = [], [], "", 0
    for seed in range(N_TRIES):
        text, run = make(seed)
        start, start_wall = time.process_time(), time.perf_counter()
        n_findings = len(run())
        times.append((time.process_time() - start) * 1000)
        walls.append((time.perf_counter() - start_wall) * 1000)
    return Figure(name, text.count("\n"), n_findings, min(times), min(walls), budget_ms)


if __name__ == "__main__":
    sys.exit(main())
