"""Scalars and indices as C++ statements.

A `KernelWriter` knows the kernel: its parameters, the helpers it calls, names in use. A `Scope` is a block of
statements within it. Subexpressions that are used more than once, or that are too long to read, become named values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Expression
from kernel_lsp.generate.codegen.helpers import HelperUse
from kernel_lsp.generate.codegen.operators import (
    ADD,
    ATOM,
    COMPUTE_TYPE,
    MULTIPLY,
    TERNARY,
    UNARY,
    Text,
    convert,
    format_operation,
    helper_uses,
    literal,
)
from kernel_lsp.generate.index import (
    Atom,
    Index,
    Indirect,
    Monomial,
    Quotient,
    Remainder,
    Symbol,
    Variable,
    as_index,
    atom_index,
    is_nonnegative,
    ravel,
    to_expression,
)
from kernel_lsp.generate.names import NamePool
from kernel_lsp.generate.scalar import (
    Access,
    Argument,
    Constant,
    IndexValue,
    Loop,
    Operation,
    Scalar,
    children,
    indirect_scalars,
    nodes,
)
from kernel_lsp.generate.tensor import Tensor

MAX_EXPRESSION_CHARACTERS = 80
"""An expression longer than this is named, so that lines stay readable."""
MAX_UNNAMED_OPERAND = 30
"""An operand longer than this gets a name when its line is too long."""
MAX_INDEX_CHARACTERS = 56
"""An index longer than this gets a name."""
INDENT = "    "
VALUE_NAMES = {
    "exp": "e",
    "mul": "product",
    "add": "total",
    "sub": "difference",
    "div": "ratio",
    "select": "chosen",
    "rsqrt": "scale",
    "sqrt": "root",
    "sigmoid": "gate",
    "logical_and": "inside",
    "lt": "is_below",
    "ge": "is_above",
    "cast": "converted",
}
"""What an intermediate value is called where no variable of the user's stands for it."""


@dataclass(frozen=True)
class KernelParameterText:
    """One parameter: its declaration, the comment beside it, and the plan's argument."""

    declaration: str
    comment: str
    argument: str | Expression


@dataclass
class KernelWriter:
    """One kernel in the making. `tensor_names` are the plan's names of the tensors in memory; `hints` name scalars."""

    name: str
    tensor_names: Mapping[Tensor, str]
    hints: Mapping[bytes, str]
    reserved: frozenset[str] = frozenset()
    index_type: Literal["int", "long long"] = "int"
    coordinates: dict[bytes, str] = field(default_factory=dict)
    helpers: set[HelperUse] = field(default_factory=set)
    reads: dict[Tensor, str] = field(default_factory=dict)
    writes: dict[Tensor, str] = field(default_factory=dict)
    symbols: dict[Symbol, str] = field(default_factory=dict)
    sizes: dict[bytes, tuple[str, Index]] = field(default_factory=dict)
    names: NamePool = field(default_factory=NamePool)

    def __post_init__(self) -> None:
        pool = NamePool(set(self.reserved))
        self._local_names = {tensor: pool.take(name) for tensor, name in self.tensor_names.items()}
        self.names = pool

    def local_name(self, tensor: Tensor) -> str:
        """What the kernel calls the tensor: the plan's name, unless that means something else in C++."""
        return self._local_names[tensor]

    def is_parameter(self, name: str) -> bool:
        return name in self._local_names.values()

    def pointer(self, tensor: Tensor) -> str:
        """The parameter that reads the tensor."""
        return self.reads.setdefault(tensor, self._local_names[tensor])

    def target(self, tensor: Tensor) -> str:
        """The parameter that writes the tensor."""
        return self.writes.setdefault(tensor, self._local_names[tensor])

    def symbol(self, symbol: Symbol) -> str:
        """The parameter that holds a size."""
        return self.symbols.setdefault(symbol, symbol.name)

    def size(self, name: str, size: Index) -> str:
        """A size as C++: a literal when fixed, a dim's own name, else a parameter called `name`."""
        if size.constant is not None:
            return str(size.constant)
        if len(size.terms) == 1 and size.terms[0][1] == 1 and len(size.terms[0][0]) == 1:
            atom = size.terms[0][0][0]
            if isinstance(atom, Symbol):
                return self.symbol(atom)
        if size.digest not in self.sizes:
            self.sizes[size.digest] = (self.names.take(name), size)
        return self.sizes[size.digest][0]

    def use(self, name: str, dtype: DType | None = None) -> str:
        """Note that the kernel calls a helper; its name."""
        self.helpers.add(HelperUse(name, COMPUTE_TYPE[dtype] if dtype else ""))
        return name

    def parameters(self) -> list[KernelParameterText]:
        """In the order: tensors read, tensors written, sizes."""
        found = []
        for tensor, name in self.reads.items():
            if tensor not in self.writes:
                declaration = f"const {tensor.dtype.cuda_type}* __restrict__ {name}"
                found.append(KernelParameterText(declaration, shape_text(tensor), self.tensor_names[tensor]))
        for tensor, name in self.writes.items():
            declaration = f"{tensor.dtype.cuda_type}* __restrict__ {name}"
            found.append(KernelParameterText(declaration, shape_text(tensor), self.tensor_names[tensor]))
        for name, size in self.sizes.values():
            expression = to_expression(size)
            found.append(KernelParameterText(f"{self.index_type} {name}", str(expression), expression))
        for symbol, name in sorted(self.symbols.items(), key=lambda entry: entry[1]):
            expression = to_expression(as_index(symbol))
            comment = "" if symbol.definition is None else str(expression)
            found.append(KernelParameterText(f"{self.index_type} {name}", comment, expression))
        return found


