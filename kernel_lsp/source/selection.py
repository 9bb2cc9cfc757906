"""Analyse selected lines of a function: their statements and data flow. Uses `ast` only."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kernel_lsp.errors import TargetError
from kernel_lsp.source.python_file import FunctionNode, PythonFile

_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return, ast.Assert, ast.Pass)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_CANNOT_MOVE = (ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.Delete, ast.AsyncFor, ast.AsyncWith)


@dataclass(frozen=True)
class OwnUse:
    """A use of an attribute of ``self``: ``self.norm.weight`` has the paths ``norm`` and ``norm.weight``, each with its
    node."""

    nodes: tuple[tuple[str, ast.Attribute], ...]

    @property
    def path(self) -> str:
        """Return the full path."""
        return self.nodes[-1][0]


@dataclass(frozen=True)
class Selection:
    """Whole statements of one block. `inputs` are the local names that they use, in order of use; `outputs` are names
    that they assign and the rest of the function uses. With `returns` the last one is a `return`."""

    function: FunctionNode
    statements: tuple[ast.stmt, ...]
    inputs: tuple[str, ...]
    own: tuple[OwnUse, ...]
    outputs: tuple[str, ...]
    returns: bool
    own_name: str = "self"

    @property
    def first_line(self) -> int:
        return self.statements[0].lineno

    @property
    def last_line(self) -> int:
        return self.statements[-1].end_lineno or self.statements[-1].lineno


def select(source: PythonFile, symbol: str, first_line: int, last_line: int) -> Selection:
    """Return the statements of `symbol` (of its `forward`, for a class) in the lines, 1-based and inclusive; a
    partially selected statement is included whole. Raises TargetError when they cannot form a function."""
    function, own_name = _function(source, symbol)
    statements = [s for s in _of_block(function.body, first_line, last_line) if not _is_docstring(s)]
    if not statements:
        raise _error(source, first_line, f"no statement of {symbol} is in these lines", "select whole statements of it")
    _check_movable(source, statements)
    outside = _outside(function, statements)
    bound = _parameters(function) | {name for statement in outside for name in _stored(statement)}
    flow = _Flow(statements, bound - {own_name})
    used = _used_outside(function, statements)
    outputs = [name for name in flow.assigned if name in used]
    _check_bound(source, statements, flow, outputs, bound)
    selection = Selection(
        function=function,
        statements=tuple(statements),
        inputs=(*flow.inputs, *(n for n in outputs if n not in flow.definite and n not in flow.inputs)),
        own=tuple(_own_uses(source, statements, own_name)),
        outputs=tuple(outputs),
        returns=isinstance(statements[-1], ast.Return),
        own_name=own_name,
    )
    if not selection.outputs and not selection.returns:
        next_step = "select also the line that uses their result, or returns it"
        raise _error(source, selection.first_line, "nothing that these lines compute is used after them", next_step)
    return selection


def _function(source: PythonFile, symbol: str) -> tuple[FunctionNode, str]:
    """Return the function, and its name for `self`, empty for a plain function."""
    node = source.definition(symbol)
    if isinstance(node, ast.ClassDef):
        node = source.definition(f"{symbol}.forward")
    if not isinstance(node, FunctionNode):
        raise _error(source, 1, f"there is no function '{symbol}'", "select lines of a function or of a forward")
    is_method = not any(node is top for top in source.tree.body)
    arguments = [*node.args.posonlyargs, *node.args.args]
    return node, arguments[0].arg if is_method and arguments else ""


def _of_block(body: Sequence[ast.stmt], first: int, last: int) -> Sequence[ast.stmt]:
    """Return the selected statements of the innermost block that contains the lines."""
    hit = [statement for statement in body if statement.lineno <= last and (statement.end_lineno or 0) >= first]
    if len(hit) == 1 and not isinstance(hit[0], _SCOPES):
        for block in _blocks(hit[0]):
            if block[0].lineno <= first and last <= (block[-1].end_lineno or 0):
                return _of_block(block, first, last)
    return hit


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if block:
            yield block
    for handler in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield handler.body


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _check_movable(source: PythonFile, statements: Sequence[ast.stmt]) -> None:
    for node in _walk(statements):
        is_early_return = isinstance(node, ast.Return) and node is not statements[-1]
        if is_early_return or isinstance(node, _CANNOT_MOVE):
            what = type(node).__name__.lower()
            line = getattr(node, "lineno", statements[0].lineno)
            raise _error(source, line, f"lines with '{what}' cannot be a function of their own", "select other lines")
    if any(_leaves_loop(statement) for statement in statements):
        message = "a `break` or `continue` here is of a loop outside of the selected lines"
        raise _error(source, statements[0].lineno, message, "select the whole loop")


def _leaves_loop(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Break | ast.Continue):
        return True
    if isinstance(statement, ast.For | ast.While | ast.FunctionDef | ast.ClassDef):
        return False
    return any(_leaves_loop(inner) for block in _blocks(statement) for inner in block)


class _Flow:
    """Track names through the statements in order. `inputs` are read before they are definitely assigned."""

    def __init__(self, statements: Sequence[ast.stmt], bound: set[str]) -> None:
        self.inputs: list[str] = []
        self.assigned: list[str] = []
        self.definite: set[str] = set()
        for statement in statements:
            for name in _loaded(statement):
                if name in bound and name not in self.definite and name not in self.inputs:
                    self.inputs.append(name)
            self.assigned += [name for name in _stored(statement) if name not in self.assigned]
            self.definite |= _surely_stored(statement)


def _check_bound(
    source: PythonFile, statements: Sequence[ast.stmt], flow: _Flow, outputs: Sequence[str], bound: set[str]
) -> None:
    for name in outputs:
        if name not in flow.definite and name not in bound:
            message = f"'{name}' is assigned in a branch of these lines only"
            raise _error(source, statements[0].lineno, message, f"select also where '{name}' is assigned before")


def _outside(function: FunctionNode, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return the unselected simple statements and headers of the function, as statements without blocks."""
    found: list[ast.stmt] = []
    stack = list(function.body)
    while stack:
        statement = stack.pop()
        if any(statement is selected for selected in statements):
            continue
        inner = [each for block in _blocks(statement) for each in block] if not isinstance(statement, _SCOPES) else []
        stack += inner
        found.append(_header(statement) if inner else statement)
    return found


