"""Describe a task in prompts: the functional reference, signatures for the plan, sizes. It contains no comments or
paths of the user, so their file cannot inject instructions into a prompt."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.core.task import Graph, Task, TaskScalar, TensorType
from kernel_lsp.gpu.estimate import estimate_eager
from kernel_lsp.gpu.floor import graph_floor
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.verify.model.cases import captured_sizes


@dataclass(frozen=True)
class TaskText:
    """A prompt's description of the task. `signatures` are the forward's and, if requested, the backward's."""

    name: str
    reference: str
    signatures: tuple[str, ...]
    sizes: str
    configurations: tuple[str, ...]
    gpu: str
    floor: str


def describe_task(task: Task, gpu: GpuSpec) -> TaskText:
    """Describe the task, independent of the location of its file."""
    floor = task_floor_us(task, gpu)
    return TaskText(
        name=task.name,
        reference=task.reference_source.strip(),
        signatures=signatures(task),
        sizes=", ".join(f"{name} = {size}" for name, size in captured_sizes(task).items()) or "as in the signature",
        configurations=tuple(_configuration(configuration.shapes) for configuration in task.configurations[1:]),
        gpu=f"{gpu.name}: {gpu.n_sms} multiprocessors, {gpu.bandwidth / 1e12:.2f} TB/s",
        floor=f"Nothing can be faster than {floor:.3g} us (compulsory memory traffic, or arithmetic).",
    )


def signatures(task: Task) -> tuple[str, ...]:
    """Return ``name(x: f32[B, D], eps: float) -> (out: f32[B, D])``, and the backward's if the task has one."""
    scalars = [f"{a.name}: {a.type}" for a in task.arguments if isinstance(a, TaskScalar)]
    found = [_signature(task.name, task.forward, scalars)]
    if task.backward is not None:
        found.append(_signature(f"{task.name}_backward", task.backward, scalars))
    return tuple(found)


def task_floor_us(task: Task, gpu: GpuSpec) -> float:
    """Return the speed of light of the forward, plus the backward if there is one, at the captured sizes."""
    sizes = captured_sizes(task)
    floors = (graph_floor(graph, sizes, gpu, estimate_eager(graph, sizes, gpu).n_operations) for graph in task.graphs)
    return sum(floor.time_us for floor in floors)


def _signature(name: str, graph: Graph, scalars: list[str]) -> str:
    inputs = [_tensor(n, type_) for n, type_ in zip(graph.inputs, graph.input_types, strict=True)]
    outputs = [_tensor(o.name, o.type) for o in graph.outputs if o.node is not None and o.type is not None]
    return f"{name}({', '.join([*inputs, *scalars])}) -> ({', '.join(outputs)})"


def _tensor(name: str, type_: TensorType) -> str:
    return f"{name}: {type_.dtype}[{', '.join(type_.shape)}]"


def _configuration(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} [{', '.join(str(size) for size in shape)}]" for name, shape in shapes.items())