def shape_text(tensor: Tensor) -> str:
    """``(B, T, 4096)``; ``()`` for a scalar."""
    return f"({', '.join(str(to_expression(size)) for size in tensor.shape)})"


class Scope:
    """A block of statements."""

    def __init__(self, kernel: KernelWriter, parent: Scope | None = None, depth: int = 1) -> None:
        self.kernel, self.parent, self.depth = kernel, parent, depth
        self.lines: list[str] = parent.lines if parent else []
        self.named: dict[bytes, Text] = {}
        self.variables: dict[Variable, Text] = {}
        self.names: NamePool = parent.names.child() if parent else kernel.names

    # --- statements

    def line(self, text: str = "") -> None:
        self.lines.append(f"{INDENT * self.depth}{text}" if text else "")

    def open(self, header: str) -> Scope:
        """A nested block behind `header`; close it with `close`."""
        self.line(f"{header} {{")
        return Scope(self.kernel, self, self.depth + 1)

    def close(self) -> None:
        """The end of this block."""
        self.lines.append(f"{INDENT * (self.depth - 1)}}}")

    def declare(self, wanted: str, type_: str, text: str, *, is_const: bool = True) -> str:
        """A named value; the name it got."""
        name = self.names.take(wanted)
        self.line(f"{'const ' if is_const else ''}{type_} {name} = {text};")
        return name

    def define(self, variable: Variable, text: str | Text) -> None:
        """What an index variable is called from here on."""
        self.variables[variable] = text if isinstance(text, Text) else Text(text, ATOM)

    def bind(self, scalar: Scalar, text: str | Text) -> None:
        """What a scalar is called from here on."""
        self.named[scalar.digest] = text if isinstance(text, Text) else Text(text, ATOM)

    # --- look-up

    def lookup(self, digest: bytes) -> Text | None:
        scope: Scope | None = self
        while scope is not None:
            if digest in scope.named:
                return scope.named[digest]
            scope = scope.parent
        return None

    def variable_text(self, variable: Variable) -> Text:
        scope: Scope | None = self
        while scope is not None:
            if variable in scope.variables:
                return scope.variables[variable]
            scope = scope.parent
        raise KeyError(f"the index variable {variable.name} has no value in {self.kernel.name}")

    def knows(self, variables: Iterable[Variable]) -> bool:
        """Whether every variable has a value here."""
        known: set[Variable] = set()
        scope: Scope | None = self
        while scope is not None:
            known |= scope.variables.keys()
            scope = scope.parent
        return all(variable in known for variable in variables)

    # --- values

    def values(self, roots: Sequence[Scalar]) -> list[Text]:
        """The scalars as expressions; what they share is declared first."""
        emission = _Emission(self, roots)
        return [emission.text(root) for root in roots]

    def value(self, root: Scalar) -> Text:
        return self.values([root])[0]

    def hoist(self, roots: Sequence[Scalar], inner: Iterable[Variable]) -> None:
        """Declare here whatever the scalars need that does not depend on the variables of an inner block."""
        varying = frozenset(inner)
        invariant = list(_invariant_parts(roots, varying, self))
        if invariant:
            emission = _Emission(self, invariant)
            for scalar in invariant:
                emission.declare(scalar)
        self._declare_coordinates(roots)

    def _declare_coordinates(self, roots: Sequence[Scalar]) -> None:
        _Emission(self, roots, counts_only=True)

    def index(self, index: Index) -> Text:
        """An index as an integer expression."""
        return _index_text(index, self, None)

    def offset(self, tensor: Tensor, index: Sequence[Index]) -> Text:
        """The position of an element in its tensor's memory."""
        return self.index(ravel(index, tensor.shape))


