"""Kernels that probes may read: a plan that copies the input of a task."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import Configuration, Graph, GraphOutput, Symbol, Task, TaskTensor, TensorType
from kernel_lsp.verify.model.resolved_kernel import Prepared, prepare
from kernel_lsp.verify.probes.probed_kernel import Kernel

TEXT = """// kernel-lsp: 1
// op: f(x: {type}) -> (out: {type})
{where}// launch: copy<<<1, 32, 0>>>(x, out)
extern "C" __global__ void copy(const {c_type}* x, {c_type}* out) {{}}
"""
C_TYPES = {"f32": "float", "i64": "long long", "bool": "bool"}


def task_of(
    *dims: str,
    minimum: int = 1,
    configurations: tuple[Configuration, ...] = (),
    dtype: DType = DType.F32,
    captured: Mapping[str, int] = MappingProxyType({}),
) -> Task:
    """Return a task with one input, and an output of its type. Sizes are captured as 512 where `captured` has none."""
    type_ = TensorType(dtype=dtype, shape=dims)
    graph = Graph(
        inputs=("x",),
        input_types=(type_,),
        nodes=(),
        outputs=(GraphOutput(name="out", node="x", type=type_),),
    )
    symbols = tuple(
        Symbol(name=dim, captured=captured.get(dim, 512), minimum=minimum) for dim in dims if not dim.isdigit()
    )
    return Task(
        name="f",
        target="model.py::f",
        kind="function",
        source_file="model.py",
        source_line=1,
        symbols=symbols,
        arguments=(TaskTensor(name="x", type=type_, role="input"),),
        forward=graph,
        reference_source="",
        configurations=configurations,
        torch_version="2",
    )


def kernel_of(task: Task, *where: str, seed: int = 1) -> Kernel:
    """The forward of a task with one input and an output of its type."""
    type_ = task.forward.input_types[0]
    text = TEXT.format(
        type=f"{type_.dtype}[{', '.join(type_.shape)}]",
        where="".join(f"// where: {line}\n" for line in where),
        c_type=C_TYPES[str(type_.dtype)],
    )
    prepared = prepare(text, task)
    assert isinstance(prepared, Prepared), prepared
    return Kernel(prepared, "forward", seed)
