"""The texts on which the static rules are timed: files of 5,000 lines, each all of one kind.

The files are made of the project's own examples and of the rules' examples, repeated to the size that the budget is
stated for, or of one construct over and over. A text is made for a number, which is in all of its functions: what is
kept of one text is of no use to another.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kernel_lsp.rules.registry import rules_of

ROOT = Path(__file__).parent.parent
N_LINES = 5000
Make = Callable[[int], str]
"""A number -> a text that has it in all of its functions."""


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


def small_functions(mark: int) -> str:
    """More than 900 functions, with hundreds of findings."""
    return cuda_text(N_LINES, mark)


def plain_kernels(mark: int) -> str:
    """The kernels of one example, again and again."""
    kernels = (ROOT / "examples" / "row_softmax.cu").read_text().split("\n\n", 1)[1]
    return _repeated([kernels], N_LINES, lambda part, at: part.replace(") {\n", f") {{  // {at} {mark}\n"))


def same_kernels(mark: int) -> str:
    """The same, each time to the letter."""
    kernels = (ROOT / "examples" / "row_softmax.cu").read_text().split("\n\n", 1)[1]
    return _repeated([kernels], N_LINES, lambda part, at: part.replace(") {\n", f") {{  // {mark}\n"))


# --- below: shapes of CUDA files


def _one_kernel(lines: list[str], mark: int) -> str:
    head = [f"__global__ void k{mark}(const float* __restrict__ x, float* __restrict__ out, int n) {{"]
    return "\n".join([*head, *lines[: N_LINES - 2], "}", ""])


def _giant(mark: int) -> str:
    rounds = (
        [f"  float v{i} = x[{i}] * 2.0f;", f"  if ({i} < n) {{", f"    out[{i}] = expf(v{i}) / (1.0f + v{i});", "  }"]
        for i in range(N_LINES // 4)
    )
    return _one_kernel([line for lines in rounds for line in lines], mark)


def _deep(mark: int) -> str:
    depth = N_LINES // 2 - 2
    return _one_kernel([*(f"if (n > {i}) {{" for i in range(depth)), *("}" for _ in range(depth))], mark)


def _table(mark: int) -> str:
    rows = "\n".join(f"  {i}.5f, {i}.25f, 0.{i}f, 1e-{i % 9}f," for i in range(N_LINES - 3))
    return f"__constant__ float table{mark}[] = {{\n{rows}\n}};\n"


def _long_line(mark: int) -> str:
    numbers = ", ".join(f"{i % 1000}.5f" for i in range(120_000))  # a megabyte
    return f"__constant__ float table{mark}[] = {{{numbers}}};\n" + _giant(mark)


def _comments(mark: int) -> str:
    return "\n".join(f"// {mark} {i}: why __syncthreads() stands here" for i in range(N_LINES)) + "\n"


def _definitions(mark: int) -> str:
    return "\n".join(f"#define STEP_{mark}_{i}(x, y) ((x) < (y) ? (x) : {i})" for i in range(N_LINES)) + "\n"


def _host(mark: int) -> str:
    functions = (
        f"void launch{mark}_{i}(const float* x, float* y, int n, cudaStream_t s) {{\n"
        f"  k{i}<<<n, 256, 0, s>>>(x, y);\n"
        "  check(cudaGetLastError());\n"
        "  if (n > 4) {\n"
        "    check(cudaStreamSynchronize(s));\n"
        "  }\n"
        "}\n\n"
        for i in range(N_LINES // 8)
    )
    return "".join(functions)


def _declarations(mark: int) -> str:
    return "\n".join(f"__global__ void k{mark}_{i}(const float* x, float* y, int n);" for i in range(N_LINES)) + "\n"


def _dense(mark: int) -> str:
    """One kernel with an index, a product and a call on each line, and hundreds of findings."""
    lines = ["  int i = blockIdx.x * blockDim.x + threadIdx.x;", "  if (i >= n) return;", "  float acc = 0.0f;"]
    lines += [
        f"  acc += x[i * n + {k}] * x[{k} * n + i % {k + 1}] + fmaxf(x[i + {k}], 0.0f) / (1.0f + expf(-acc));"
        for k in range(N_LINES)
    ]
    return _one_kernel(lines, mark)


def _tiles(mark: int) -> str:
    """One kernel of 500 tiled loops with shared memory."""
    lines = ["  __shared__ float tile[32][33];", "  int t = threadIdx.x, row = blockIdx.x;"]
    for k in range(N_LINES // 8):
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
        for i in range(N_LINES // 5)
    )
    return "".join(functions)


def _kernels_of_the_project(mark: int) -> str:
    """The kernels of examples, tests and benchmarks, one after the other."""
    files = [path for name in ("examples", "tests", "benchmarks") for path in sorted((ROOT / name).rglob("*.cu"))]
    texts = [path.read_text(errors="replace") for path in files]
    return _repeated(texts, N_LINES, lambda part, n: part.replace(") {\n", f") {{  // {n} {mark}\n"))


def _windows(mark: int) -> str:
    return plain_kernels(mark).replace("\n", "\r\n")


def _long_lines(mark: int) -> str:
    """One kernel of 650 KB: a sum of products on each line."""
    products = " + ".join(f"x[i * n + {k}] * x[{k}]" for k in range(5))
    return _one_kernel(["  int i = threadIdx.x;", "  float acc = 0.0f;", *[f"  acc += {products};"] * N_LINES], mark)


def _long_sums(mark: int) -> str:
    """A kernel with sums of 500 terms, which are as many expressions in each other."""
    products = " + ".join(f"x[i * n + {k}] * x[{k}]" for k in range(500))
    return _one_kernel(["  int i = threadIdx.x;", "  float acc = 0.0f;", *[f"  acc += {products};"] * 50], mark)


CUDA_SHAPES: dict[str, Make] = {
    "the same kernels": same_kernels,
    "plain kernels": plain_kernels,
    "small functions": small_functions,
    "mixture": _kernels_of_the_project,
    "templates": _templates,
    "one kernel, tiles": _tiles,
    "one kernel, dense": _dense,
    "one kernel, long lines": _long_lines,
    "one kernel, long sums": _long_sums,
    "one kernel": _giant,
    "one kernel, nested": _deep,
    "a table": _table,
    "a line of a megabyte": _long_line,
    "comments": _comments,
    "macros": _definitions,
    "launches": _host,
    "declarations": _declarations,
    "line ends of Windows": _windows,
}


# --- shapes of PyTorch files

_IMPORTS = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\n"


def _pytorch_mixture(mark: int) -> str:
    return pytorch_text(N_LINES, mark)


def _pytorch_functions(mark: int) -> str:
    function = (
        "def f{mark}_{i}(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:\n"
        "    z = torch.relu(x * {i}.5 + y)\n    return z.mean(-1)\n\n\n"
    )
    return _IMPORTS + "".join(function.format(mark=mark, i=i) for i in range(N_LINES // 5))


def _pytorch_forward(mark: int) -> str:
    """One forward of nearly the whole file."""
    layers = "".join(f"        self.linear{i} = nn.Linear(8, 8)\n" for i in range(7))
    steps = "".join(f"        h = self.act(self.linear{i % 7}(h)) + x * {i}.5\n" for i in range(N_LINES - 18))
    return (
        f"{_IMPORTS}class Model{mark}(nn.Module):\n    def __init__(self):\n        super().__init__()\n{layers}"
        f"        self.act = nn.ReLU()\n\n    def forward(self, x):\n        h = x\n{steps}        return h\n"
    )


def _pytorch_nested(mark: int) -> str:
    """Functions of 18 branches and loops in each other."""
    levels = [f"for a{d} in range({d + 2}):" if d % 2 else f"if x.shape[0] > {d}:" for d in range(18)]
    opened = "".join("    " * (depth + 1) + level + "\n" for depth, level in enumerate(levels))
    inner = "    " * (len(levels) + 1)
    functions = (
        f"def f{mark}_{i}(x: torch.Tensor) -> torch.Tensor:\n{opened}{inner}x = x + {i}\n    return x\n"
        for i in range(N_LINES // 21)
    )
    return _IMPORTS + "".join(functions)


def _pytorch_long_lines(mark: int) -> str:
    """230 KB in lines of 900 characters: forty calls in one sum."""
    functions = (
        f"def f{mark}_{i}(x: torch.Tensor) -> torch.Tensor:\n    return "
        + " + ".join(f"torch.exp(x * {k}.5)" for k in range(40))
        + "\n\n\n"
        for i in range(250)
    )
    return _IMPORTS + "".join(functions)


def _pytorch_classes(mark: int) -> str:
    module = (
        "class M{mark}_{i}(nn.Module):\n    def __init__(self, d: int):\n        super().__init__()\n"
        "        self.linear = nn.Linear(d, {i})\n        self.norm = nn.LayerNorm(d)\n\n"
        "    def forward(self, x: torch.Tensor) -> torch.Tensor:\n        h = self.norm(x)\n"
        "        return x + F.gelu(self.linear(h))\n\n"
    )
    return _IMPORTS + "".join(module.format(mark=mark, i=i) for i in range(N_LINES // 10))


def _pytorch_training(mark: int) -> str:
    """One function of a thousand steps, each with a loss and its backward."""
    steps = "".join(
        f"    loss{i} = F.mse_loss(model(x[{i}]), y[{i}])\n    loss{i}.backward()\n"
        f"    total += loss{i}.item()\n    optimizer.step()\n"
        for i in range(N_LINES // 4 - 2)
    )
    return f"{_IMPORTS}def train{mark}(model, x, y, optimizer):\n    total = 0.0\n{steps}    return total\n"


def _pytorch_table(mark: int) -> str:
    rows = "".join(f"    ({i}, {i}.5, 'name{i}', [{i}, {i + 1}]),\n" for i in range(N_LINES - 6))
    return f"{_IMPORTS}TABLE{mark} = [\n{rows}]\n"


def _pytorch_script(mark: int) -> str:
    """No function at all."""
    lines = "".join(f"y{i} = torch.relu(x + {i}) * {i}.5\n" for i in range(N_LINES - 5))
    return f"{_IMPORTS}x = torch.zeros({mark})\n{lines}"


PYTORCH_SHAPES: dict[str, Make] = {
    "mixture": _pytorch_mixture,
    "small functions": _pytorch_functions,
    "one huge forward": _pytorch_forward,
    "nested deeply": _pytorch_nested,
    "long lines": _pytorch_long_lines,
    "classes": _pytorch_classes,
    "a training loop": _pytorch_training,
    "a table": _pytorch_table,
    "a script": _pytorch_script,
}


# --- below: repetition


def _repeated(parts: list[str], n_lines: int, marked: Callable[[str, str], str]) -> str:
    """The parts in turn, each time with another mark in its functions: what is kept of one is of no use to another."""
    lines: list[str] = []
    while len(lines) < n_lines:
        for part in parts:
            lines += marked(part, str(len(lines))).splitlines()
    return "\n".join(lines[:n_lines]) + "\n"
