"""KL218 and KL219: out-of-bounds indices of arrays with known sizes, and racy updates at data-dependent indices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import ERROR, THREAD_WORDS, WARNING, conditions_around, declare, hit
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.threads.threads import depends_on_thread, is_loop_variable, may_depend_on_thread, values_of
from kernel_lsp.rules.cuda.threads.unordered import indices_of
from kernel_lsp.rules.cuda.variables import Variable
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Hit

MAX_STEPS = 8
"""Maximum names and sums that an index is traced through."""
_UPDATES = ("+=", "-=", "*=", "|=", "&=", "^=")
_ATOMICS = {"+=": "atomicAdd", "-=": "atomicSub", "|=": "atomicOr", "&=": "atomicAnd", "^=": "atomicXor"}
_SUMMED = ("int", "unsigned", "unsigned int", "float", "double", "uint32_t")
_THREAD = {f"threadIdx.{axis}" for axis in "xyz"}


@declare(
    "KL218",
    "array-out-of-bounds",
    ERROR,
    on="device",
    needs=("[",),
    summary="An index is beyond an end of an array whose size the text says",
    why="""
    A constant, a loop counter or the thread's own number plus or minus one reaches an element that the array does not
    have: thread 0 reads `tile[-1]`, or a loop with `<=` goes one too far. In shared memory that is some other variable.
    Guard the access, or give the array the halo elements.
    """,
    bad="""
    __global__ void left(const float* __restrict__ x, float* __restrict__ out) {
        __shared__ float tile[256];
        tile[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = tile[threadIdx.x - 1];
    }
    """,
    good="""
    __global__ void left(const float* __restrict__ x, float* __restrict__ out) {
        __shared__ float tile[256];
        tile[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = threadIdx.x > 0 ? tile[threadIdx.x - 1] : 0.0f;
    }
    """,
)
def array_out_of_bounds(function: Function) -> Iterator[Hit]:
    arrays = {v.name for v in function.all_variables() if v.is_array and v.sizes}
    for subscript in function.subscripts if arrays else ():
        array = _sized_array(function, subscript)
        if array is None:
            continue
        for index, size in zip(indices_of(subscript)[::-1], array.sizes, strict=False):
            message = _beyond(function, subscript, index, size)
            if message:
                yield hit(function.file, subscript, f"index out of bounds: {message}", *_fixes(function, subscript))
                break


@declare(
    "KL219",
    "racy-update",
    WARNING,
    on="device",
    needs=(THREAD_WORDS, "["),
    summary="Threads update elements at loaded indices without an atomic operation",
    why="""
    Two threads that load the same index read the same old value, and one of the two updates is lost. Use an atomic
    operation, or bins of each thread's own.
    """,
    bad="""
    __global__ void count(const int* __restrict__ v, int* __restrict__ bins, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) bins[v[i]] += 1;
    }
    """,
    good="""
    __global__ void count(const int* __restrict__ v, int* __restrict__ bins, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) atomicAdd(&bins[v[i]], 1);
    }
    """,
)
def racy_update(function: Function) -> Iterator[Hit]:
    for update in (*function.assignments, *function.updates):
        target = update.child_by_field_id(fields.LEFT) or update.child_by_field_id(fields.ARGUMENT)
        if target is None or target.type != "subscript_expression" or not _reads_itself(function, update, target):
            continue
        array = _root(function, target)
        is_common = array is not None and (array.is_shared or (array.is_pointer and array in function.parameters))
        if is_common and _is_by_data(function, target) and not _is_for_one(function, update):
            message = "racy update: threads with the same index lose updates, use an atomic operation"
            yield hit(function.file, target, message, *_atomic_fix(function, update, target, array))


def thread_reaches(function: Function) -> Iterator[tuple[Node, int, int]]:
    """Yield unguarded accesses to shared arrays by thread index, with the axis and the array's extent in threads
    along it."""
    for subscript in function.subscripts:
        array = _sized_array(function, subscript)
        if array is None or not array.is_shared:
            continue
        for index, size in zip(indices_of(subscript)[::-1], array.sizes, strict=False):
            place, limit = _place(function, index, 0), function.constant(size)
            if place is None or place.counter is None or limit is None:
                continue
            text = function.source(place.counter).replace(" ", "")
            if text in _THREAD and not _is_guarded(function, subscript, place.counter):
                yield subscript, "xyz".index(text[-1]), limit - place.offset


# --- below: bounds


@dataclass(frozen=True)
class _Place:
    """An index split into a counter (None for a constant) and an offset."""

    counter: Node | None
    offset: int


def _sized_array(function: Function, subscript: Node) -> Variable | None:
    parent = function.parent(subscript)
    if parent is None or parent.type in ("subscript_expression", "pointer_expression", "sizeof_expression"):
        return None
    array = _root(function, subscript)
    is_sized = array is not None and array.is_array and not array.is_pointer and bool(array.sizes)
    return array if is_sized else None


def _root(function: Function, subscript: Node) -> Variable | None:
    node: Node | None = subscript
    while node is not None and node.type == "subscript_expression":
        node = node.child_by_field_id(fields.ARGUMENT)
    return function.variable(node)


def _beyond(function: Function, access: Node, index: Node, size: Node | None) -> str:
    """Return why the index is out of bounds, or an empty text."""
    place = _place(function, index, 0)
    if place is None:
        return ""
    limit = function.constant(size)
    if place.counter is None:
        is_beyond = place.offset < 0 or (limit is not None and place.offset >= limit)
        return f"{place.offset} is beyond the {_said(function, size)} elements" if is_beyond else ""
    if _is_guarded(function, access, place.counter):
        return ""
    counter = function.source(place.counter)
    if counter.replace(" ", "") in _THREAD:
        return f"thread 0 has index {place.offset}" if place.offset < 0 else ""
    first, last, is_past = _counted(function, place.counter, size)
    if first is not None and first + place.offset < 0:
        return f"`{counter}` begins at {first}, so the first index is {first + place.offset}"
    if last is not None and limit is not None and last + place.offset >= limit:
        return f"`{counter}` ends at {last}, so the last index is {last + place.offset} of {limit} elements"
    return f"`{counter}` reaches {_said(function, size)}" if is_past and place.offset >= 0 else ""


def _said(function: Function, size: Node | None) -> str:
    return "its" if size is None else function.source(size)


def _place(function: Function, node: Node | None, depth: int) -> _Place | None:
    if node is None or depth > MAX_STEPS:
        return None
    value = function.constant(node)
    if value is not None:
        return _Place(None, value)
    if node.type == "unary_expression" and function.source(node).startswith("-"):
        inner = function.constant(node.named_children[0]) if node.named_children else None
        return None if inner is None else _Place(None, -inner)
    if node.type == "parenthesized_expression":
        return _place(function, node.named_children[0], depth + 1)
    if node.type == "field_expression":
        return _Place(node, 0) if function.source(node).replace(" ", "") in _THREAD else None
    if node.type == "binary_expression":
        return _sum_of(function, node, depth)
    variable = function.variable(node)
    if variable is None or variable in function.parameters:
        return None
    if is_loop_variable(function, variable):
        return _Place(node, 0)
    is_fixed = variable.value is not None and not variable.writes and len(function.named(variable.name)) == 1
    return _place(function, variable.value, depth + 1) if is_fixed else None


def _sum_of(function: Function, node: Node, depth: int) -> _Place | None:
    left, right = (_place(function, node.child_by_field_id(f), depth + 1) for f in (fields.LEFT, fields.RIGHT))
    operator = function.operator(node)
    if left is None or right is None or operator not in ("+", "-"):
        return None
    if right.counter is None:
        return _Place(left.counter, left.offset + (right.offset if operator == "+" else -right.offset))
    return _Place(right.counter, left.offset + right.offset) if left.counter is None and operator == "+" else None


def _is_guarded(function: Function, access: Node, counter: Node) -> bool:
    """Return whether a condition may exclude a thread or an iteration from the access."""
    names = function.names_in(counter)
    variable = function.variable(counter)
    for condition in conditions_around(function, access):
        is_own_loop = variable is not None and _is_head_of(function, condition, variable)
        is_ineffective = is_own_loop or (variable is None and _bounds_grid(function, condition))
        if not is_ineffective and (may_depend_on_thread(function, condition) or names & function.names_in(condition)):
            return True
    for both in function.connections:
        right = both.child_by_field_id(fields.RIGHT)
        if right is not None and right.start_byte <= access.start_byte < right.end_byte:
            return True
    leaves = variable is not None and any(word in function.text for word in ("break", "continue"))
    return leaves or any(node.start_byte < access.start_byte for node in function.returns)


def _bounds_grid(function: Function, condition: Node) -> bool:
    """Return whether the condition only bounds an index across the grid from above, which every thread of a full block
    satisfies."""
    while condition.type in ("parenthesized_expression", "condition_clause") and condition.named_child_count == 1:
        condition = condition.named_children[0]
    left, right = (condition.child_by_field_id(f) for f in (fields.LEFT, fields.RIGHT))
    if condition.type != "binary_expression" or left is None or right is None:
        return False
    if function.operator(condition) not in ("<", "<=") or may_depend_on_thread(function, right):
        return False
    variable = function.variable(left)
    values = [] if variable is None else list(values_of(variable))
    return len(values) == 1 and "blockIdx" in function.source(values[0]) and "threadIdx" not in function.source(right)


def _is_head_of(function: Function, condition: Node, variable: Variable) -> bool:
    """Return whether this is the condition of the loop that declares the variable."""
    loop = function.parent(variable.declaration)
    head = None if loop is None else loop.child_by_field_id(fields.CONDITION)
    return head is not None and head.id == condition.id


def _counted(function: Function, counter: Node, size: Node | None) -> tuple[int | None, int | None, bool]:
    """Return the first and last value of a loop that counts up by one, and whether its bound is the array's size."""
    variable = function.variable(counter)
    loop = None if variable is None else function.parent(variable.declaration)
    condition = None if loop is None else loop.child_by_field_id(fields.CONDITION)
    if variable is None or condition is None or condition.type != "binary_expression" or len(variable.writes) != 1:
        return None, None, False
    is_own = function.variable(condition.child_by_field_id(fields.LEFT)) is variable
    write, operator = function.source(variable.writes[0]).replace(" ", ""), function.operator(condition)
    if not is_own or write not in (f"++{variable.name}", f"{variable.name}++", f"{variable.name}+=1"):
        return None, None, False
    right, first = condition.child_by_field_id(fields.RIGHT), function.constant(variable.value)
    limit = function.constant(right)
    last = None if limit is None or operator not in ("<", "<=") else limit - (operator == "<")
    is_same = right is not None and size is not None and function.source(right) == function.source(size)
    return first, last, operator == "<=" and is_same and first is not None


