"""Print scalars and indices as C++ statements. Subexpressions that are used more than once, or too long to read, become
named values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.accumulator import WINDOW, Accumulator
from kernel_lsp.generate.codegen.block import Block
from kernel_lsp.generate.codegen.divisions import declare_divisions, declare_lane_divisions, inverse_for_bytes
from kernel_lsp.generate.codegen.index_text import IndexWriter
from kernel_lsp.generate.codegen.operators import (
    ATOM,
    COMPUTE_TYPE,
    INTRINSIC_HELPERS,
    QUICK_HELPERS,
    TERNARY,
    Text,
    format_operation,
    helper_uses,
    literal,
    loaded,
)
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.scalar import (
    Access,
    Argument,
    CallerNumber,
    Constant,
    IndexValue,
    Loop,
    Operation,
    Scalar,
    accesses,
    children,
    indirect_scalars,
    nodes,
    unconverted,
)
from kernel_lsp.generate.ir.sizes import ravel
from kernel_lsp.generate.ir.tensor import Tensor

MAX_EXPRESSION_CHARACTERS = 80
"""Maximum characters of an expression without a name, so that lines stay readable."""
MAX_UNROLLED = 16
"""Maximum iterations of a thread's loop to unroll, so that values read twice stay in registers."""
MAX_UNNAMED_OPERAND = 30
"""Maximum characters of an unnamed operand in a line that is too long."""
MAX_INDEX_CHARACTERS = 56
"""Maximum characters of an index without a name."""
ROUNDING = ("add", "sub", "mul", "div", "sqrt", "exp")
"""Operations that round: PyTorch rounds their results to 16 bits before it goes on."""
MIN_DIVISOR = 2.0**-100
"""Minimum magnitude of a number whose inverse multiplies in place of a division."""
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
"""Names of intermediate values by operation, used where no variable of the user's code names the value."""
LOOP_RESULT_NAMES = {"sum": "sum", "prod": "product", "max": "largest", "min": "smallest"}


class Scope(Block):
    """A block that can print the values of scalars and indices."""

    def values(self, roots: Sequence[Scalar]) -> list[Text]:
        """Return the scalars as expressions. Shared subexpressions are declared first."""
        emission = _Emission(self, roots)
        return [emission.text(root) for root in roots]

    def value(self, root: Scalar) -> Text:
        """Return one scalar as an expression."""
        return self.values([root])[0]

    def hoist(self, roots: Sequence[Scalar], inner: Iterable[Variable]) -> None:
        """Declare in this block the subexpressions of scalars that do not depend on an inner block's variables."""
        invariant = list(_invariant_parts(roots, frozenset(inner), self))
        if invariant:
            emission = _Emission(self, invariant)
            for scalar in invariant:
                emission.declare(scalar)
        _declare_divisions(self, roots, IndexWriter(self, self.value))

    def hoist_lanes(self, roots: Sequence[Scalar], lane: Variable) -> dict[bytes, Text]:
        """Declare in this block the divisions that the lanes of a pack share; return their names in each lane."""
        indices = (index for node in nodes(*roots) if self.lookup(node.digest) is None for index in _indices_of(node))
        return declare_lane_divisions(indices, lane, IndexWriter(self, self.value))

    def index(self, index: Index) -> Text:
        """Return an index as an integer expression."""
        return IndexWriter(self, self.value).text(index)

    def offset(self, tensor: Tensor, index: Sequence[Index]) -> Text:
        """Return the position of an element in its tensor's memory."""
        return self.index(ravel(index, tensor.shape))


