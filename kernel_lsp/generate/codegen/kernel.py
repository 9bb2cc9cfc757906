"""A kernel under construction and a rendered one.

Under construction it has parameters, the helpers it calls, and the names in use, those of coordinates after the user's
dims; rendered it is a text with its launch.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Binary, Constant, Expression, Name, Unary, free_names
from kernel_lsp.core.expression_rules import binary
from kernel_lsp.core.plan import Fill, TensorParameter
from kernel_lsp.generate.codegen.helpers import HelperUse, with_called
from kernel_lsp.generate.codegen.operators import COMPUTE_TYPE
from kernel_lsp.generate.identifiers import NamePool
from kernel_lsp.generate.ir.atoms import Quotient, Remainder, Symbol
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.sizes import ceil_div, divides, to_expression, unravel_safe
from kernel_lsp.generate.ir.tensor import Tensor

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
        with_called(kernel.helpers, body),
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


def by_size(main: RenderedKernel, rest: RenderedKernel) -> tuple[RenderedKernel, RenderedKernel]:
    """Return `main` for sizes that meet its conditions, and `rest` for all others."""
    holds = functools.reduce(functools.partial(Binary, "and"), main.conditions)
    return replace(main, conditions=(), when=holds), replace(rest, when=Unary("not", holds))


def blocks_of(n_items: Index, per_block: int) -> Expression:
    """Return the number of blocks that cover the items."""
    return ceil_div(to_expression(n_items), per_block)


def divisible(size: Index, divisor: int) -> tuple[Expression, ...]:
    """Return the `where:` line ``size % divisor == 0``, or nothing when the size shows it."""
    if divides(divisor, size):
        return ()
    return (Binary("==", binary("%", to_expression(size), Constant(divisor)), Constant(0)),)


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


@dataclass(frozen=True)
class KernelParameterText:
    """One parameter: its declaration, the comment beside it, and the plan's argument."""

    declaration: str
    comment: str
    argument: str | Expression


