"""KL201: missing bounds checks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.bounds.neighbours import beyond_the_check, sum_terms, unguarded_coordinates
from kernel_lsp.rules.cuda.bounds.stencil_borders import before_the_border, beyond_the_row
from kernel_lsp.rules.cuda.bounds.thread_range import bare, bounds_grid
from kernel_lsp.rules.cuda.declare import BLOCK_WORDS, THREAD_WORDS, WARNING, barriers_in, declare, hit
from kernel_lsp.rules.cuda.members import members_of_parameter
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.names import names_in_text
from kernel_lsp.rules.cuda.threads.threads import (
    BLOCK_SOURCES,
    THREAD_SOURCES,
    block_names,
    given_values,
    thread_names,
    values_of,
)
from kernel_lsp.rules.cuda.variables import Variable
from kernel_lsp.rules.finding import QuickFix, TextEdit
from kernel_lsp.rules.rule import Hit

_NUMBERS = re.compile(r"\b(threadIdx|blockIdx)\s*\.\s*([xyz])\b")
_SEED = re.compile(r"seed_?\d*$", re.IGNORECASE)
_SOURCES = THREAD_SOURCES | BLOCK_SOURCES
_GROUP_NUMBERS = _SOURCES - {"threadIdx", "blockIdx"}
NO_NAMES: frozenset[str] = frozenset()
_GUARDS = frozenset(
    ("if_statement", "conditional_expression", "for_statement", "while_statement", "do_statement", "switch_statement")
)
_UNCHECKED = "missing bounds check on this index"
_CLAMPS = ("min", "max", "assert", "__builtin_assume", "umin")


@declare(
    "KL201",
    "missing-bound-check",
    WARNING,
    on="kernel",
    needs=(BLOCK_WORDS, THREAD_WORDS, "[", "* ["),
    summary="A global index is used without any check against the size",
    why="""
    The grid is rounded up to whole blocks: when the size is no multiple of the block, the last threads access memory
    behind the end. Check the index, or state in the launch plan that the size divides (`where: N % 256 == 0`). Host
    code that refuses other sizes before it launches `n / 256` blocks, by a return, an exception or an assertion, is
    enough as well.
    """,
    bad="""
    __global__ void scale(const float* __restrict__ x, float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        out[i] = x[i] / n;
    }
    """,
    good="""
    __global__ void scale(const float* __restrict__ x, float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) {
            out[i] = x[i] / n;
        }
    }
    """,
)
def missing_bound_check(kernel: Function) -> Iterator[Hit]:
    file = kernel.file
    if file.fits_its_launches or _takes_no_size(kernel):
        return
    for condition in _checked_by_either(kernel):
        yield hit(file, condition, "`||` admits an index beyond one of the sizes: use `&&`")
    for condition in _left_one_too_late(kernel):
        yield hit(file, condition, "`>` admits an index one beyond the size: use `>=`")
    for condition in _checked_one_too_far(kernel):
        yield hit(file, condition, "`<=` admits an index one beyond the size: use `<`", _with_less(kernel, condition))
    for access in _checked_later(kernel):
        yield hit(file, access, "index is checked only after this access: move the access behind the check")
    for access, coordinate in before_the_border(kernel):
        yield hit(file, access, f"index out of bounds: nothing keeps `{coordinate}` away from the border at 0")
    for access, index, size in beyond_the_check(kernel):
        yield hit(file, access, f"index out of bounds: `{index}` may be `{size}`, check it as well")
    for access, length in islice(beyond_the_row(kernel), 1):
        yield hit(file, access, f"`{length}` bounds the index of the row, and here counts the elements of one as well")
    if kernel.launches and all(launch.divides_exactly for launch in kernel.launches):
        return
    unchecked = _unchecked_dims(kernel)
    if not unchecked:
        yield from (hit(file, access, _UNCHECKED) for access in islice(unguarded_coordinates(kernel), 1))
        return
    found = (node for node in _indexed_by_number(kernel) if _is_global_access(kernel, node, unchecked))
    first = next((node for node in found if not _is_of_whole_tiles(kernel, node)), None)
    if first is not None:
        yield hit(file, first, _UNCHECKED, *_bound_fix(kernel, first))


def _takes_no_size(kernel: Function) -> bool:
    """Return whether no parameter is a size. The size is then a constant, and the launch may match it exactly. The seed
    of a generator is no size: one state for each thread is allocated."""
    inside = (each for given in kernel.parameters for each in _members_of(kernel, given).values())
    sizes = (each for each in (*kernel.parameters, *inside) if each.is_integer and "static" not in each.type_text)
    return bool(kernel.lambdas) or all(_SEED.search(each.name) for each in sizes)


def _members_of(kernel: Function, parameter: Variable) -> dict[str, Variable]:
    return members_of_parameter(kernel.file.members, parameter)


def _unchecked_dims(kernel: Function) -> frozenset[str]:
    """Return the dims x, y and z whose block and thread indices no condition or clamp depends on, even transitively.
    The set is empty where a condition uses the thread's rank in a cooperative group."""
    unchecked = {dim for dim in "xyz" if f"threadIdx.{dim}" in kernel.text and f"blockIdx.{dim}" in kernel.text}
    if unchecked:
        conditions = (part for condition in kernel.conditions() for part in _outside_elements(kernel, condition))
        for source, dim in _numbers_in(kernel, [*conditions, *_clamps(kernel)]):
            if source == "threadIdx":
                unchecked.discard(dim)
            if source in _GROUP_NUMBERS or not unchecked:
                return frozenset()
    return frozenset(unchecked)