class _Emission:
    """Declares shared subexpressions of some roots in a scope, in order of dependence."""

    def __init__(self, scope: Scope, roots: Sequence[Scalar]) -> None:
        self.scope, self.kernel = scope, scope.kernel
        self._indices = IndexWriter(scope, self.text)
        self._assumed: Scalar | None = None
        self._pinned: frozenset[bytes] = frozenset()
        self.counts = _use_counts(roots, scope)
        self._window_places = {
            (node.operands[0].digest, node.loop_variables): node
            for node in nodes(*roots)
            if isinstance(node, Loop) and node.kind == WINDOW
        }
        _declare_divisions(scope, roots, self._indices)

    def text(self, node: Scalar) -> Text:
        """Return the expression of a node, after declaring it where necessary."""
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
        if isinstance(node, Constant | Argument | CallerNumber) or node.digest in self._pinned:
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
        source = node.operands[0] if isinstance(node, Operation) and node.name == "cast" else None
        if isinstance(source, Access) and self.kernel.is_in_memory(source.tensor):
            return self._name_for(source)
        if isinstance(node, Loop):
            return LOOP_RESULT_NAMES.get(node.kind, "value")
        return VALUE_NAMES.get(node.name, f"{node.name}_value") if isinstance(node, Operation) else "value"

    def _format(self, node: Scalar) -> Text:
        match node:
            case Constant(value=value):
                return literal(value, node.dtype)
            case CallerNumber():
                return Text(self.kernel.number(node.expression, node.dtype), ATOM)
            case IndexValue(index=index):
                return self._indices.wide_text(index)
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
        if (inverse := inverse_for_bytes(node)) is not None:
            factor = literal(inverse, node.dtype).text
            arguments = ", ".join([*(operand.text for operand in operands), factor])
            return Text(f"{self.kernel.use('byte_quotient')}({arguments})", ATOM)
        if (helper := self._quick_helper(node)) is not None:
            return self._format_quickly(node, operands, helper)
        self.kernel.helpers.update(helper_uses(node.name, operand_type))
        return format_operation(node.name, node.dtype, operands, types, uses_intrinsics=self.kernel.uses_intrinsics)

    def _quick_helper(self, node: Operation) -> str | None:
        """Return the helper that is exact enough for a kernel of 16 bits; None where there is none."""
        if COMPUTE_TYPE[node.dtype] != "float":
            return None
        quick = QUICK_HELPERS.get(node.name)
        if quick and self._may_be_quick(node):
            return quick
        return INTRINSIC_HELPERS.get(node.name) if self.kernel.uses_intrinsics else None

    def _may_be_quick(self, node: Operation) -> bool:
        """Return True if a kernel whose narrow elements have a type may err by 2 ulp of f32 in this quotient or root.
        A mean may not: its sum may be exact, and it is found once for many elements. One of f16 elements alone may not:
        rounded once, it must be correct, and lies closer to halves of f16."""
        if self.kernel.quick_type is None or _is_mean(node):
            return False
        is_alone = not any(map(_is_rounded, node.operands))
        return not is_alone or self.kernel.in_gradients or self.kernel.quick_type is DType.BF16

    def _format_quickly(self, node: Operation, operands: list[Text], helper: str) -> Text:
        """Return a call of the helper; a quotient by a number is a product."""
        divisor = node.operands[-1]
        if node.name == "div" and isinstance(divisor, Constant) and MIN_DIVISOR < abs(divisor.value) < 1 / MIN_DIVISOR:
            factor = literal(1 / divisor.value, node.dtype)
            return format_operation("mul", node.dtype, [operands[0], factor], [node.dtype, node.dtype])
        self.kernel.use(helper)
        return Text(f"{helper}({', '.join(operand.text for operand in operands)})", ATOM)

    def _shortened(self, node: Operation, operands: list[Text]) -> list[Text]:
        """Return the operands, the longest of them named where the line would be too long."""
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
            return self._indices.text(operand.index)
        return self.text(operand)

    def _merged_select(self, node: Operation) -> Text | None:
        """Print ``inside ? f(x[i]) : other`` for reads masked by the same condition. C++ evaluates them only where it
        holds, as long as no intermediate value is declared before."""
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
        if node.digest in self.kernel.tiles:
            name, place = self.kernel.tiles[node.digest]
            return Text(f"{name}[{self._indices.text(place).text}]", ATOM)
        if node.digest in self.kernel.runs:
            name, place = self.kernel.runs[node.digest]
            return loaded(f"{name}[{self._indices.text(place).text}]", node.dtype)
        pointer = self.kernel.pointer(node.tensor)
        flat = ravel(node.index, node.tensor.shape)
        offset = self._indices.text(flat)
        if len(offset.text) > MAX_INDEX_CHARACTERS and not any(True for _ in indirect_scalars(flat)):
            offset = Text(self.scope.declare(f"{pointer}_at", self.kernel.index_type, offset.text), ATOM)
            self.scope.named[flat.digest] = offset
        return loaded(f"{pointer}[{offset.text}]", node.dtype)

    def _format_loop(self, node: Loop) -> Text:
        outer = self.scope
        place = self._window_places.get((node.operands[0].digest, node.loop_variables)) if node.kind == "max" else None
        if place is not None:
            self.declare(place)  # its loop keeps the maximum, too
            return self.text(node)
        outer.hoist(node.operands, node.loop_variables)
        first = outer.value(node.operands[2]).text if len(node.operands) > 2 else "-1"
        name, dtype = self._name_for(node), node.operands[0].dtype
        accumulator = Accumulator.start(outer, name, node.kind, dtype, node.dtype, first=first)
        opened = self._open_loops(node)
        inner = opened[-1] if opened else outer
        if self._adds_tile(node):  # a sum from +0 on is the same without a zero: one instruction less for each
            condition, value = inner.values(node.operands[0].operands[:2])
            inner.line(f"if ({condition.text}) {accumulator.name} += {value.text};")
            for block in reversed(opened):
                block.close()
            outer.bind(node, accumulator.result)
            return accumulator.result
        value = inner.value(node.operands[0])
        if accumulator.returns_position:
            accumulator.add_candidate(inner, value, _returned_position(node, inner))
        else:
            accumulator.add(inner, value)
        for block in reversed(opened):
            block.close()
        outer.bind(node, accumulator.result)
        if node.kind == WINDOW:
            outer.bind(Loop("max", node.loop_variables, dtype, node.operands[0]), accumulator.name)
        return accumulator.result

    def _adds_tile(self, node: Loop) -> bool:
        """Return True for a sum of elements of a tile that meet a condition."""
        value = node.operands[0]
        if node.kind != "sum" or not isinstance(value, Operation) or value.name != "select":
            return False
        _, if_true, if_false = value.operands
        return if_true.digest in self.kernel.tiles and isinstance(if_false, Constant) and if_false.value == 0

    def _open_loops(self, node: Loop) -> list[Scope]:
        """Open nested loops over the variables that take more than one value."""
        opened: list[Scope] = []
        for variable in node.loop_variables:
            if variable.extent.constant == 1:
                continue
            block = opened[-1] if opened else self.scope
            name = block.names.take(variable.name)
            extent = block.index(variable.extent).text
            if 0 < (variable.extent.constant or 0) <= self.kernel.max_unrolled:
                block.line("#pragma unroll")
            opened.append(block.open(f"for (int {name} = 0; {name} < {extent}; ++{name})"))
            opened[-1].define(variable, name)
        return opened


