"""Running reductions in local variables, alone or as a pair of dependent ones in one pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.block import Block
from kernel_lsp.generate.codegen.kernel import KernelWriter
from kernel_lsp.generate.codegen.operators import ATOM, COMPUTE_TYPE, TERNARY, UNARY, Text, literal
from kernel_lsp.generate.fusion.row_patterns import Pair
from kernel_lsp.generate.ir.scalar import Operation, Scalar
from kernel_lsp.generate.ir.tensor import identity_of

WINDOW = "window_argmax"
ORDERS = {"argmax": "improves", "argmin": "improves", WINDOW: "wins_window"}
"""Helper that compares a candidate with the best one before it, by kind of reduction that returns a position."""


@dataclass
class Accumulator:
    """A running reduction in a local variable; one that returns a position keeps the value and its index."""

    kind: str
    name: str
    index_name: str
    dtype: DType
    is_count: bool = False

    @classmethod
    def start(
        cls,
        block: Block,
        wanted: str,
        kind: str,
        dtype: DType,
        result_dtype: DType,
        *,
        is_count: bool = False,
        first: str = "-1",
    ) -> Accumulator:
        """Declare an accumulator, initialized to the identity of its kind. A count of truth values is an `int`; `first`
        is the position that a window returns if none of its values is above the identity."""
        if kind in ORDERS:
            lowest = identity("max", dtype).text if kind == WINDOW else "0"
            name = block.declare("best", COMPUTE_TYPE[dtype], lowest, is_const=False)
            index_name = block.declare(f"{name}_index", "int", first, is_const=False)
            return cls(kind, name, index_name, dtype)
        result_dtype = DType.I32 if is_count else result_dtype
        type_ = COMPUTE_TYPE[result_dtype]
        name = block.declare(wanted, type_, identity(kind, result_dtype).text, is_const=False)
        return cls(kind, name, "", result_dtype, is_count)

    @property
    def returns_position(self) -> bool:
        return bool(self.index_name)

    @property
    def result(self) -> Text:
        """Return the text of the reduction's result."""
        if self.is_count:
            return Text(f"(long long){self.name}", UNARY)
        return Text(self.index_name or self.name, ATOM)

    def add(self, block: Block, value: Text) -> None:
        """Combine one more value."""
        block.line(combined(self.kind, self.name, value, self.dtype, block.kernel))

    def add_candidate(self, block: Block, value: Text, position: Text) -> None:
        """Combine one more candidate of a reduction that returns a position; `position` is its result for this
        candidate. Candidates come by rising position."""
        improves = block.kernel.use(ORDERS[self.kind], self.dtype)
        text = f"-{value.within(UNARY)}" if self.kind == "argmin" else value.text
        if not text.isidentifier():
            text = block.declare("candidate", COMPUTE_TYPE[self.dtype], text)
        index = "" if self.kind == WINDOW else f", {self.index_name}"
        wins = block.declare("wins", "bool", f"{improves}({text}, {self.name}{index})")
        block.line(f"{self.name} = {wins} ? {text} : {self.name};")  # a branch would keep loads from being in flight
        block.line(f"{self.index_name} = {wins} ? {position.within(TERNARY + 1)} : {self.index_name};")


def counted(kind: str, scalar: Scalar, kernel: KernelWriter) -> Scalar | None:
    """Return a summed truth value as i32. None for other reductions, or where 2^31 terms may occur."""
    if kind != "sum" or not isinstance(scalar, Operation) or scalar.name != "cast" or kernel.index_type != "int":
        return None
    is_truth = scalar.dtype == DType.I64 and scalar.operands[0].dtype == DType.BOOL
    return Operation("cast", DType.I32, scalar.operands) if is_truth else None


def identity(kind: str, dtype: DType) -> Text:
    """Return the identity element of a reduction: its result over no elements."""
    return literal(identity_of(kind, dtype).value, dtype)


