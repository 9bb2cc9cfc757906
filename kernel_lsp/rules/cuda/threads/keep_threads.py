"""Fix a barrier behind a divergent `return`: the threads stay, and the work on either side of a barrier is guarded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import barriers_in, indentation
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.threads.threads import may_depend_on_thread
from kernel_lsp.rules.cuda.variables import type_facts
from kernel_lsp.rules.finding import QuickFix, TextEdit

_STABLE = ("condition_clause", "parenthesized_expression", "binary_expression", "identifier", "number_literal")
_COORDINATE = re.compile(r"(?:threadIdx|blockIdx|blockDim|gridDim)\.[xyz]")
_OPPOSITE = {">=": "<", ">": "<=", "<": ">=", "<=": ">", "==": "!=", "!=": "=="}
_EFFECTS = frozenset(
    ["subscript_expression", "call_expression", "pointer_expression", "assignment_expression", "update_expression"]
)
"""Node types of an initializer that only the remaining threads may evaluate."""
_ARITHMETIC = frozenset(["float", "double", "int", "unsigned", "long", "short", "char", "bool"])
_LEAVES = re.compile(r"\b(?:return|break|continue|goto)\b")
_STEP = " " * 4


class _NoFix(Exception):
    """The code means something else with a guard in each part, or its text cannot be cut there."""


def keep_threads(function: Function, leaves: Node, barrier: Node) -> Iterator[QuickFix]:
    """Yield the fix where `leaves`, the `return` that some threads take, is all that an `if` of the kernel's own block
    does, its condition stays the same, and all threads would reach the barriers behind it."""
    branch = _branch_of(function, leaves)
    condition = branch.child_by_field_id(fields.CONDITION) if branch is not None else None
    if branch is None or condition is None or barrier not in barriers_in(function) or not _is_stable(condition):
        return
    body = function.body
    rest = [node for node in body.named_children if node.start_byte >= branch.end_byte]
    last = max(call.start_byte for call in barriers_in(function))
    others = [node for node in function.returns if branch.end_byte <= node.start_byte < last]
    if not rest or others or _is_changed(function, condition, rest):
        return
    guard = _opposite(function, condition)
    try:
        text = "\n".join(_guarded(function, guard, rest, indentation(function, branch), is_end=True))
    except _NoFix:
        return
    edit = TextEdit(function.file.parsed.span(branch.start_byte, rest[-1].end_byte), text.lstrip())
    yield QuickFix("Keep the threads, and guard the work", (edit,), False)


def _branch_of(function: Function, leaves: Node) -> Node | None:
    """Return the `if` without `else` whose only statement is the `return`, in the kernel's own block."""
    parent = leaves.parent
    if parent is not None and parent.type == "compound_statement" and len(parent.named_children) == 1:
        parent = parent.parent
    if parent is None or parent.type != "if_statement" or parent.child_by_field_id(fields.ALTERNATIVE) is not None:
        return None
    return parent if parent.parent == function.body else None


def _is_stable(node: Node) -> bool:
    if node.type == "field_expression":
        return True  # of a value: a pointer's has no stable text
    return node.type in _STABLE and all(map(_is_stable, node.named_children))


def _is_changed(function: Function, condition: Node, rest: Sequence[Node]) -> bool:
    names = set(re.findall(r"[A-Za-z_]\w*", function.source(condition)))
    taken = re.compile(rf"&\s*(?:{'|'.join(map(re.escape, names))})\b") if names else None
    return any(names & function.written_in(node) or (taken and taken.search(function.source(node))) for node in rest)


def _opposite(function: Function, node: Node) -> str:
    """Return the condition of the threads that stay. Comparisons of floats are negated as a whole: NaN."""
    text = " ".join(function.source(node).split())
    if node.type in ("condition_clause", "parenthesized_expression") and len(node.named_children) == 1:
        return _opposite(function, node.named_children[0])
    if node.type == "binary_expression":
        left, right = node.child_by_field_id(fields.LEFT), node.child_by_field_id(fields.RIGHT)
        sign = function.operator(node)
        if left is not None and right is not None and sign == "||":
            return f"{_opposite(function, left)} && {_opposite(function, right)}"
        if left is not None and right is not None and sign in _OPPOSITE and _is_integer(function, node):
            return f"{function.source(left)} {_OPPOSITE[sign]} {function.source(right)}"
    return f"!({text})"