def _fixes(function: Function, access: Node) -> Iterator[QuickFix]:
    """Yield fixes: ``i > 0 ? tile[i - 1] : 0`` for a read, and `<` for a loop with an off-by-one bound."""
    parsed, index = function.file.parsed, indices_of(access)[0]
    place = _place(function, index, 0)
    if place is None or place.counter is None:
        return
    parent = function.parent(access)
    is_target = parent is not None and parent.type in ("assignment_expression", "update_expression")
    left = None if parent is None else parent.child_by_field_id(fields.LEFT)
    is_read = not is_target or (left is not None and left.id != access.id)
    if place.offset < 0 and is_read:
        text = f"({function.source(place.counter)} >= {-place.offset} ? {function.source(access)} : 0)"
        yield QuickFix("Read 0 in front of the array", (parsed.replace(access, text),), False)
    variable = function.variable(place.counter)
    loop = None if variable is None else function.parent(variable.declaration)
    condition = None if loop is None else loop.child_by_field_id(fields.CONDITION)
    operator = None if condition is None else condition.child_by_field_id(fields.OPERATOR)
    if operator is not None and function.source(operator) == "<=" and place.offset == 0:
        yield QuickFix("Count with `<`", (parsed.replace(operator, "<"),), False)


# --- below: updates