def combined(kind: str, name: str, value: Text, dtype: DType, kernel: KernelWriter) -> str:
    """Return the statement that adds a value to a running reduction."""
    if dtype == DType.BOOL and kind in ("sum", "any", "max"):
        return f"{name} |= {value.text};"
    if dtype == DType.BOOL:
        return f"{name} &= {value.text};"
    if kind in ("sum", "prod"):
        return f"{name} {'+=' if kind == 'sum' else '*='} {value.text};"
    if kind in ("any", "all"):
        return f"{name} {'|=' if kind == 'any' else '&='} {value.text};"
    names = ("nan_max", "nan_min") if COMPUTE_TYPE[dtype] == "float" else ("maximum", "minimum")
    helper = kernel.use(names[kind != "max"], dtype)
    return f"{name} = {helper}({name}, {value.text});"


def combination_of(kind: str, dtype: DType) -> tuple[str, DType]:
    """Return the name of the helper that combines the results of threads, without its scope."""
    names = {"argmax": "argmax", "argmin": "argmax", "any": "max", "all": "min"}
    base = names.get(kind, kind)
    if dtype == DType.BOOL and base in ("max", "min", "sum", "prod"):
        base = "max" if base in ("max", "sum") else "min"
    return base, dtype


MAX_COMBINED = 4
"""Maximum sums that threads with rows side by side exchange at once: 16 KB of shared memory."""


def combine_columns(block: Block, found: Iterable[object], lanes: int, width: int) -> list[Accumulator]:
    """Combine several sums of f32 over `lanes` threads that are `width` apart at once; return them."""
    sums = [each for each in found if isinstance(each, Accumulator)]
    sums = [each for each in sums if combination_of(each.kind, each.dtype)[0] == "sum" and each.dtype == DType.F32]
    if not 1 < len(sums) <= MAX_COMBINED:
        return []
    array, names = block.names.take("sums"), ", ".join(each.name for each in sums)
    block.line(f"float {array}[{len(sums)}] = {{{names}}};")
    block.line(f"{block.kernel.use('column_sums', DType.F32)}<{lanes}, {width}>({array});")
    for place, each in enumerate(sums):
        block.line(f"{each.name} = {array}[{place}];")
    return sums


@dataclass(frozen=True)
class OnlinePair:
    """Two running values of a thread, and for moments the number of elements that they cover. Of ``exponentials``,
    `first` is the maximum; of ``moments`` it is the mean, relative to the pair's offset."""

    pair: Pair
    first: str
    second: str
    count: str
    values: str

    @classmethod
    def start(cls, block: Block, pair: Pair, first: str, second: str) -> OnlinePair:
        """Declare the running values, initialized for no elements."""
        is_maximum = pair.kind == "exponentials"
        name = block.declare(first, "float", "-CUDART_INF_F" if is_maximum else "0.0f", is_const=False)
        sum_name = block.declare(second, "float", "0.0f", is_const=False)
        count = "" if is_maximum else block.declare("count", "float", "0.0f", is_const=False)
        return cls(pair, name, sum_name, count, block.names.take("values"))

    def begin_pack(self, block: Block, width: int) -> None:
        """Declare the values of one pack."""
        block.line(f"float {self.values}[{width}];")

    def add(self, block: Block, lane: str, text: str) -> None:
        """Record the value of one lane of the pack."""
        block.line(f"{self.values}[{lane}] = {text};")

    def end_pack(self, block: Block) -> None:
        """Combine the pack with the earlier ones."""
        if self.count:
            block.kernel.use("add_moments")
            block.line(f"add_moments({self.values}, {self.count}, {self.first}, {self.second});")
        else:
            name = "add_quick_exponentials" if block.kernel.uses_intrinsics else "add_exponentials"
            helper = block.kernel.use(name, self.pair.first.tensor.dtype)
            block.line(f"{helper}({self.values}, {self.first}, {self.second});")
