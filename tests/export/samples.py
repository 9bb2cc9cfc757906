"""Tasks by hand, and operators written from them."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import LaunchPlan
from kernel_lsp.core.task import Graph, Task, TaskScalar, TaskTensor, TensorType
from kernel_lsp.export.python.operator import operator_text
from kernel_lsp.export.python.operator_text import OperatorParts
from kernel_lsp.plan.parser import parse_or_raise
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.toolchain.nvrtc.standard_headers import headers_of

RMS_NORM_CU = (Path(__file__).parent / "rms_norm.cu").read_text()
VERIFICATION = "by the tests of this file."
NO_GRAPH = Graph(inputs=(), input_types=(), nodes=(), outputs=())
_numbers = itertools.count()


def tensor(name: str, *shape: str, dtype: DType = DType.F32, qualified_name: str | None = None) -> TaskTensor:
    """An input, or a parameter when it has a qualified name."""
    return TaskTensor(
        name=name,
        type=TensorType(dtype=dtype, shape=shape),
        role="parameter" if qualified_name else "input",
        qualified_name=qualified_name,
    )


def scalar(name: str, value: float | int | bool) -> TaskScalar:
    return TaskScalar(name=name, type=type(value).__name__, value=value)  # type: ignore[arg-type]


def task(name: str, arguments: tuple[TaskTensor | TaskScalar, ...], reference: str, **fields: object) -> Task:
    """A task as a capture would make it; `reference` is the body of the reference."""
    listed = ", ".join(argument.name for argument in arguments)
    lines = "\n".join(f"    {line}" for line in reference.strip().splitlines())
    defaults = {"target": f"model.py::{name}", "kind": "function"}
    return Task(
        name=name,
        source_file="model.py",
        source_line=1,
        symbols=(),
        arguments=arguments,
        forward=NO_GRAPH,
        reference_source=f"def {name}_reference({listed}):\n{lines}\n",
        configurations=(),
        torch_version="2.13.0",
        **{**defaults, **fields},  # type: ignore[arg-type]
    )


def plan_of(cu_text: str) -> LaunchPlan:
    return parse_or_raise(cu_text, "kernel.cu")


def text_of(task: Task, cu_text: str) -> str:
    """The operator file without its marker."""
    signatures, headers = kernel_signatures(cu_text), headers_of(cu_text)
    return operator_text(OperatorParts(task, plan_of(cu_text), signatures, VERIFICATION, headers=headers))


def fresh_name(stem: str) -> str:
    """A name that no operator of this process has."""
    return f"{stem}_{next(_numbers)}"


@functools.cache
def rms_norm_task(name: str = "rms_norm", kind: str = "function") -> Task:
    settings = {"eps": 1e-6} if kind == "module" else {}
    return task(
        name,
        (
            tensor("x", "B", "D"),
            tensor("weight", "D", qualified_name="weight" if kind == "module" else None),
            scalar("eps", 1e-6),
        )
        if kind == "function"
        else (tensor("x", "B", "D"), tensor("weight", "D", qualified_name="weight")),
        "mean_square = x.pow(2).mean(-1, keepdim=True)\nreturn x * torch.rsqrt(mean_square + 1e-06) * weight",
        kind=kind,
        module_settings=settings,
    )


def rms_norm_cu(name: str = "rms_norm", *, with_backward: bool = True, with_eps: bool = True) -> str:
    """The hand-written kernel, its operation renamed."""
    text = RMS_NORM_CU.replace("op: rms_norm", f"op: {name}")
    if not with_eps:
        text = text.replace(", eps: float", "").replace("D, eps)\n", "D, 0.000001)\n", 2)
    if not with_backward:
        first, last = text.index(f"// op: {name}_backward"), text.index("\n// RMSNorm over rows")
        text = text[:first] + text[last:]
    return text