def _is_integer(function: Function, node: Node) -> bool:
    if node.type == "identifier":
        variable = function.variable(node)
        return variable is not None and type_facts(variable.type_text).is_integer
    if node.type == "field_expression":
        return _COORDINATE.fullmatch(function.source(node)) is not None
    if node.type == "number_literal":
        return function.source(node).isdigit()
    return all(_is_integer(function, child) for child in node.named_children)


def _guarded(function: Function, guard: str, nodes: Sequence[Node], indent: str, is_end: bool) -> Iterator[str]:
    """Yield the lines of some statements, in which only barriers and what holds them are outside of a guard. With
    `is_end` nothing behind them uses what they declare. Raises _NoFix."""
    at = [call.start_byte for call in barriers_in(function)]
    parts = [
        (has_barrier, list(part))
        for has_barrier, part in groupby(nodes, lambda node: any(node.start_byte <= i < node.end_byte for i in at))
    ]
    for i, (has_barrier, part) in enumerate(parts):
        if not has_barrier:
            yield from _work(function, guard, part, indent, is_end and i == len(parts) - 1)
            continue
        for node in part:
            if node.type == "expression_statement" and node.named_children[0].start_byte in at:
                yield indent + function.source(node)
            else:
                yield from _loop(function, guard, node, indent)


def _loop(function: Function, guard: str, node: Node, indent: str) -> Iterator[str]:
    """Yield the lines of a loop that holds a barrier: all threads run it, so its head must be the same for all."""
    body, condition = node.child_by_field_id(fields.BODY), node.child_by_field_id(fields.CONDITION)
    if node.type not in ("for_statement", "while_statement") or body is None or body.type != "compound_statement":
        raise _NoFix
    if condition is None or may_depend_on_thread(function, condition) or _LEAVES.search(function.source(body)):
        raise _NoFix
    head = function.file.parsed.data[node.start_byte : body.start_byte].decode(errors="replace")
    yield f"{indent}{head}{{"
    yield from _guarded(function, guard, body.named_children, indent + _STEP, is_end=True)
    yield indent + "}"


def _work(function: Function, guard: str, nodes: Sequence[Node], indent: str, is_end: bool) -> Iterator[str]:
    """Yield the lines of statements without a barrier, in a guard. Declarations that later parts may use stay outside,
    where all threads can make them; others get their value where the guard holds."""
    if any(node.type.startswith("preproc") or node.has_error for node in nodes):
        raise _NoFix
    for is_outside, part in groupby(nodes, lambda node: not is_end and node.type in ("declaration", "comment")):
        group = list(part)
        if is_outside:
            yield from (indent + _declared(function, guard, node) for node in group)
            continue
        if not is_end and any(_LEAVES.search(function.source(node)) for node in group):
            raise _NoFix
        text = function.file.parsed.data[group[0].start_byte : group[-1].end_byte].decode(errors="replace")
        yield f"{indent}if ({guard}) {{"
        yield f"{indent}{_STEP}" + text.replace("\n", f"\n{_STEP}")
        yield indent + "}"


def _declared(function: Function, guard: str, node: Node) -> str:
    text = function.source(node)
    if node.type == "comment" or text.startswith(("__shared__", "extern")) or not _has_effects(node):
        return text
    made = [child for child in node.named_children if child.type == "init_declarator"]
    value = made[0].child_by_field_id(fields.VALUE) if len(made) == 1 else None
    kinds = set(re.findall(r"\w+", text[: made[0].start_byte - node.start_byte])) - {"const"} if made else set()
    if value is None or not kinds or kinds - _ARITHMETIC or "," in text[made[0].end_byte - node.start_byte :]:
        raise _NoFix
    start, end = value.start_byte - node.start_byte, value.end_byte - node.start_byte
    return f"{text[:start]}{guard} ? {text[start:end]} : 0{text[end:]}"


def _has_effects(node: Node) -> bool:
    return node.type in _EFFECTS or any(map(_has_effects, node.named_children))
