"""Declare the rules of this language, and share short helpers among them."""

from __future__ import annotations

import ast

from kernel_lsp.core.finding import Severity
from kernel_lsp.core.words import fitted
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.pytorch.program.scopes import Scope
from kernel_lsp.rules.rule import Declare, Hit

declare = Declare("pytorch")
ERROR, WARNING, INFORMATION, HINT = Severity.ERROR, Severity.WARNING, Severity.INFORMATION, Severity.HINT
LOOP_WORDS = "for while"
CALLED = r"[\s\\]*\("
"""Pattern of the text between a callee's name and its arguments."""
_MAX_TITLE = 60


def hit(scope: Scope, node: ast.expr | ast.stmt, message: str, *fixes: QuickFix) -> Hit:
    return Hit(scope.module.range(node), message, fixes)


def rewrite(scope: Scope, node: ast.expr, new_text: str) -> QuickFix:
    """Return a safe fix that replaces `node` with `new_text`."""
    return QuickFix(f"Replace with `{fitted(new_text, _MAX_TITLE)}`", (scope.module.replace(node, new_text),), True)


def unsafe_rewrite(scope: Scope, node: ast.expr, new_text: str) -> QuickFix:
    """Return a fix like that of `rewrite` that needs a person's judgement."""
    return QuickFix(f"Replace with `{fitted(new_text, _MAX_TITLE)}`", (scope.module.replace(node, new_text),), False)


def is_number(node: ast.expr | None, value: float) -> bool:
    """Return whether the node is this number as a literal."""
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value == value


def integer(node: ast.expr | None) -> int | None:
    """Return the value of an integer literal, including negative ones. None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = integer(node.operand)
        return None if value is None else -value
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None