# --- below: emission of one set of scalars


class _Emission:
    """Declares shared subexpressions of some roots in a scope, in the order they are needed."""

    def __init__(self, scope: Scope, roots: Sequence[Scalar], *, counts_only: bool = False) -> None:
        self.scope, self.kernel = scope, scope.kernel
        self._assumed: Scalar | None = None
        self._pinned: frozenset[bytes] = frozenset()
        self.counts = _use_counts(roots, scope)
        self._declare_shared_atoms(roots)

    def text(self, node: Scalar) -> Text:
        """The expression for a node, declared first where that is due."""
        known = self.scope.lookup(node.digest)
        if known is not None:
            return known
        text = self._format(node)
        if self._deserves_name(node, text):
            return self._declare(node, text)
        return text

    def declare(self, node: Scalar) -> Text:
        known = self.scope.lookup(node.digest)
        return known if known is not None else self._declare(node, self._format(node))

    def _declare(self, node: Scalar, text: Text) -> Text:
        known = self.scope.lookup(node.digest)
        if known is not None:  # a loop names its own result
            return known
        name = self.scope.declare(self._name_for(node), COMPUTE_TYPE[node.dtype], text.text)
        self.scope.bind(node, name)
        return Text(name, ATOM)

    def _deserves_name(self, node: Scalar, text: Text) -> bool:
        if isinstance(node, Constant | Argument) or node.digest in self._pinned:
            return False
        if isinstance(node, IndexValue):
            return self.counts[node.digest] > 1 and len(text.text) > 12
        return self.counts[node.digest] > 1 or len(text.text) > MAX_EXPRESSION_CHARACTERS

    def _name_for(self, node: Scalar) -> str:
        hint = self.kernel.hints.get(node.digest)
        if hint is not None:
            return f"{hint}_value" if self.kernel.is_parameter(hint) else hint
        if isinstance(node, Access):
            return f"{self.kernel.local_name(node.tensor)}_value"
        if isinstance(node, Operation) and node.name == "cast" and isinstance(node.operands[0], Access):
            return self._name_for(node.operands[0])
        if isinstance(node, Loop):
            return LOOP_RESULT_NAMES.get(node.kind, "value")
        return VALUE_NAMES.get(node.name, f"{node.name}_value") if isinstance(node, Operation) else "value"

    def _format(self, node: Scalar) -> Text:
        match node:
            case Constant(value=value):
                return literal(value, node.dtype)
            case IndexValue(index=index):
                return _wide_index_text(index, self.scope, self)
            case Access():
                return self._format_access(node)
            case Loop():
                return self._format_loop(node)
            case Operation():
                return self._format_operation(node)
        raise KeyError(f"{type(node).__name__} {getattr(node, 'name', '')} has no text in {self.kernel.name}")

    def _format_operation(self, node: Operation) -> Text:
        types = [operand.dtype for operand in node.operands]
        if node.name == "select":
            merged = self._merged_select(node)
            if merged is not None:
                return merged
        if node.name in ("lt", "le", "gt", "ge", "eq", "ne") and all(_is_plain_index(entry) for entry in node.operands):
            operands = [self._plain_index(operand) for operand in node.operands]
        else:
            operands = [self.text(operand) for operand in node.operands]
        operands = self._shortened(node, operands)
        operand_type = types[0] if node.dtype == DType.BOOL else node.dtype
        self.kernel.helpers.update(helper_uses(node.name, operand_type))
        return format_operation(node.name, node.dtype, operands, types)

    def _shortened(self, node: Operation, operands: list[Text]) -> list[Text]:
        """The operands, the longest of them named where together they would make too long a line."""
        operands = list(operands)
        for position in sorted(range(len(operands)), key=lambda entry: -len(operands[entry].text)):
            total = sum(len(operand.text) for operand in operands)
            text, operand = operands[position], node.operands[position]
            is_long = total > MAX_EXPRESSION_CHARACTERS and len(text.text) > MAX_UNNAMED_OPERAND
            if is_long and _can_be_named(operand) and operand.digest not in self._pinned:
                operands[position] = self._declare(operand, text)
        return operands

    def _plain_index(self, operand: Scalar) -> Text:
        if isinstance(operand, IndexValue):
            return _index_text(operand.index, self.scope, self)
        return self.text(operand)

    def _merged_select(self, node: Operation) -> Text | None:
        """``inside ? f(x[i]) : other`` for reads that are masked by the very condition: C++ makes them only where it
        holds, as long as nothing on the way to them is declared before."""
        condition, if_true, if_false = node.operands
        guarded = _guarded_nodes(if_true, condition)
        if not guarded or self._pinned or any(not self._is_used_once(entry) for entry in guarded):
            return None
        chosen = self.text(condition)
        self._pinned = frozenset(entry.digest for entry in guarded)
        self._assumed = condition
        text = self.text(if_true)
        self._pinned, self._assumed = frozenset(), None
        return Text(
            f"{chosen.within(TERNARY + 1)} ? {text.within(TERNARY + 1)} : {self.text(if_false).within(TERNARY)}",
            TERNARY,
        )

    def _is_used_once(self, node: Scalar) -> bool:
        return self.counts[node.digest] <= 1 and self.scope.lookup(node.digest) is None

    def _format_access(self, node: Access) -> Text:
        text = self._memory(node)
        if node.mask is None or node.mask == self._assumed:
            return text
        zero = literal(0, node.dtype).text
        return Text(f"{self.text(node.mask).within(TERNARY + 1)} ? {text.text} : {zero}", TERNARY)

    def _memory(self, node: Access) -> Text:
        pointer = self.kernel.pointer(node.tensor)
        flat = ravel(node.index, node.tensor.shape)
        offset = _index_text(flat, self.scope, self)
        if len(offset.text) > MAX_INDEX_CHARACTERS and not any(True for _ in indirect_scalars(flat)):
            offset = Text(self.scope.declare(f"{pointer}_at", self.kernel.index_type, offset.text), ATOM)
            self.scope.named[flat.digest] = offset
        return loaded(f"{pointer}[{offset.text}]", node.dtype)

    def _format_loop(self, node: Loop) -> Text:
        outer = self.scope
        outer.hoist(node.operands, node.loop_variables)
        accumulator = Accumulator.start(outer, self._name_for(node), node.kind, node.operands[0].dtype, node.dtype)
        block = outer
        for variable in node.loop_variables:
            if variable.extent.constant == 1:
                continue
            name = block.names.take(variable.name)
            extent = block.index(variable.extent).text
            block = block.open(f"for (int {name} = 0; {name} < {extent}; ++{name})")
            block.define(variable, name)
        position = ravel([as_index(v) for v in node.loop_variables], [v.extent for v in node.loop_variables])
        accumulator.add(block, node.operands[0], node.operands[1] if len(node.operands) > 1 else position)
        while block is not outer:
            block.close()
            block = block.parent  # type: ignore[assignment]
        result = accumulator.result
        outer.bind(node, result)
        return result

    def _declare_shared_atoms(self, roots: Sequence[Scalar]) -> None:
        """Quotients and remainders that occur more than once, or that are coordinates with a name."""
        counted: Counter[Atom] = Counter()
        for node in nodes(*roots):
            if self.scope.lookup(node.digest) is None or node in roots:
                for index in _indices_of(node):
                    _count_atoms(index, counted)
        self._declare_shared_dividends(counted)
        for atom in sorted(counted, key=_nesting):
            is_named = atom_index(atom).digest in self.kernel.coordinates
            if (is_named or counted[atom] > 1) and self._can_declare(atom):
                _declare_atom(atom, self.scope, self)

    def _declare_shared_dividends(self, counted: Counter[Atom]) -> None:
        """A sum that several divisions divide."""
        dividends: Counter[Index] = Counter()
        for atom in counted:
            if isinstance(atom, Quotient | Remainder) and len(atom.dividend.terms) > 1 and self._can_declare(atom):
                dividends[atom.dividend] += 1
        for dividend in sorted(dividends, key=lambda index: index.digest):
            is_known = self.scope.lookup(dividend.digest) is not None
            if dividends[dividend] > 1 and not is_known:
                text = _index_text(dividend, self.scope, self)
                name = self.scope.declare("position", self.kernel.index_type, text.text)
                self.scope.named[dividend.digest] = Text(name, ATOM)

    def _can_declare(self, atom: Atom) -> bool:
        has_scalars = isinstance(atom, Quotient | Remainder) and _mentions_scalar(atom)
        return (
            not has_scalars and self.scope.lookup(atom_index(atom).digest) is None and self.scope.knows(atom.variables)
        )


