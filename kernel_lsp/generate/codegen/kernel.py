"""A rendered kernel: its text, how it is launched, and what it calls."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.core.expression import Binary, Constant, Expression, Name
from kernel_lsp.core.expression_rules import binary
from kernel_lsp.generate.codegen.helpers import HelperUse
from kernel_lsp.generate.codegen.kernel_writer import KernelParameterText, KernelWriter
from kernel_lsp.generate.index import Index, divides
from kernel_lsp.generate.sizes import ceil_div, to_expression

COMMENT_COLUMNS = 110
ONE = Constant(1)


@dataclass(frozen=True)
class RenderedKernel:
    """A `__global__` function and its launch. `conditions` are `where:` lines that it needs, `shared_bytes` its dynamic
    shared memory, `cluster` its blocks per cluster."""

    name: str
    text: str
    grid: tuple[Expression, Expression, Expression]
    block: tuple[int, int, int]
    arguments: tuple[Expression, ...]
    helpers: frozenset[HelperUse]
    conditions: tuple[Expression, ...] = ()
    shared_bytes: int = 0
    cluster: int = 1


def rendered(
    kernel: KernelWriter,
    comment: str,
    body: Sequence[str],
    grid: Sequence[Expression],
    block: Sequence[int],
    conditions: Sequence[Expression] = (),
    *,
    shared_bytes: int = 0,
    cluster: int = 1,
) -> RenderedKernel:
    """The kernel's text: comment, signature with shapes beside pointers, body."""
    parameters = kernel.parameters()
    n_threads = block[0] * (block[1] if len(block) > 1 else 1)
    head = [f"// {line}" for line in textwrap.wrap(comment, COMMENT_COLUMNS)]
    signature = f"__global__ void __launch_bounds__({n_threads}) {kernel.name}("
    lines = [*head, signature, *_parameter_lines(parameters), *body, "}"]
    full_grid = (*grid, *(ONE,) * (3 - len(grid)))
    full_block = (*block, *(1,) * (3 - len(block)))
    return RenderedKernel(
        kernel.name,
        "\n".join(lines) + "\n",
        (full_grid[0], full_grid[1], full_grid[2]),
        (full_block[0], full_block[1], full_block[2]),
        tuple(Name(p.argument) if isinstance(p.argument, str) else p.argument for p in parameters),
        frozenset(kernel.helpers),
        tuple(conditions),
        shared_bytes,
        cluster,
    )


def blocks_of(n_items: Index, per_block: int) -> Expression:
    """How many blocks cover the items."""
    return ceil_div(to_expression(n_items), per_block)


def divisible(size: Index, divisor: int) -> tuple[Expression, ...]:
    """The `where:` line ``size % divisor == 0``, or nothing when the size shows it."""
    if divides(divisor, size):
        return ()
    return (Binary("==", binary("%", to_expression(size), Constant(divisor)), Constant(0)),)


# --- below: parameters


def _parameter_lines(parameters: Sequence[KernelParameterText]) -> list[str]:
    declarations = [
        f"    {parameter.declaration}{',' if position < len(parameters) - 1 else ')'}"
        for position, parameter in enumerate(parameters)
    ]
    declarations[-1] += " {"
    width = max(len(text) for text in declarations)
    return [
        f"{text.ljust(width)}  // {parameter.comment}" if parameter.comment else text
        for text, parameter in zip(declarations, parameters, strict=True)
    ]
