"""How the rules of this language are declared, and short words that they share."""

from __future__ import annotations

import ast

from kernel_lsp.core.finding import Severity
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.pytorch.scopes import Scope
from kernel_lsp.rules.rule import Declare, Hit

declare = Declare("pytorch")
ERROR, WARNING, INFORMATION, HINT = Severity.ERROR, Severity.WARNING, Severity.INFORMATION, Severity.HINT
LOOP_WORDS = "for while"
CALLED = r"[\s\\]*\("
"""What stands behind the name of what is called, as a pattern."""


def hit(scope: Scope, node: ast.expr | ast.stmt, message: str, *fixes: QuickFix) -> Hit:
    return Hit(scope.module.range(node), message, fixes)


def rewrite(scope: Scope, node: ast.expr, new_text: str) -> QuickFix:
    """A safe fix that puts `new_text` in place of `node`."""
    return QuickFix(f"Replace with `{_shortened(new_text)}`", (scope.module.replace(node, new_text),), True)


def unsafe_rewrite(scope: Scope, node: ast.expr, new_text: str) -> QuickFix:
    """As `rewrite`, for one that a person must judge."""
    return QuickFix(f"Replace with `{_shortened(new_text)}`", (scope.module.replace(node, new_text),), False)


def is_number(node: ast.expr | None, value: float) -> bool:
    """Whether the node is this number as a literal."""
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value == value


def integer(node: ast.expr | None) -> int | None:
    """The value of an integer literal, negative ones too; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = integer(node.operand)
        return None if value is None else -value
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


_MAX_TITLE = 60


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_TITLE else text[: _MAX_TITLE - 1] + "…"