ORDERS = {"argmax": "comes_before", "argmin": "comes_before", "window_argmax": "wins_window"}
"""Kinds of reduction that return a position, and the helper that says which of two is returned."""
LOOP_RESULT_NAMES = {"sum": "sum", "prod": "product", "max": "largest", "min": "smallest"}


@dataclass
class Accumulator:
    """A running reduction in a local variable; one that returns a position keeps the value and its index."""

    kind: str
    name: str
    index_name: str
    dtype: DType
    result_dtype: DType

    @classmethod
    def start(cls, scope: Scope, wanted: str, kind: str, dtype: DType, result_dtype: DType) -> Accumulator:
        """Declared with the identity of its kind."""
        if kind in ORDERS:
            name = scope.declare("best", COMPUTE_TYPE[dtype], "0", is_const=False)
            index_name = scope.declare(f"{name}_index", "int", "-1", is_const=False)
            return cls(kind, name, index_name, dtype, result_dtype)
        type_ = COMPUTE_TYPE[result_dtype]
        name = scope.declare(wanted, type_, identity(kind, result_dtype).text, is_const=False)
        return cls(kind, name, "", result_dtype, result_dtype)

    @property
    def result(self) -> Text:
        return Text(self.index_name, ATOM) if self.index_name else Text(self.name, ATOM)

    def add(self, scope: Scope, scalar: Scalar, position: Index | Scalar) -> None:
        """Combine one more value. `position` is what argmax returns for it."""
        text = scope.value(scalar)
        if self.index_name:
            self._add_candidate(scope, text, position)
        else:
            scope.line(combined(self.kind, self.name, text, self.dtype, scope.kernel))

    def _add_candidate(self, scope: Scope, text: Text, position: Index | Scalar) -> None:
        comes_before = ORDERS[self.kind]
        scope.kernel.use(comes_before, self.dtype)
        where = scope.value(position).text if isinstance(position, Scalar) else scope.index(position).text
        value = f"-{text.within(UNARY)}" if self.kind == "argmin" else text.text
        if not value.isidentifier():
            value = scope.declare("candidate", COMPUTE_TYPE[self.dtype], value)
        inner = scope.open(f"if ({comes_before}({value}, {where}, {self.name}, {self.index_name}))")
        inner.line(f"{self.name} = {value};")
        inner.line(f"{self.index_name} = {where};")
        inner.close()


