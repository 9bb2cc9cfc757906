"""State of a kernel under construction: its parameters, the helpers it calls, and the names in use, those of
coordinates after the user's dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Constant, Expression, Name, free_names
from kernel_lsp.core.plan import Fill, TensorParameter
from kernel_lsp.generate.codegen.helpers import HelperUse
from kernel_lsp.generate.codegen.operators import COMPUTE_TYPE
from kernel_lsp.generate.ir.index import Index, Quotient, Remainder, Symbol, as_index
from kernel_lsp.generate.ir.sizes import to_expression, unravel_safe
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.names import NamePool


@dataclass(frozen=True)
class KernelParameterText:
    """One parameter: its declaration, the comment beside it, and the plan's argument."""

    declaration: str
    comment: str
    argument: str | Expression


@dataclass
class KernelWriter:
    """A kernel under construction. `tensor_names` are the plan's names of the tensors in memory; `hints` name scalars.
    With `unrolls_loops`, short loops of a thread are unrolled, so that values read twice stay in registers. `runs` has
    the array and the place in it of each read whose run of memory is loaded. With `uses_intrinsics`, functions are as
    accurate as results of 16 bits need; with a `quick_type` of 16 bits, of all elements, quotients and roots, too."""

    name: str
    tensor_names: Mapping[Tensor, str]
    hints: Mapping[bytes, str]
    reserved: frozenset[str] = frozenset()
    index_type: Literal["int", "long long"] = "int"
    unrolls_loops: bool = False
    uses_intrinsics: bool = False
    quick_type: DType | None = None
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

    def __post_init__(self) -> None:
        pool = NamePool(set(self.reserved))
        self._local_names = {tensor: pool.take(name) for tensor, name in self.tensor_names.items()}
        self.names = pool

    def local_name(self, tensor: Tensor) -> str:
        """Return the tensor's name in the kernel: the plan's name, unless that is reserved in C++."""
        return self._local_names[tensor]

    def is_parameter(self, name: str) -> bool:
        return name in self._local_names.values()

    def pointer(self, tensor: Tensor) -> str:
        """Return the parameter that reads the tensor."""
        return self.reads.setdefault(tensor, self._local_names[tensor])

    def target(self, tensor: Tensor) -> str:
        """Return the parameter that writes the tensor."""
        return self.writes.setdefault(tensor, self._local_names[tensor])

    def add_scratch(self, wanted: str, dtype: DType, dims: Sequence[Expression]) -> str:
        """Add a scratch tensor of this kernel's own to the plan; return the parameter that points to it."""
        name = self.names.take(wanted)
        taken = {*self.tensor_names.values(), *self.reserved, *(scratch.name for scratch in self.scratch.values())}
        in_plan = NamePool(taken).take(f"{self.name}_{wanted}")
        self.scratch[name] = TensorParameter(in_plan, dtype, tuple(dims))
        return name

    def symbol(self, symbol: Symbol) -> str:
        """Return the parameter that holds a size."""
        return self.symbols.setdefault(symbol, symbol.name)

    def size(self, name: str, size: Index) -> str:
        """Return a size as C++: a literal when fixed, a dim's own name, else a parameter called `name`."""
        if size.constant is not None:
            return str(size.constant)
        if len(size.terms) == 1 and size.terms[0][1] == 1 and len(size.terms[0][0]) == 1:
            atom = size.terms[0][0][0]
            if isinstance(atom, Symbol):
                return self.symbol(atom)
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
        """Record a call of a helper; return its name."""
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
        if len(position.terms) == 1 and position.terms[0][1] == 1 and len(position.terms[0][0]) == 1:
            atom = position.terms[0][0][0]
            if isinstance(atom, Quotient | Remainder) and position.digest not in kernel.coordinates:
                kernel.coordinates[position.digest] = names[axis] if names else _coordinate_name(shape, axis)


def _coordinate_name(shape: Sequence[Index], axis: int) -> str:
    by_rank = BY_RANK.get(len(shape))
    size = shape[axis]
    if len(size.terms) == 1 and size.terms[0][1] == 1 and len(size.terms[0][0]) == 1:
        atom = size.terms[0][0][0]
        if isinstance(atom, Symbol) and len(atom.name) <= MAX_DIM_NAME and atom.name.lower() != atom.name:
            return atom.name.lower()
    return by_rank[axis] if by_rank else f"i{axis}"
