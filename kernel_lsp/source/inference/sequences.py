"""Propose constructor arguments that are lists or tuples: their annotation or what the constructor does with them says
so."""

from __future__ import annotations

import ast
from collections.abc import Callable

from kernel_lsp.source.pragma import AnnotationKind, annotation_kind, last_name, unquoted
from kernel_lsp.source.python_file import FunctionNode, Parameter

SEQUENCES = {
    **dict.fromkeys(("list", "List", "Sequence", "Iterable", "MutableSequence"), "[]"),
    **dict.fromkeys(("tuple", "Tuple"), "()"),
}
"""Brackets of an example by the last part of an annotation's name."""
N_PARTS = 2
"""Parts of an example where neither the annotation nor the constructor fixes their number."""
MAX_PARTS = 16
"""Maximum parts of an example; a larger constant index is taken for a key."""
READ_AS_WHOLE = ("len", "enumerate", "zip", "sum", "list", "tuple", "reversed")
"""Functions that take a sequence."""


def kind_of(annotation: ast.expr | None) -> AnnotationKind:
    """Return the kind of value that an annotation declares: of ``Optional[float]`` and ``float | None``, a float."""
    return annotation_kind(_without_none(unquoted(annotation)))


def sequence_example(constructor: FunctionNode, parameter: Parameter, guess: Callable[[str, str], str]) -> str | None:
    """Return an example of a list or a tuple, ``[1024, 1024]``; None for an argument that is none. `guess` returns an
    example of a part by a name and a kind."""
    node = _without_none(unquoted(parameter.annotation))
    uses = _Uses(constructor, parameter.name)
    name = last_name(node.value if isinstance(node, ast.Subscript) else node) if node is not None else ""
    brackets = SEQUENCES.get(name) or ("[]" if node is None and uses.is_sequence else "")
    if not brackets:
        return None
    declared = _declared_parts(node)
    kinds = [kind_of(each) for each in declared]
    if len(kinds) < 2:
        kinds = (kinds or ["none"]) * (uses.n_parts or N_PARTS)
    one = parameter.name[:-1] if parameter.name.endswith("s") else parameter.name
    parts = ", ".join(guess(one, kind) for kind in kinds)
    return f"{brackets[0]}{parts}{',' * (brackets == '()' and len(kinds) == 1)}{brackets[1]}"


def _without_none(node: ast.expr | None) -> ast.expr | None:
    """Return the annotation without None as an alternative."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        sides = [side for side in (node.left, node.right) if not _is_none(side)]
        return _without_none(sides[0]) if len(sides) == 1 else node
    if isinstance(node, ast.Subscript) and last_name(node.value) in ("Optional", "Union"):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        others = [part for part in parts if not _is_none(part)]
        return _without_none(others[0]) if len(others) == 1 else node
    return node


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _declared_parts(node: ast.expr | None) -> list[ast.expr]:
    """Return the annotations of the parts: one where it holds for all, as in ``tuple[int, ...]``."""
    if not isinstance(node, ast.Subscript):
        return []
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return [part for part in parts if not (isinstance(part, ast.Constant) and part.value is ...)]


class _Uses:
    """Finds what a constructor does with an argument. `n_parts` is the least number of parts it needs, 0 if unknown."""

    def __init__(self, constructor: FunctionNode, name: str) -> None:
        self._name = name
        self.is_sequence, self.n_parts = False, 0
        for node in ast.walk(constructor):
            self._read(node)

    def _read(self, node: ast.AST) -> None:
        match node:
            case ast.Subscript(value=value, slice=ast.Constant(value=int(index))) if self._is(value):
                self._found(index + 1)
            case ast.Subscript(
                value=value, slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(index)))
            ) if self._is(value):
                self._found(max(index, N_PARTS))
            case ast.Subscript(value=value, slice=ast.Slice()) if self._is(value):
                self._found(0)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value) if self._is(value):
                self._found(len(targets))
            case ast.For(iter=value) | ast.comprehension(iter=value) if self._is(value):
                self._found(0)
            case ast.Call(func=ast.Name(id=called), args=given) if called in READ_AS_WHOLE and any(
                map(self._is, given)
            ):
                self._found(0)

    def _is(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self._name

    def _found(self, n_parts: int) -> None:
        if n_parts <= MAX_PARTS:
            self.is_sequence = True
            self.n_parts = max(self.n_parts, n_parts)