def identity(kind: str, dtype: DType) -> Text:
    """What a reduction of no elements is."""
    if kind in ("max", "min"):
        return _extreme_identity(kind, dtype)
    return literal({"sum": 0, "prod": 1, "any": False, "all": True}[kind], dtype)


def combined(kind: str, name: str, value: Text, dtype: DType, kernel: KernelWriter) -> str:
    """The statement that adds a value to a running reduction."""
    if dtype == DType.BOOL and kind in ("sum", "any", "max"):
        return f"{name} |= {value.text};"
    if dtype == DType.BOOL:
        return f"{name} &= {value.text};"
    if kind in ("sum", "prod"):
        return f"{name} {'+=' if kind == 'sum' else '*='} {value.text};"
    if kind in ("any", "all"):
        return f"{name} {'|=' if kind == 'any' else '&='} {value.text};"
    helper = kernel.use("maximum" if kind == "max" else "minimum", dtype)
    return f"{name} = {helper}({name}, {value.text});"


def loaded(memory: str, dtype: DType) -> Text:
    """A value read from memory, in its compute type."""
    if dtype in (DType.F16, DType.BF16):
        return Text(f"float({memory})", ATOM)
    return Text(memory, ATOM)


def stored(text: Text, source: DType, target: DType) -> str:
    """A value as it is written to memory of type `target`."""
    if target == DType.F16:
        return f"__float2half({convert(text, source, DType.F32).text})"
    if target == DType.BF16:
        return f"__float2bfloat16({convert(text, source, DType.F32).text})"
    return convert(text, source, target).text if source != target else text.text