def _outside_elements(kernel: Function, node: Node) -> Iterator[Node]:
    """Yield the parts of a condition outside of subscripts: ``x[i] > 0`` accesses the element that it would check."""
    if "[" not in kernel.source(node):
        yield node
    elif node.type != "subscript_expression":
        for child in node.named_children:
            yield from _outside_elements(kernel, child)


def _checked_later(kernel: Function) -> Iterator[Node]:
    """Yield the accesses at an index across the grid that precede the only ``if (i < n)``, and that no condition
    guards."""
    free: list[tuple[Node, Variable]] | None = None
    for branch in kernel.branches:
        condition = branch.child_by_field_id(fields.CONDITION)
        if condition is None or branch.type != "if_statement" or not bounds_grid(kernel, condition):
            continue
        free = list(_free_accesses(kernel)) if free is None else free
        names = kernel.names_in(condition)
        used = [kernel.variable(index.named_children[0]) for index in _indices_in(kernel, branch)] if free else []
        for access, variable in free:
            is_before = access.end_byte <= branch.start_byte and variable.name in names
            if is_before and any(each is variable for each in used):
                yield access


def _free_accesses(kernel: Function) -> Iterator[tuple[Node, Variable]]:
    """Yield the accesses of a parameter at a variable that no condition guards."""
    for access in kernel.subscripts:
        indices, array = access.child_by_field_id(fields.INDICES), access.child_by_field_id(fields.ARGUMENT)
        index = indices.named_children[0] if indices is not None and indices.named_children else None
        variable, pointer = kernel.variable(index), kernel.variable(array)
        is_given = pointer is not None and pointer.is_pointer and pointer in kernel.parameters
        if variable is not None and is_given and not _is_guarded_here(kernel, access):
            yield access, variable


def _checked_one_too_far(kernel: Function) -> Iterator[Node]:
    """Yield the conditions ``i <= n`` of an index across the grid that is used as it is, where n is a parameter."""
    for branch in kernel.branches:
        condition = branch.child_by_field_id(fields.CONDITION)
        inner = condition.named_children[0] if condition is not None and condition.named_child_count == 1 else None
        if inner is None or branch.type != "if_statement" or not bounds_grid(kernel, inner):
            continue
        left, right = kernel.variable(inner.child_by_field_id(fields.LEFT)), inner.child_by_field_id(fields.RIGHT)
        is_size = kernel.variable(right) in kernel.parameters and kernel.operator(inner) == "<="
        used = (kernel.variable(index.named_children[0]) for index in _indices_in(kernel, branch))
        is_counted = left is not None and is_size and not _starts_at_one(kernel, left)
        if is_counted and any(variable is left for variable in used):
            yield inner


def _starts_at_one(kernel: Function, index: Variable) -> bool:
    """Return whether an index is one more than the thread's, as of arrays with an element before the first."""
    return any(kernel.constant(term) == 1 for term in sum_terms(kernel, index.value))


def _left_one_too_late(kernel: Function) -> Iterator[Node]:
    """Yield the conditions of ``if (i > n) return;`` of an index across the grid that is used as it is behind it."""
    used = {kernel.source(i.named_children[0]) for i in _indices_in(kernel, kernel.body)}
    for branch in kernel.branches:
        if branch.type != "if_statement" or not any(True for _ in kernel.returns.within(branch)):
            continue
        for part in _alternatives(kernel, _condition_of(branch)):
            size = kernel.variable(part.child_by_field_id(fields.RIGHT))
            index = kernel.variable(part.child_by_field_id(fields.LEFT))
            is_late = kernel.operator(part) == ">" and size is not None and size in kernel.parameters
            is_late = is_late and index is not None and not _starts_at_one(kernel, index)
            if is_late and _grid_index(kernel, part) & used:
                yield part


