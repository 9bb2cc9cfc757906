"""A task that copies its input, and plans for it."""

from __future__ import annotations

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import Graph, GraphNode, GraphOutput, Symbol, Task, TaskTensor, TensorType
from kernel_lsp.verify.model.cases import Sizes
from kernel_lsp.verify.model.resolved_kernel import Prepared, prepare

TYPE = TensorType(dtype=DType.F32, shape=("B", "D"))
TASK = Task(
    name="copy",
    target="model.py::copy",
    kind="function",
    source_file="model.py",
    source_line=1,
    symbols=(Symbol(name="B", captured=6, minimum=1), Symbol(name="D", captured=1000, minimum=1)),
    arguments=(TaskTensor(name="x", type=TYPE, role="input"),),
    forward=Graph(
        inputs=("x",), input_types=(TYPE,), nodes=(), outputs=(GraphOutput(name="out", node="x", type=TYPE),)
    ),
    reference_source="",
    configurations=(),
    torch_version="2",
)
CUBE = TensorType(dtype=DType.F32, shape=("B", "D", "E"))
SQUARE = TASK.model_copy(
    update={
        "symbols": (*TASK.symbols, Symbol(name="E", captured=1000, minimum=1)),
        "arguments": (TaskTensor(name="x", type=CUBE, role="input"),),
        "forward": Graph(
            inputs=("x",),
            input_types=(CUBE,),
            nodes=(GraphNode(name="n", op="aten.clone.default", arguments=({"node": "x"},), types=(CUBE,)),),
            outputs=(GraphOutput(name="out", node="n", type=CUBE),),
        ),
    }
)
KNOWN: list[Sizes] = [{"B": 6, "D": 1000}, {"B": 7, "D": 5}]


def prepared(*directives: str, code: str = "", task: Task = TASK) -> Prepared:
    dims = ", ".join(task.tensors[0].type.shape)
    lines = ["kernel-lsp: 1", f"op: copy(x: f32[{dims}]) -> (out: f32[{dims}])", *directives]
    kernel = f"template <bool LONG = false> __global__ void k(const float* x, float* out, int D) {{ {code} }}"
    found = prepare("".join(f"// {line}\n" for line in lines) + "\n" + kernel, task)
    assert isinstance(found, Prepared), found
    return found