def _extreme_identity(kind: str, dtype: DType) -> Text:
    sign = -1 if kind == "max" else 1
    if dtype.is_floating:
        return literal(sign * float("inf"), dtype)
    bits = {DType.I64: 63, DType.I32: 31, DType.I16: 15, DType.I8: 7, DType.U8: 8, DType.BOOL: 1}[dtype]
    if dtype in (DType.U8, DType.BOOL):
        return literal(0 if kind == "max" else (1 << bits) - 1, dtype)
    return literal(-(1 << bits) if kind == "max" else (1 << bits) - 1, dtype)


def _use_counts(roots: Sequence[Scalar], scope: Scope) -> Counter[bytes]:
    """How often each node is an operand below the roots; what has a name already is not looked into."""
    counts: Counter[bytes] = Counter()
    pending = list(roots)
    for root in roots:
        counts[root.digest] += 1
    seen: set[bytes] = set()
    while pending:
        node = pending.pop()
        if node.digest in seen or scope.lookup(node.digest) is not None:
            continue
        seen.add(node.digest)
        if isinstance(node, Loop):
            continue  # its body is a block of its own
        for child in children(node):
            counts[child.digest] += 1
            pending.append(child)
    return counts


def _guarded_nodes(root: Scalar, condition: Scalar) -> list[Scalar]:
    """The nodes that lead from `root` to reads under just this mask; none when one of them is a loop or an index."""
    found: dict[bytes, bool] = {}
    guarded: list[Scalar] = []

    def leads(node: Scalar) -> bool:
        if node.digest not in found:
            below = [leads(child) for child in children(node)]
            found[node.digest] = any(below) or (isinstance(node, Access) and node.mask == condition)
            if found[node.digest]:
                guarded.append(node)
        return found[node.digest]

    leads(root)
    return [] if any(isinstance(node, Loop) for node in guarded) else guarded


def _invariant_parts(roots: Sequence[Scalar], varying: frozenset[Variable], scope: Scope) -> Iterable[Scalar]:
    """The largest subexpressions worth naming that do not depend on `varying`."""
    seen: set[bytes] = set()
    pending = list(reversed(roots))
    while pending:
        node = pending.pop()
        if node.digest in seen or scope.lookup(node.digest) is not None:
            continue
        seen.add(node.digest)
        if node.variables.isdisjoint(varying):
            if _is_worth_hoisting(node) and scope.knows(node.variables) and _has_all_values(node, scope):
                yield node
                continue
            if isinstance(node, Constant | IndexValue | Argument):
                continue
        pending.extend(reversed(children(node)))