def _header(statement: ast.stmt) -> ast.stmt:
    """Return a compound statement without the contents of its blocks."""
    fields = {name: value for name, value in ast.iter_fields(statement) if not _is_block(value)}
    header = type(statement)(**fields)
    for name, value in ast.iter_fields(statement):
        if _is_block(value):
            setattr(header, name, [])
    return ast.copy_location(header, statement)


def _is_block(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], ast.stmt | ast.ExceptHandler)


def _used_outside(function: FunctionNode, statements: Sequence[ast.stmt]) -> set[str]:
    """Return the names read after the statements and, if they are in a loop, also before them."""
    last = statements[-1].end_lineno or statements[-1].lineno
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For | ast.While)]
    is_in_loop = any(_contains(loop, statements[0]) for loop in loops)
    others = [each for each in _outside(function, statements) if is_in_loop or each.lineno > last]
    return {name for each in others for name in _loaded(each)}


def _contains(loop: ast.For | ast.While, statement: ast.stmt) -> bool:
    return any(inner is statement for inner in ast.walk(loop)) and loop is not statement


def _loaded(statement: ast.stmt) -> list[str]:
    """Return the names read, each once, in text order, without variables of comprehensions."""
    own = {n.id for c in _walk([statement]) if isinstance(c, _COMPREHENSIONS) for g in c.generators for n in _names(g)}
    nodes = [node for node in _walk([statement]) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    nodes += [n.target for n in _walk([statement]) if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)]
    nodes.sort(key=lambda node: (node.lineno, node.col_offset))
    return list(dict.fromkeys(node.id for node in nodes if node.id not in own))


def _names(generator: ast.comprehension) -> list[ast.Name]:
    return [node for node in ast.walk(generator.target) if isinstance(node, ast.Name)]


def _stored(statement: ast.stmt) -> list[str]:
    """Return the names assigned in the function's own scope, in text order."""
    found: list[str] = []
    stack: list[ast.AST] = [statement]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.append(node.id)
        if not isinstance(node, (*_SCOPES, *_COMPREHENSIONS)):
            stack += reversed(list(ast.iter_child_nodes(node)))
    return list(dict.fromkeys(found))


def _surely_stored(statement: ast.stmt) -> set[str]:
    """Return the names assigned on every path through the statement."""
    if isinstance(statement, (*_SIMPLE, ast.FunctionDef, ast.ClassDef)):
        return set(_stored(statement))
    if isinstance(statement, ast.With):
        inside = set().union(*(_surely_stored(inner) for inner in statement.body))
        return inside | set(_stored(_header(statement)))
    if isinstance(statement, ast.If) and statement.orelse:
        ways = [set().union(*map(_surely_stored, block)) for block in (statement.body, statement.orelse)]
        return ways[0] & ways[1]
    return set()


def _parameters(function: FunctionNode) -> set[str]:
    arguments = function.args
    every: Iterable[ast.arg | None] = (
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    )
    return {argument.arg for argument in every if argument is not None}


def _own_uses(source: PythonFile, statements: Sequence[ast.stmt], own_name: str) -> Iterator[OwnUse]:
    parents = {id(child): node for node in _walk(statements) for child in ast.iter_child_nodes(node)}
    for node in _walk(statements):
        if not own_name or not isinstance(node, ast.Name) or node.id != own_name:
            continue
        nodes: list[tuple[str, ast.Attribute]] = []
        inner: ast.AST = node
        while isinstance(parent := parents.get(id(inner)), ast.Attribute) and isinstance(parent.ctx, ast.Load):
            nodes.append((".".join([*(path for path, _ in nodes[-1:]), parent.attr]), parent))
            inner = parent
        if not nodes:
            message = f"these lines use '{own_name}' itself, or assign something of it"
            raise _error(source, node.lineno, message, "select lines that read its tensors and numbers only")
        yield OwnUse(tuple(nodes))


def _walk(statements: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    for statement in statements:
        yield from ast.walk(statement)


def _error(source: PythonFile, line: int, message: str, next_step: str) -> TargetError:
    return TargetError(message, file=source.file, line=line, next_step=next_step)