def _returned_position(node: Loop, scope: Scope) -> Text:
    """Return the result of an argument reduction over one value: the operand for the position, else the flat
    position."""
    if len(node.operands) > 1:
        return scope.value(node.operands[1])
    return scope.index(ravel([as_index(v) for v in node.loop_variables], [v.extent for v in node.loop_variables]))


def _declare_divisions(scope: Scope, roots: Sequence[Scalar], writer: IndexWriter) -> None:
    """Declare the divisions in the indices of all unnamed nodes below the roots."""
    unnamed = [node for node in nodes(*roots) if scope.lookup(node.digest) is None or node in roots]
    declare_divisions((index for node in unnamed for index in _indices_of(node)), writer)


def _use_counts(roots: Sequence[Scalar], scope: Scope) -> Counter[bytes]:
    """Count the uses of each node as an operand below the roots. Named nodes are not descended into."""
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
    """Return the nodes on the paths from `root` to reads under exactly this mask; none when one of them is a loop or an
    index."""
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
    """Return the largest subexpressions worth naming that do not depend on `varying`."""
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
            if isinstance(node, Constant | IndexValue | Argument | CallerNumber):
                continue
        pending.extend(reversed(children(node)))


def _has_all_values(node: Scalar, scope: Scope) -> bool:
    """Return True if every reduction result below the node is known."""
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


def _is_rounded(scalar: Scalar) -> bool:
    """Return True for a value that f32 has rounded, in a kernel of 16 bits: a result or a sum, or a choice of such."""
    scalar = unconverted(scalar)
    if isinstance(scalar, Operation) and scalar.name == "select":
        return any(map(_is_rounded, scalar.operands[1:]))
    is_sum = isinstance(scalar, Access) and scalar.dtype == DType.F32
    return is_sum or (isinstance(scalar, Operation) and scalar.name in ROUNDING)


def _is_mean(node: Operation) -> bool:
    """Return True for a sum in f32 over a number that is read from no memory."""
    dividend, *divisors = map(unconverted, node.operands)
    is_sum = isinstance(dividend, Access) and dividend.dtype == DType.F32
    return is_sum and bool(divisors) and not any(True for _ in accesses(*divisors))


def _is_plain_index(scalar: Scalar) -> bool:
    return isinstance(scalar, IndexValue) or (isinstance(scalar, Constant) and scalar.dtype == DType.I64)


def _indices_of(node: Scalar) -> list[Index]:
    if isinstance(node, Access):
        return [ravel(node.index, node.tensor.shape)]
    return [node.index] if isinstance(node, IndexValue) else []
