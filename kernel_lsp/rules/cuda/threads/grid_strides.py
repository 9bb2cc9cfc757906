"""KL257: a loop over elements of the whole grid that steps by one block."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.bounds.stencil_borders import is_of_grid
from kernel_lsp.rules.cuda.declare import BLOCK_WORDS, LOOP_WORDS, THREAD_WORDS, WARNING, declare, hit
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.threads.threads import is_loop_variable
from kernel_lsp.rules.rule import Hit


@declare(
    "KL257",
    "stride-of-one-block",
    WARNING,
    on="kernel",
    needs=(BLOCK_WORDS, THREAD_WORDS, LOOP_WORDS, "blockDim"),
    summary="A loop begins at an index across the grid and steps by one block",
    why="""
    `i = blockIdx.x * blockDim.x + threadIdx.x` with `i += blockDim.x` visits the elements of all later blocks as well:
    they are computed once by each block before them, and updated several times. Step by `blockDim.x * gridDim.x`.
    """,
    bad="""
    __global__ void add(float* __restrict__ x, int n) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x) x[i] += 1.0f;
    }
    """,
    good="""
    __global__ void add(float* __restrict__ x, int n) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) x[i] += 1.0f;
    }
    """,
)
def stride_of_one_block(kernel: Function) -> Iterator[Hit]:
    for variable in kernel.all_variables():
        if variable.value is None or len(variable.writes) != 1 or not is_of_grid(kernel.source(variable.value)):
            continue
        step, loop = variable.writes[0], kernel.loop_around(variable.writes[0])
        right = step.child_by_field_id(fields.RIGHT)
        condition = None if loop is None else loop.child_by_field_id(fields.CONDITION)
        end = None if condition is None else kernel.variable(condition.child_by_field_id(fields.RIGHT))
        is_counter = is_loop_variable(kernel, variable) or (
            condition is not None and kernel.variable(condition.child_by_field_id(fields.LEFT)) is variable
        )
        is_block = right is not None and kernel.source(right).replace(" ", "") in ("blockDim.x", "blockDim.y")
        if is_counter and is_block and kernel.operator(step) == "+=" and end in kernel.parameters:
            yield hit(kernel.file, step, "step of one block in a loop across the grid: use `blockDim.x * gridDim.x`")
