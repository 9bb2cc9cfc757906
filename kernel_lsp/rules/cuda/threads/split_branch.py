"""Fix a barrier in a divergent branch: the branch ends before it, and begins again behind it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import conditions_around, indentation
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.threads.threads import depends_on_thread
from kernel_lsp.rules.finding import QuickFix, TextEdit

_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_UNSTABLE = re.compile(r"[(\[*]|->|\+\+|--|[^=!<>]=[^=]")
"""Parts of a condition, inside of its brackets, that may differ when it is evaluated again: calls and elements."""
_LEAVES = re.compile(r"\b(?:return|break|continue|goto)\b")


def split_at(function: Function, barrier: Node) -> Iterator[QuickFix]:
    """Yield the fix where the branch is an `if` without `else` that has the barrier as a statement, that all threads
    reach, and whose condition and variables are the same on both sides of the barrier."""
    statement = barrier.parent
    body = statement.parent if statement is not None else None
    branch = body.parent if body is not None else None
    if statement is None or body is None or branch is None or branch.type != "if_statement":
        return
    condition = branch.child_by_field_id(fields.CONDITION)
    is_whole = body.type == "compound_statement" and branch.child_by_field_id(fields.ALTERNATIVE) is None
    if condition is None or not is_whole:
        return
    if any(depends_on_thread(function, outer) for outer in conditions_around(function, branch)):
        return
    before = [node for node in body.named_children if node.end_byte <= statement.start_byte]
    after = [node for node in body.named_children if node.start_byte >= statement.end_byte]
    if before and _stays(function, condition, before):
        indent = indentation(function, branch)
        again = f"\n{indent}if {function.source(condition)} {{" if after else ""
        text = f"\n{indent}}}\n{indent}{function.source(statement)}{again}"
        end = statement.end_byte if after else body.end_byte
        edit = TextEdit(function.file.parsed.span(before[-1].end_byte, end), text)
        yield QuickFix("Move the barrier out of the branch", (edit,), False)


def _stays(function: Function, condition: Node, before: list[Node]) -> bool:
    """Check that the statements before the barrier declare nothing, leave nothing and keep the condition's value."""
    text, done = function.source(condition).strip()[1:-1], "\n".join(map(function.source, before))
    if _UNSTABLE.search(text) or _LEAVES.search(done) or any(node.type == "declaration" for node in before):
        return False
    names = "|".join(map(re.escape, _NAME.findall(text)))
    changed = rf"\b(?:{names})\b\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--|&)\s*(?:{names})\b"
    return not names or re.search(changed, done) is None