def _reads_itself(function: Function, update: Node, target: Node) -> bool:
    """Return whether the update is a read-modify-write: ``a[i] += x``, ``a[i]++`` or ``a[i] = a[i] + x``."""
    if update.type == "update_expression" or function.operator(update) in _UPDATES:
        return True
    right, text = update.child_by_field_id(fields.RIGHT), function.source(target)
    return right is not None and any(function.source(s) == text for s in function.subscripts.within(right))


def _is_by_data(function: Function, target: Node) -> bool:
    """Return whether only loaded values make the element differ between threads."""
    chosen = False
    for index in indices_of(target):
        loads = list(function.subscripts.within(index))
        plain = function.names_in(index) - {name for load in loads for name in function.names_in(load)}
        loaded = {name for name in plain if _is_loaded(function, name)}
        if any(depends_on_thread(function, load) for load in loads) or loaded:
            chosen = True
        if any(_varies(function, name) for name in plain - loaded):
            return False
    return chosen


def _is_loaded(function: Function, name: str) -> bool:
    """Return whether every value of the variable is loaded at a thread-dependent index."""
    values = [value for variable in function.named(name) for value in values_of(variable)]
    return bool(values) and all(
        any(depends_on_thread(function, load) for load in function.subscripts.within(value)) for value in values
    )


def _varies(function: Function, name: str) -> bool:
    if name in ("threadIdx", "blockIdx"):
        return True
    values = [value for variable in function.named(name) for value in values_of(variable)]
    return any(may_depend_on_thread(function, v) or "blockIdx" in function.source(v) for v in values)


def _is_for_one(function: Function, node: Node) -> bool:
    return any(
        "==" in function.source(condition) and may_depend_on_thread(function, condition)
        for condition in conditions_around(function, node)
    )


def _atomic_fix(function: Function, update: Node, target: Node, array: Variable | None) -> Iterator[QuickFix]:
    parent, operator = function.parent(update), function.operator(update)
    is_statement = parent is not None and parent.type == "expression_statement"
    right = update.child_by_field_id(fields.RIGHT)
    value = "1" if update.type == "update_expression" else "" if right is None else function.source(right)
    name = {"++": "atomicAdd", "--": "atomicSub"}.get(operator) or _ATOMICS.get(operator)
    if name is None or not value or not is_statement or array is None or array.element not in _SUMMED:
        return
    if name == "atomicSub" and array.element in ("float", "double"):
        return
    text = f"{name}(&{function.source(target)}, {value})"
    yield QuickFix(f"Use `{name}`", (function.file.parsed.replace(update, text),), True)