def _has_all_values(node: Scalar, scope: Scope) -> bool:
    """Whether every reduction result below the node is known."""
    return all(
        scope.lookup(entry.digest) is not None or entry.tensor in scope.kernel.tensor_names
        for entry in nodes(node)
        if isinstance(entry, Access)
    ) and all(scope.lookup(entry.digest) is not None for entry in nodes(node) if isinstance(entry, Argument))


def _is_worth_hoisting(node: Scalar) -> bool:
    if isinstance(node, Operation) and node.name == "cast":
        return _is_worth_hoisting(node.operands[0])
    return isinstance(node, Access | Operation | Loop)


def _can_be_named(scalar: Scalar) -> bool:
    return isinstance(scalar, Access | Operation | Loop)


def _is_plain_index(scalar: Scalar) -> bool:
    return isinstance(scalar, IndexValue) or (isinstance(scalar, Constant) and scalar.dtype == DType.I64)


def _indices_of(node: Scalar) -> list[Index]:
    if isinstance(node, Access):
        return [ravel(node.index, node.tensor.shape)]
    return [node.index] if isinstance(node, IndexValue) else []


def _count_atoms(index: Index, counted: Counter[Atom]) -> None:
    for monomial, _ in index.terms:
        for atom in monomial:
            if isinstance(atom, Quotient | Remainder):
                counted[atom] += 1
                if counted[atom] == 1:
                    _count_atoms(atom.dividend, counted)


def _nesting(atom: Atom) -> tuple[int, bytes]:
    depth = 0
    while isinstance(atom, Quotient | Remainder):
        inner = [a for monomial, _ in atom.dividend.terms for a in monomial if isinstance(a, Quotient | Remainder)]
        depth += 1
        if not inner:
            break
        atom = inner[0]
    return depth, atom.digest


def _mentions_scalar(atom: Quotient | Remainder) -> bool:
    return any(
        isinstance(inner, Indirect) or (isinstance(inner, Quotient | Remainder) and _mentions_scalar(inner))
        for monomial, _ in (*atom.dividend.terms, *atom.divisor.terms)
        for inner in monomial
    )


def _declare_atom(atom: Atom, scope: Scope, emission: _Emission) -> None:
    index = atom_index(atom)
    text = _division_text(atom, scope, emission)
    name = scope.kernel.coordinates.get(index.digest) or _atom_name(atom)
    declared = scope.declare(name, scope.kernel.index_type, text.text)
    scope.named[index.digest] = Text(declared, ATOM)


def _atom_name(atom: Atom) -> str:
    variable = min((v.name for v in atom.variables), default="size")
    return f"{variable}_{'block' if isinstance(atom, Quotient) else 'within'}"


# --- below: indices


def _wide_index_text(index: Index, scope: Scope, emission: _Emission) -> Text:
    """An index as a 64-bit value: products are made in 64 bits."""
    is_simple = all(len(monomial) <= 1 and abs(factor) == 1 for monomial, factor in index.terms if monomial)
    text = _index_text(index, scope, emission)
    if is_simple or scope.kernel.index_type == "long long":
        return text
    terms = [f"(long long){_monomial_text(m, f, scope, emission).within(UNARY)}" for m, f in index.terms if m]
    if len(terms) == 1 and index.terms[-1][0]:
        return _wide_product(index.terms[0][0], index.terms[0][1], scope, emission)
    wide = [_wide_product(m, f, scope, emission).text for m, f in index.terms]
    return Text(" + ".join(wide), ADD)


def _wide_product(monomial: Monomial, factor: int, scope: Scope, emission: _Emission) -> Text:
    text = _monomial_text(monomial, factor, scope, emission)
    return Text(f"(long long){text.text}", text.precedence) if monomial else text


def _index_text(index: Index, scope: Scope, emission: _Emission | None) -> Text:
    known = scope.lookup(index.digest)
    if known is not None:
        return known
    if not index.terms:
        return Text("0", ATOM)
    return _horner(list(index.terms), scope, emission)