def _checked_by_either(kernel: Function) -> Iterator[Node]:
    """Yield the conditions ``x < w || y < h`` of two indices across the grid that an access behind them combines."""
    for branch in kernel.branches:
        condition = _condition_of(branch)
        parts = (condition.child_by_field_id(field) for field in (fields.LEFT, fields.RIGHT))
        sides = [bare(side) for side in parts if side is not None]
        if branch.type != "if_statement" or kernel.operator(condition) != "||" or len(sides) != 2:
            continue
        names = [_grid_index(kernel, side) if kernel.operator(side) in ("<", "<=") else frozenset() for side in sides]
        indices = [kernel.names_in(index) for index in _indices_in(kernel, branch)]
        is_guard = not any(True for _ in kernel.returns.within(branch))
        if is_guard and all(names) and any(names[0] <= each and names[1] <= each for each in indices):
            yield condition


def _condition_of(branch: Node) -> Node:
    condition = branch.child_by_field_id(fields.CONDITION)
    return branch if condition is None else bare(condition)


def _alternatives(kernel: Function, condition: Node) -> Iterator[Node]:
    if kernel.operator(condition) != "||":
        yield condition
        return
    for side in (condition.child_by_field_id(f) for f in (fields.LEFT, fields.RIGHT)):
        if side is not None:
            yield from _alternatives(kernel, bare(side))


def _grid_index(kernel: Function, comparison: Node) -> frozenset[str]:
    """Return the name on the left of a comparison if it stands for an index across the grid."""
    variable = kernel.variable(comparison.child_by_field_id(fields.LEFT))
    value = "" if variable is None or variable.value is None else kernel.source(variable.value)
    is_of_grid = "blockIdx" in value and "threadIdx" in value
    return frozenset((variable.name,)) if variable is not None and is_of_grid else frozenset()


def _indices_in(kernel: Function, branch: Node) -> Iterator[Node]:
    for access in kernel.subscripts.within(branch):
        indices = access.child_by_field_id(fields.INDICES)
        if indices is not None and indices.named_children:
            yield indices


def _is_guarded_here(kernel: Function, access: Node) -> bool:
    """Return whether any branch, `&&` or earlier `return` may exclude a thread from the access."""
    is_behind = any(node.start_byte < access.start_byte for node in kernel.returns)
    rights = (both.child_by_field_id(fields.RIGHT) for both in kernel.connections)
    is_second = any(right is not None and right.start_byte <= access.start_byte < right.end_byte for right in rights)
    parents = {parent.type for parent in kernel.around(access)}
    return is_behind or is_second or not parents.isdisjoint(_GUARDS)


def _with_less(kernel: Function, condition: Node) -> QuickFix:
    left, right = condition.child_by_field_id(fields.LEFT), condition.child_by_field_id(fields.RIGHT)
    sides = [kernel.source(side) for side in (left, right) if side is not None]
    return QuickFix("Compare with `<`", (kernel.file.parsed.replace(condition, " < ".join(sides)),), False)


def _clamps(kernel: Function) -> list[Node]:
    return kernel.calls_named(_CLAMPS)


def _indexed_by_number(kernel: Function) -> Iterator[Node]:
    """Yield the parameter subscripts that mention both block-dependent and thread-dependent names."""
    threads, blocks, subscripts = thread_names(kernel), block_names(kernel), kernel.subscripts
    arrays = tuple([each.name for each in kernel.parameters if each.is_pointer or _members_of(kernel, each)])
    others: set[str] = set()
    for index, text in enumerate(kernel.file.texts(subscripts)):
        if text not in others:
            names = names_in_text(text) if text.startswith(arrays) else NO_NAMES
            if names.isdisjoint(threads) or names.isdisjoint(blocks):
                others.add(text)
            else:
                yield subscripts[index]


def _is_global_access(kernel: Function, subscript: Node, dims: frozenset[str]) -> bool:
    """Return whether this is ``p[i]`` of a pointer parameter, with i derived from block and thread indices along one
    of the dims."""
    array = _given_array(kernel, subscript.child_by_field_id(fields.ARGUMENT))
    if array is None or not array.is_pointer:
        return False
    indices = subscript.child_by_field_id(fields.INDICES)
    index = kernel.names_in(indices)
    if indices is None or index.isdisjoint(thread_names(kernel)) or index.isdisjoint(block_names(kernel)):
        return False
    cache, meaning = kernel.caches.setdefault("global", {}), kernel.meaning(indices)
    if meaning not in cache:
        cache[meaning] = _has_number_along(kernel, indices, dims)
    return cache[meaning]


