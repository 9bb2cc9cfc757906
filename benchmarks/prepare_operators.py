"""Writes what `gpu_operator.py` takes: the operator of a kernel written by hand, and its operations bound to the shapes
that are run. Needs kernel_lsp, no GPU and no torch.

    python benchmarks/prepare_operators.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import Graph, Task, TaskScalar, TaskTensor, TensorType
from kernel_lsp.export.python.operator import write_operator
from kernel_lsp.plan.binding import bind
from kernel_lsp.plan.parser import parse_or_raise
from kernel_lsp.source.cuda import kernel_signatures

ROOT = Path(__file__).parent.parent
KERNEL = ROOT / "tests" / "export" / "rms_norm.cu"
ROWS, COLUMNS, EPS = 16384, 4096, 1e-6
"""The RMSNorm of robust-kbench: x (16, 1024, 4096)."""
VERIFICATION = "by benchmarks/gpu_operator.py against an fp64 reference, on the GPUs that its results name."
REFERENCE = """\
def rms_norm_reference(x, weight, eps):
    mean_square = x.pow(2).mean(-1, keepdim=True)
    return x * torch.rsqrt(mean_square + 1e-06) * weight
"""


def main() -> None:
    for path in write_all(Path(sys.argv[1])):
        print(path)


def write_all(folder: Path) -> tuple[Path, ...]:
    """The kernel, the operator and the bound operations."""
    cu_text = KERNEL.read_text(encoding="utf-8")
    plan = parse_or_raise(cu_text, str(KERNEL))
    kernel, operator, *_ = write_operator(rms_norm_task(), cu_text, plan, folder, verification=VERIFICATION)
    bound = folder / "rms_norm.operations.json"
    bound.write_text(json.dumps(bound_operations(cu_text), indent=1) + "\n", encoding="utf-8")
    return kernel, operator, bound


def rms_norm_task() -> Task:
    """Return what a capture of an RMSNorm function gives, but for its graph, which an operator does not need."""
    x = TensorType(dtype=DType.F32, shape=("B", "D"))
    weight = TensorType(dtype=DType.F32, shape=("D",))
    return Task(
        name="rms_norm",
        target="tests/export/rms_norm.cu",
        kind="function",
        source_file="rms_norm.py",
        source_line=1,
        symbols=(),
        arguments=(
            TaskTensor(name="x", type=x, role="input", requires_grad=True),
            TaskTensor(name="weight", type=weight, role="input", requires_grad=True),
            TaskScalar(name="eps", type="float", value=EPS),
        ),
        forward=Graph(inputs=(), input_types=(), nodes=(), outputs=()),
        reference_source=REFERENCE,
        configurations=(),
        torch_version="2.13.0",
    )


def bound_operations(cu_text: str) -> dict[str, object]:
    """Forward and backward for `ROWS` x `COLUMNS`, as the worker's GPU commands take them."""
    plan, signatures = parse_or_raise(cu_text, str(KERNEL)), kernel_signatures(cu_text)
    shapes = {"grad_out": (ROWS, COLUMNS), "x": (ROWS, COLUMNS), "weight": (COLUMNS,)}
    return {
        operation.name: bind(operation, shapes, {"eps": EPS}, signatures).model_dump(mode="json")
        for operation in plan.operations
    }


if __name__ == "__main__":
    main()