@dataclass
class KernelWriter:
    """A kernel under construction. `tensor_names` are the plan's names of the tensors in memory; `hints` name scalars.
    `reserved` are the task's dims, `local_names` the template's own, which a dim may have, too: its parameter does not.
    Loops of a thread of at most `max_unrolled` iterations are unrolled, so that values read twice stay in registers.
    `runs` has the array and the place in it of each read whose run of memory is loaded, to be evicted late with
    `evicts_late`; `tiles` those of values that are computed already. With `uses_intrinsics`, functions are as accurate
    as results of 16 bits need; with a `quick_type` of 16 bits, quotients and roots, too: those of f16 that may be
    rounded once are exact, but those `in_gradients`. Where it `divides_often`, the launch gives inverses of sizes."""

    name: str
    tensor_names: Mapping[Tensor, str]
    hints: Mapping[bytes, str]
    reserved: frozenset[str] = frozenset()
    local_names: frozenset[str] = frozenset()
    index_type: Literal["int", "long long"] = "int"
    max_unrolled: int = 0
    evicts_late: bool = False
    uses_intrinsics: bool = False
    quick_type: DType | None = None
    in_gradients: bool = False
    divides_often: bool = False
    coordinates: dict[bytes, str] = field(default_factory=dict)
    helpers: set[HelperUse] = field(default_factory=set)
    reads: dict[Tensor, str] = field(default_factory=dict)
    writes: dict[Tensor, str] = field(default_factory=dict)
    symbols: dict[Symbol, str] = field(default_factory=dict)
    sizes: dict[bytes, tuple[str, Index]] = field(default_factory=dict)
    numbers: dict[tuple[str, str], tuple[str, Expression]] = field(default_factory=dict)
    scratch: dict[str, TensorParameter] = field(default_factory=dict)
    names: NamePool = field(default_factory=NamePool)
    fills: list[Fill] = field(default_factory=list)
    runs: dict[bytes, tuple[str, Index]] = field(default_factory=dict)
    tiles: dict[bytes, tuple[str, Index]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pool = NamePool({*self.reserved, *self.local_names})
        self._local_names = {tensor: pool.take(name) for tensor, name in self.tensor_names.items()}
        self.names = pool
        self._resized, self._in_memory = dict[Tensor, Tensor](), dict[Tensor, Tensor]()

    def local_name(self, tensor: Tensor) -> str:
        """Return the tensor's name in the kernel: the plan's name, unless that is reserved in C++."""
        return self._local_names[self._in_memory.get(tensor, tensor)]

    def name_array(self, tensor: Tensor, name: str) -> None:
        """Have a tensor that the kernel keeps in an array of its own give its values that name."""
        self._local_names[tensor] = name

    def is_in_memory(self, tensor: Tensor) -> bool:
        """Check whether the kernel reads or writes the tensor; a reduction of its rows may be in registers alone."""
        return self._in_memory.get(tensor, tensor) in self._local_names

    def is_parameter(self, name: str) -> bool:
        return name in self._local_names.values()

    def resized(self, tensor: Tensor, shape: Sequence[Index]) -> Tensor:
        """Return a tensor of other sizes in the memory of one: equal ones where the kernel's contract holds."""
        if tuple(shape) == tensor.shape:
            return tensor
        if tensor not in self._resized:
            made = replace(tensor, name=f"{tensor.name}_resized", shape=tuple(shape))
            self._resized[tensor], self._in_memory[made] = made, tensor
        return self._resized[tensor]

    def pointer(self, tensor: Tensor) -> str:
        """Return the parameter that reads the tensor."""
        tensor = self._in_memory.get(tensor, tensor)
        return self.reads.setdefault(tensor, self._local_names[tensor])

    def target(self, tensor: Tensor) -> str:
        """Return the parameter that writes the tensor."""
        tensor = self._in_memory.get(tensor, tensor)
        return self.writes.setdefault(tensor, self._local_names[tensor])

    def add_scratch(self, wanted: str, dtype: DType, dims: Sequence[Expression]) -> str:
        """Add a scratch tensor of this kernel's own to the plan; return the parameter that points to it."""
        name = self.names.take(wanted)
        taken = {
            *self.tensor_names.values(),
            *self.reserved,
            *self.local_names,
            *(scratch.name for scratch in self.scratch.values()),
        }
        in_plan = NamePool(taken).take(f"{self.name}_{wanted}")
        self.scratch[name] = TensorParameter(in_plan, dtype, tuple(dims))
        return name

    def symbol(self, symbol: Symbol) -> str:
        """Return the parameter that holds a size."""
        if symbol not in self.symbols:
            is_free = symbol.name not in self.local_names
            self.symbols[symbol] = symbol.name if is_free else self.names.take(f"{symbol.name}_size")
        return self.symbols[symbol]

    def size(self, name: str, size: Index) -> str:
        """Return a size as C++: a literal when fixed, a dim's own name, else a parameter called `name`."""
        if size.constant is not None:
            return str(size.constant)
        if isinstance(size.atom, Symbol):
            return self.symbol(size.atom)
        if size.digest not in self.sizes:
            self.sizes[size.digest] = (self.names.take(name), size)
        return self.sizes[size.digest][0]

    def number(self, expression: Expression, dtype: DType) -> str:
        """Return the parameter that holds a number of the caller."""
        type_ = COMPUTE_TYPE[dtype]
        if (str(expression), type_) not in self.numbers:
            wanted = expression.id if isinstance(expression, Name) else f"{min(free_names(expression))}_value"
            self.numbers[str(expression), type_] = (self.names.take(wanted), expression)
        return self.numbers[str(expression), type_][0]

    def use(self, name: str, dtype: DType | None = None) -> str:
        """Record a call of a helper; return its name. Those without a type are found in the text, too."""
        self.helpers.add(HelperUse(name, COMPUTE_TYPE[dtype] if dtype else ""))
        return name

    def zeroed_words(self, wanted: str, n_words: Expression) -> str:
        """Add scratch of 64-bit words that a fill zeroes before each launch; return the parameter that points to it."""
        name = self.add_scratch(wanted, DType.I64, (n_words,))
        self.fills.append(Fill(self.scratch[name].name, Constant(0)))
        return name

    def parameters(self) -> list[KernelParameterText]:
        """Return the parameters in this order: tensors read, tensors written, scratch of the kernel's own, sizes,
        numbers of the caller."""
        found = []
        for tensor, name in self.reads.items():
            if tensor not in self.writes:
                declaration = f"const {tensor.dtype.cuda_type}* __restrict__ {name}"
                found.append(KernelParameterText(declaration, shape_text(tensor), self.tensor_names[tensor]))
        for tensor, name in self.writes.items():
            declaration = f"{tensor.dtype.cuda_type}* __restrict__ {name}"
            found.append(KernelParameterText(declaration, shape_text(tensor), self.tensor_names[tensor]))
        for name, scratch in self.scratch.items():
            declaration = f"{scratch.dtype.cuda_type}* __restrict__ {name}"
            found.append(KernelParameterText(declaration, f"({', '.join(map(str, scratch.dims))})", scratch.name))
        for name, size in self.sizes.values():
            expression = to_expression(size)
            found.append(KernelParameterText(f"{self.index_type} {name}", str(expression), expression))
        for symbol, name in sorted(self.symbols.items(), key=lambda entry: entry[1]):
            expression = to_expression(as_index(symbol))
            comment = "" if symbol.definition is None else str(expression)
            found.append(KernelParameterText(f"{self.index_type} {name}", comment, expression))
        for (text, type_), (name, expression) in self.numbers.items():
            found.append(KernelParameterText(f"{type_} {name}", "" if text == name else text, expression))
        return found


def shape_text(tensor: Tensor) -> str:
    """Return ``(B, T, 4096)``; ``()`` for a scalar."""
    return f"({', '.join(str(to_expression(size)) for size in tensor.shape)})"


BY_RANK = {2: ("row", "col"), 3: ("b", "t", "d"), 4: ("n", "c", "h", "w"), 5: ("n", "c", "d", "h", "w")}
MAX_DIM_NAME = 3


def name_coordinates(kernel: KernelWriter, flat: Index, shape: Sequence[Index], names: Sequence[str] = ()) -> None:
    """Name the quotients and remainders that are the index at flat position `flat` of `shape`."""
    if sum(size.constant != 1 for size in shape) < 2:
        return
    for axis, position in enumerate(unravel_safe(flat, shape)):
        if isinstance(position.atom, Quotient | Remainder) and position.digest not in kernel.coordinates:
            kernel.coordinates[position.digest] = names[axis] if names else _coordinate_name(shape, axis)


def _coordinate_name(shape: Sequence[Index], axis: int) -> str:
    by_rank = BY_RANK.get(len(shape))
    size = shape[axis].atom
    if isinstance(size, Symbol) and len(size.name) <= MAX_DIM_NAME and size.name.lower() != size.name:
        return size.name.lower()
    return by_rank[axis] if by_rank else f"i{axis}"