def _given_array(kernel: Function, node: Node | None) -> Variable | None:
    """Return the parameter that is subscripted, or the member of a parameter's structure: ``image.pixels[i]``."""
    owner = node.child_by_field_id(fields.ARGUMENT) if node is not None and node.type == "field_expression" else None
    given = kernel.variable(node if owner is None else owner)
    if given is None or given not in kernel.parameters:
        return None
    name = None if node is None or owner is None else node.child_by_field_name("field")
    return given if name is None else _members_of(kernel, given).get(kernel.source(name))


def _is_of_whole_tiles(kernel: Function, access: Node) -> bool:
    """Return whether the kernel knows the elements of one block alone, and the access is at one that no size moves:
    ``out[blockIdx.x * 128 + threadIdx.x]`` beside rows at ``in + blockIdx.x * n``."""
    sizes = {each.name for each in kernel.parameters if each.is_integer and not _SEED.search(each.name)}
    is_of_block = all(re.search(rf"blockIdx\.[xyz]\)?\s*\*\s*(?:\w+\s*\*\s*)?{name}\b", kernel.text) for name in sizes)
    indices = access.child_by_field_id(fields.INDICES)
    return (
        is_of_block
        and indices is not None
        and "blockDim" not in kernel.text
        and sizes.isdisjoint(_names_behind(kernel, indices))
    )


def _has_number_along(kernel: Function, index: Node, dims: frozenset[str]) -> bool:
    """Return whether the index depends, even transitively, on the block and thread index along one of the dims and
    on no other dim."""
    wanted = [{("threadIdx", dim), ("blockIdx", dim)} for dim in dims]
    found = set(_numbers_in(kernel, [index]))
    if not any(pair <= found for pair in wanted):
        return False
    values = [values_of(variable) for name in _names_behind(kernel, index) for variable in kernel.named(name)]
    return any(set(_numbers_in(kernel, nodes)) in wanted for nodes in ([index], *filter(None, values)))


def _names_behind(kernel: Function, node: Node) -> set[str]:
    """Return the names that the value depends on, transitively."""
    return _names_of_values(kernel, kernel.names_in(node))


def _names_of_values(kernel: Function, names: Iterable[str]) -> set[str]:
    """Return these names and all names that their values depend on."""
    given, seen = given_values(kernel), set(names)
    waiting = [*seen]
    while waiting:
        values = given.get(waiting.pop())
        if values is not None:
            new = values.all_names - seen
            seen |= new
            waiting += new
    return seen


def _numbers_in(kernel: Function, nodes: list[Node]) -> Iterator[tuple[str, str]]:
    """Yield the block and thread indices that the values depend on, transitively, as ``("blockIdx", "x")``. Ranks in
    cooperative groups are ``("thread_rank", "")``."""
    named: set[str] = set()
    for node in nodes:
        names = kernel.names_in(node)
        named |= names
        yield from _numbers_of(kernel, node, names)
    given = given_values(kernel)
    for values in filter(None, map(given.get, _names_of_values(kernel, named))):
        if not values.all_names.isdisjoint(_SOURCES):
            for node in values.nodes:
                yield from _numbers_of(kernel, node, kernel.names_in(node))


def _numbers_of(kernel: Function, node: Node, names: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the block and thread indices that the value mentions directly."""
    if not names.isdisjoint(_SOURCES):
        yield from _NUMBERS.findall(kernel.source(node))
        yield from ((name, "") for name in names & _GROUP_NUMBERS)


def _bound_fix(kernel: Function, access: Node) -> tuple[QuickFix, ...]:
    """Return the fix ``if (i >= n) return;`` if there is one index variable and one integer parameter."""
    sizes = [parameter for parameter in kernel.parameters if parameter.is_integer]
    indices = access.child_by_field_id(fields.INDICES)
    names = [] if indices is None else [node for node in indices.named_children if node.type == "identifier"]
    variable = kernel.variable(names[0]) if len(names) == 1 else None
    if len(sizes) != 1 or variable is None or barriers_in(kernel):
        return ()
    declaration = variable.declaration
    line_start = kernel.file.parsed.data.rfind(b"\n", 0, declaration.start_byte) + 1
    indent = kernel.file.parsed.data[line_start : declaration.start_byte].decode("utf-8", errors="replace")
    text = f"\n{indent if not indent.strip() else ''}if ({variable.name} >= {sizes[0].name}) return;"
    edit = TextEdit(kernel.file.parsed.span(declaration.end_byte, declaration.end_byte), text)
    return (QuickFix(f"Return when `{variable.name} >= {sizes[0].name}`", (edit,), False),)
