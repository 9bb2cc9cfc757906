"""A rendered kernel: its text, its launch, and the helpers that it calls."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.core.expression import Binary, Constant, Expression, Name
from kernel_lsp.core.expression_rules import binary
from kernel_lsp.core.plan import Fill, TensorParameter
from kernel_lsp.generate.codegen.helpers import HelperUse
from kernel_lsp.generate.codegen.kernel_writer import KernelParameterText, KernelWriter
from kernel_lsp.generate.ir.index import Index
from kernel_lsp.generate.ir.sizes import ceil_div, divides, to_expression

COMMENT_COLUMNS = 110
ONE = Constant(1)
MAX_GRID_YZ = 65535
"""Maximum blocks of a grid along y and along z."""
REGISTERS_PER_BLOCK = 65536
"""32-bit registers of a block, and of an SM (CUDA C++ Programming Guide, compute capabilities)."""


@dataclass(frozen=True)
class SharedArray:
    """An array in shared memory that a kernel uses from its first statement to its last."""

    type: str
    name: str
    n_elements: int
    align: int

    @property
    def declaration(self) -> str:
        """Return the line that declares the array."""
        return f"__shared__ __align__({self.align}) {self.type} {self.name}[{self.n_elements}];"


@dataclass(frozen=True)
class KernelSource:
    """The parts of a kernel's text, for a launch that it shares with others. `shared_bytes` is the total of its arrays;
    `memory` is the one array that other kernels may use as well."""

    comment: str
    parameters: tuple[KernelParameterText, ...]
    body: tuple[str, ...]
    shared_bytes: int
    memory: SharedArray | None = None


@dataclass(frozen=True)
class RenderedKernel:
    """A `__global__` function and its launch.

    `conditions` are the `where:` lines that it needs. `scratch` are tensors of its own; `fills` sets some of them
    before each launch. `attributes` are those of the launch, `shared_bytes` the dynamic shared memory of a block,
    `when` the condition of the launch among its variants.
    """

    name: str
    text: str
    grid: tuple[Expression, Expression, Expression]
    block: tuple[int, int, int]
    arguments: tuple[Expression, ...]
    helpers: frozenset[HelperUse]
    source: KernelSource
    conditions: tuple[Expression, ...] = ()
    scratch: tuple[TensorParameter, ...] = ()
    fills: tuple[Fill, ...] = ()
    attributes: tuple[tuple[str, int], ...] = ()
    when: Expression | None = None
    shared_bytes: int = 0


def rendered(
    kernel: KernelWriter,
    comment: str,
    body: Sequence[str],
    grid: Sequence[Expression],
    block: Sequence[int],
    conditions: Sequence[Expression] = (),
    *,
    min_blocks: int | None = None,
    static_bytes: int = 0,
    dynamic_bytes: int = 0,
    memory: SharedArray | None = None,
    attributes: tuple[tuple[str, int], ...] = (),
) -> RenderedKernel:
    """Return the kernel's text: comment, signature with shapes beside pointers, body. `min_blocks` is the minimum
    number of resident blocks per SM; it also bounds the registers of a thread."""
    parameters = kernel.parameters()
    n_threads = block[0] * (block[1] if len(block) > 1 else 1)
    bounds = f"{n_threads}" if min_blocks is None else f"{n_threads}, {min_blocks}"
    signature = f"__global__ void __launch_bounds__({bounds}) {kernel.name}("
    full_grid = (*grid, *(ONE,) * (3 - len(grid)))
    full_block = (*block, *(1,) * (3 - len(block)))
    return RenderedKernel(
        kernel.name,
        function_text(comment, signature, parameters, body),
        (full_grid[0], full_grid[1], full_grid[2]),
        (full_block[0], full_block[1], full_block[2]),
        tuple(argument_of(parameter) for parameter in parameters),
        frozenset(kernel.helpers),
        KernelSource(comment, tuple(parameters), tuple(body), static_bytes, memory),
        tuple(conditions),
        tuple(kernel.scratch.values()),
        tuple(kernel.fills),
        attributes,
        shared_bytes=dynamic_bytes,
    )


def function_text(comment: str, signature: str, parameters: Sequence[KernelParameterText], body: Sequence[str]) -> str:
    """Return a function: its comment, `signature` up to the parenthesis, parameters and body."""
    head = [f"// {line}" for line in textwrap.wrap(comment, COMMENT_COLUMNS)]
    return "\n".join([*head, signature, *_parameter_lines(parameters), *body, "}"]) + "\n"


def argument_of(parameter: KernelParameterText) -> Expression:
    """Return the plan's argument for a parameter."""
    return Name(parameter.argument) if isinstance(parameter.argument, str) else parameter.argument


def blocks_of(n_items: Index, per_block: int) -> Expression:
    """Return the number of blocks that cover the items."""
    return ceil_div(to_expression(n_items), per_block)


def divisible(size: Index, divisor: int) -> tuple[Expression, ...]:
    """Return the `where:` line ``size % divisor == 0``, or nothing when the size shows it."""
    if divides(divisor, size):
        return ()
    return (Binary("==", binary("%", to_expression(size), Constant(divisor)), Constant(0)),)


# --- parameters


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
