"""Small graphs and bound operations, written by hand."""

from __future__ import annotations

from typing import Any

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import BoundLaunch, BoundOperation, BoundStep, BoundTensor, TensorArgument
from kernel_lsp.core.profile import LaunchCounters
from kernel_lsp.core.task import Graph, GraphNode, GraphOutput, SourceLine, TensorType


def tensor_type(*shape: int | str, dtype: DType = DType.F32) -> TensorType:
    return TensorType(dtype=dtype, shape=tuple(str(size) for size in shape))


def node(name: str, op: str, arguments: tuple[Any, ...], result: TensorType, *, line: str | None = None) -> GraphNode:
    """A node; strings among the arguments name values. `line` is the user's text, whose number is its length."""
    values = tuple({"node": argument} if isinstance(argument, str) else argument for argument in arguments)
    source = SourceLine(file="model.py", line=len(line), text=line) if line else None
    return GraphNode(name=name, op=f"aten.{op}.default", arguments=values, types=(result,), source=source)


def graph(inputs: dict[str, TensorType], *nodes: GraphNode) -> Graph:
    """A graph whose result is its last node."""
    output = GraphOutput(name="out", node=nodes[-1].name, type=nodes[-1].types[0])
    return Graph(inputs=tuple(inputs), input_types=tuple(inputs.values()), nodes=nodes, outputs=(output,))


def launch(grid: int, block: int, *tensors: str, kernel: str = "k", shared_bytes: int = 0) -> BoundLaunch:
    return BoundLaunch(
        kernel=kernel,
        grid=(grid, 1, 1),
        block=(block, 1, 1),
        shared_bytes=shared_bytes,
        arguments=tuple(TensorArgument(tensor=tensor) for tensor in tensors),
    )


def operation(tensors: dict[str, tuple[str, int]], *steps: BoundStep) -> BoundOperation:
    """`tensors`: name -> (role, number of f32 elements)."""
    return BoundOperation(
        name="op",
        dims={},
        tensors=tuple(
            BoundTensor(name=name, dtype=DType.F32, shape=(n,), role=role)  # type: ignore[arg-type]
            for name, (role, n) in tensors.items()
        ),
        steps=steps,
    )


def streaming(
    grid: int,
    block: int,
    n_loads: int,
    *,
    bytes_each: int = 4,
    sectors_per_request: float | None = None,
    instructions_per_load: int = 8,
    extra_instructions: int = 20,
    barriers: int = 0,
    shuffles: int = 0,
    special: int = 0,
    n_passes: int = 1,
) -> LaunchCounters:
    """A kernel whose threads each read `n_loads` values of `bytes_each` (in every pass) and write as many."""
    n_threads, n_warps = grid * block, grid * -(-block // 32)
    n_accesses = n_loads * (n_passes + 1)
    per_thread = extra_instructions + instructions_per_load * n_accesses + 2 * shuffles
    sectors = sectors_per_request if sectors_per_request is not None else 32 * bytes_each / 32
    return LaunchCounters(
        kernel="k",
        n_blocks=grid,
        n_blocks_run=grid,
        n_blocks_traced=grid,
        n_threads_per_block=block,
        n_instructions=n_threads * per_thread,
        n_floating_operations=n_threads * n_loads * 2,
        n_special_operations=n_threads * special,
        n_f64_operations=0,
        global_load_bytes=n_threads * n_loads * n_passes * bytes_each,
        global_store_bytes=n_threads * n_loads * bytes_each,
        shared_load_bytes=0,
        shared_store_bytes=0,
        n_global_requests=n_warps * n_accesses,
        n_global_sectors=round(n_warps * n_accesses * sectors),
        n_atomics=0,
        n_barriers=n_threads * barriers,
        n_shuffles=n_threads * shuffles,
        max_instructions_per_thread=per_thread,
    )