def _horner(terms: list[tuple[Monomial, int]], scope: Scope, emission: _Emission | None) -> Text:
    """``(n * C + c) * H + h`` rather than ``n * C * H + c * H + h``."""
    if len(terms) == 1:
        return _monomial_text(*terms[0], scope, emission)
    known = scope.lookup(Index(dict(terms)).digest)
    if known is not None:
        return known
    head, last = terms[:-1], terms[-1]
    shared = _shared_size(head)
    if shared is not None and len(head) > 1:
        divided = [_divided(term, shared) for term in head]
        inner = _horner(divided, scope, emission)
        factor = _monomial_text(shared[0], shared[1], scope, emission)
        left = Text(f"{inner.within(MULTIPLY)} * {factor.within(UNARY)}", MULTIPLY)
    else:
        left = _horner(head, scope, emission)
    return _plus(left, last, scope, emission)


def _plus(left: Text, term: tuple[Monomial, int], scope: Scope, emission: _Emission | None) -> Text:
    monomial, factor = term
    right = _monomial_text(monomial, abs(factor), scope, emission)
    return Text(f"{left.within(ADD)} {'+' if factor > 0 else '-'} {right.within(MULTIPLY)}", ADD)


def _shared_size(terms: list[tuple[Monomial, int]]) -> tuple[Monomial, int] | None:
    """The sizes and the constant that all terms are multiples of."""
    from math import gcd

    factor = gcd(*(value for _, value in terms))
    symbols = [atom for atom in terms[0][0] if isinstance(atom, Symbol)]
    shared: list[Atom] = []
    rests = [list(monomial) for monomial, _ in terms]
    for symbol in symbols:
        if all(symbol in rest for rest in rests):
            shared.append(symbol)
            for rest in rests:
                rest.remove(symbol)
    return (tuple(shared), factor) if shared or factor > 1 else None


def _divided(term: tuple[Monomial, int], shared: tuple[Monomial, int]) -> tuple[Monomial, int]:
    rest = list(term[0])
    for atom in shared[0]:
        rest.remove(atom)
    return tuple(rest), term[1] // shared[1]


def _monomial_text(monomial: Monomial, factor: int, scope: Scope, emission: _Emission | None) -> Text:
    if not monomial:
        return Text(str(factor), ATOM if factor >= 0 else UNARY)
    texts = [_atom_text(atom, scope, emission) for atom in monomial]
    if abs(factor) == 1 and len(texts) == 1:
        return texts[0] if factor > 0 else Text(f"-{texts[0].within(UNARY)}", UNARY)
    first = texts[0].within(MULTIPLY)
    parts = [first, *(text.within(UNARY) for text in texts[1:])]
    if abs(factor) != 1:
        parts.append(str(abs(factor)))
    joined = " * ".join(parts)
    return Text(joined if factor > 0 else f"-{joined}", MULTIPLY)


def _atom_text(atom: Atom, scope: Scope, emission: _Emission | None) -> Text:
    known = scope.lookup(atom_index(atom).digest)
    if known is not None:
        return known
    match atom:
        case Variable():
            return scope.variable_text(atom)
        case Symbol():
            return Text(scope.kernel.symbol(atom), ATOM)
        case Quotient() | Remainder():
            return _division_text(atom, scope, emission)
        case Indirect():
            return emission.text(atom.scalar) if emission else scope.value(atom.scalar)
    raise KeyError(f"no text for {type(atom).__name__}")


def _division_text(atom: Atom, scope: Scope, emission: _Emission | None) -> Text:
    assert isinstance(atom, Quotient | Remainder)
    dividend = _index_text(atom.dividend, scope, emission)
    divisor = _index_text(atom.divisor, scope, emission)
    is_quotient = isinstance(atom, Quotient)
    if not is_nonnegative(atom.dividend):
        name = scope.kernel.use("floor_div" if is_quotient else "floor_mod")
        return Text(f"{name}({dividend.text}, {divisor.text})", ATOM)
    symbol = "/" if is_quotient else "%"
    return Text(f"{dividend.within(MULTIPLY)} {symbol} {divisor.within(UNARY)}", MULTIPLY)
