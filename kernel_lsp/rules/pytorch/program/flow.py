"""Follow calls and values through the functions of a file: what a call runs, what it may return, what its callers give
a parameter, what an attribute holds, and whether code runs in each step of a training."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from kernel_lsp.rules.pytorch.program.functions import Function, FunctionNode
from kernel_lsp.rules.pytorch.program.scopes import Scope
from kernel_lsp.rules.rule import words

MAX_HOPS = 8
"""Maximum calls and assignments that a value is followed through."""
Value = tuple[ast.expr, Scope]
"""An expression, and the scope that computes it."""
Result = TypeVar("Result")
_KEEPS_OBJECT = ("to", "cuda", "cpu", "half", "float", "bfloat16", "eval", "train", "requires_grad_")
_WRAPPERS = ("compile", "DataParallel", "DistributedDataParallel", "ModuleList", "list", "tuple", "iter", "reversed")
"""Functions and classes whose results are looked at as their first argument."""
_COMMON = words(
    """
    add append backward clear close copy count cpu cuda detach eval extend forward get insert item items keys load log
    max mean min numpy open pop put read remove reset run save size sort split step sum to train update values view
    write zero_grad
    """
)
"""Methods of tensors, containers and others that name no function of the file unless their object's class is known."""


def once(scope: Scope, key: tuple, read: Callable[[], Result], meanwhile: Result) -> Result:
    """Return a result that is computed once. What it is asked for meanwhile, in a circle, is the value for that."""
    if key not in scope.followed:
        scope.followed[key] = meanwhile
        scope.followed[key] = read()
    found: Result = scope.followed[key]
    return found


def called_name(call: ast.expr) -> str:
    """Return the last component of a callee's name, "" for what is no call."""
    if not isinstance(call, ast.Call):
        return ""
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def mode_set(call: ast.Call) -> str:
    """Return ``eval`` for ``model.eval()`` and ``model.train(False)``, the called name for others."""
    name = called_name(call)
    mode = call.args[0] if call.args and name == "train" else None
    return "eval" if isinstance(mode, ast.Constant) and mode.value is False else name


def callees(call: ast.Call, scope: Scope) -> list[Function]:
    """Return the functions of the file that a call runs."""
    return once(scope, ("callees", id(call)), lambda: _callees(call, scope), [])


def _callees(call: ast.Call, scope: Scope) -> list[Function]:
    name = called_name(call)
    root = scope.dotted(call.func).partition(".")[0]
    if not name or root == "torch" or root in scope.names.imported:
        return []
    if isinstance(call.func, ast.Name):
        if name in scope.functions.classes:
            return method_of(name, "__init__", scope)
        found = [each for each in scope.functions.named.get(name, []) if each.owner is None]
        return found or _forward_of(class_of(call.func, scope), scope)
    if not isinstance(call.func, ast.Attribute):
        return []
    owner = class_of(call.func.value, scope)
    if owner:
        return method_of(owner, name, scope) or _forward_of(class_of(call.func, scope), scope)
    found = [each for each in scope.functions.named.get(name, []) if each.owner is not None]
    return found if len(found) == 1 and name not in _COMMON and not scope.is_tensor(call.func.value) else []


def _forward_of(name: str, scope: Scope) -> list[Function]:
    return (method_of(name, "forward", scope) or method_of(name, "__call__", scope)) if name else []


def method_of(class_name: str, method: str, scope: Scope) -> list[Function]:
    """Return a method of a class of the file, also of its bases there."""
    node = scope.functions.classes.get(class_name)
    for _ in range(MAX_HOPS):
        if node is None:
            return []
        found = [each for each in scope.functions.named.get(method, []) if each.owner is node]
        if found:
            return found
        bases = [scope.functions.classes.get(base.id) for base in node.bases if isinstance(base, ast.Name)]
        node = next((base for base in bases if base is not None), None)
    return []


def callers(scope: Scope) -> list[tuple[ast.Call, Scope]]:
    """Return the calls of a scope's function in the file, with their scopes."""
    return once(scope, ("callers",), lambda: list(_callers(scope)), [])


def _callers(scope: Scope) -> Iterator[tuple[ast.Call, Scope]]:
    function = scope.function
    if function is None or not function.name:
        return
    name = function.owner.name if function.owner is not None and function.name == "__init__" else function.name
    for each in scope.functions.calling.get(name, []):
        caller = scope.program.scope_of(each)
        for call in caller.calls:
            if called_name(call) == name and function in callees(call, caller):
                yield call, caller


def bound(call: ast.Call, function: Function) -> list[tuple[str, ast.expr]]:
    """Return the parameters of a function with what a call gives them. `*args` and `**kwargs` take the rest."""
    if isinstance(function.node, ast.Module):
        return []
    given = function.node.args
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    decorators = [ast.unparse(each) for each in function.node.decorator_list]
    if function.owner is not None and "staticmethod" not in decorators:
        names = names[1:]
    rest = "" if given.vararg is None else given.vararg.arg
    pairs = [(names[i] if i < len(names) else rest, each) for i, each in enumerate(call.args)]
    known = {*names, *(each.arg for each in given.kwonlyargs)}
    others = "" if given.kwarg is None else given.kwarg.arg
    pairs += [(each.arg if each.arg in known else others, each.value) for each in call.keywords if each.arg]
    return [(name, each) for name, each in pairs if name and not isinstance(each, ast.Starred)]


def given(name: str, scope: Scope) -> list[Value]:
    """Return what the file's calls of the scope's function give for a parameter."""
    function = scope.function
    if function is None or name not in scope.parameters:
        return []
    calls = callers(scope)
    return [(value, caller) for call, caller in calls for taker, value in bound(call, function) if taker == name]


def returned(call: ast.Call, scope: Scope) -> list[Value]:
    """Return what the functions that a call runs return."""
    found: list[Value] = []
    for function in callees(call, scope):
        inner = scope.program.scope_of(function) if function.name != "__init__" else None
        for statement in inner.statements if inner is not None else ():
            if isinstance(statement, ast.Return) and statement.value is not None and inner is not None:
                found.append((statement.value, inner))
    return found


def stored(attribute: str, class_name: str, scope: Scope) -> list[Value]:
    """Return what the methods of a class assign to an attribute of `self`."""
    return once(scope, ("stored", attribute, class_name), lambda: _stored(attribute, class_name, scope), [])


def _stored(attribute: str, class_name: str, scope: Scope) -> list[Value]:
    found: list[Value] = []
    for function in scope.functions.storing.get(attribute, []) if class_name else ():
        if function.owner is not None and function.owner.name == class_name:
            inner = scope.program.scope_of(function)
            for statement in inner.statements:
                found += [(each, inner) for each in _assigned_to(f"self.{attribute}", statement)]
    return found


def _assigned_to(target: str, statement: ast.stmt) -> Iterator[ast.expr]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    value, name = getattr(statement, "value", None), target.rpartition(".")[2]
    if not isinstance(value, ast.expr):
        return
    for each in targets:
        if isinstance(each, ast.Attribute) and each.attr == name and ast.unparse(each) == target:
            yield value
        elif isinstance(each, ast.Tuple) and isinstance(value, ast.Tuple) and len(each.elts) == len(value.elts):
            pairs = zip(each.elts, value.elts, strict=True)
            yield from (part for one, part in pairs if ast.unparse(one) == target)


def values(node: ast.expr, scope: Scope) -> list[Value]:
    """Return what an expression may be, one step back: the values of a name at its use, those of an attribute, those
    that a function of the file returns, or the parts of a tuple or dict that are chosen."""
    return once(scope, ("values", id(node)), lambda: list(_values(node, scope)), [])


def _values(node: ast.expr, scope: Scope) -> Iterator[Value]:
    match node:
        case ast.Name(id=name):
            above = [each for each in scope.assigned.get(name, ()) if each.lineno < node.lineno]
            if above:
                last = max(above, key=lambda each: each.lineno)
                yield from _unpacked(last, name, scope)
            else:
                yield from given(name, scope)
        case ast.Attribute(value=owner, attr=attribute):
            yield from stored(attribute, class_of(owner, scope), scope)
            yield from _given_to_field(owner, attribute, scope)
        case ast.Call():
            yield from returned(node, scope)
        case ast.Subscript(value=inner, slice=ast.Constant(value=key)):
            for whole, where in origins(inner, scope):
                part = _part(whole, key)
                if part is not None:
                    yield part, where
        case ast.IfExp(body=body, orelse=orelse):
            yield from ((body, scope), (orelse, scope))


def _given_to_field(owner: ast.expr, attribute: str, scope: Scope) -> Iterator[Value]:
    """Yield what calls of a record's class, which has fields and no constructor of its own, give for a field."""
    fields = record_fields(class_of(owner, scope), scope)
    for made, where in origins(owner, scope) if attribute in fields else ():
        if isinstance(made, ast.Call) and record_fields(called_name(made), where) == fields:
            named = {each.arg: each.value for each in made.keywords if each.arg}
            given = dict(zip(fields, made.args, strict=False)) | named
            yield from ((given[name], where) for name in (attribute,) if name in given)


def record_fields(class_name: str, scope: Scope) -> list[str]:
    """Return the fields of a class of the file that is a named tuple or a data class; none for others."""
    node = scope.functions.classes.get(class_name)
    if node is None or method_of(class_name, "__init__", scope):
        return []
    notes = " ".join(ast.unparse(each) for each in (*node.bases, *node.decorator_list))
    named = (each.target for each in node.body if isinstance(each, ast.AnnAssign))
    return [each.id for each in named if isinstance(each, ast.Name)] if _RECORD.search(notes) else []


_RECORD = re.compile(r"\b(?:NamedTuple|dataclass|TypedDict)\b")


def _part(whole: ast.expr, key: object) -> ast.expr | None:
    if isinstance(whole, ast.Tuple | ast.List) and isinstance(key, int) and key < len(whole.elts):
        return whole.elts[key]
    if isinstance(whole, ast.Dict):
        pairs = zip(whole.keys, whole.values, strict=True)
        return next((value for name, value in pairs if isinstance(name, ast.Constant) and name.value == key), None)
    return None


def _unpacked(value: ast.expr, name: str, scope: Scope) -> Iterator[Value]:
    """Yield a name's value, which is a part of a tuple in ``loss, hits = step(x)``."""
    parent = scope.parents.get(id(value))
    target = parent.targets[0] if isinstance(parent, ast.Assign) else None
    if not isinstance(target, ast.Tuple):
        yield value, scope
        return
    names = [each.id if isinstance(each, ast.Name) else "" for each in target.elts]
    for whole, where in origins(value, scope) if name in names else ():
        part = _part(whole, names.index(name))
        if part is not None:
            yield part, where


def origins(node: ast.expr, scope: Scope) -> list[Value]:
    """Return the expressions that compute a value: names, parameters, attributes and calls of the file's functions are
    followed to their ends. The node itself is one where nothing leads further."""
    found: list[Value] = []
    waiting = [(node, scope, 0)]
    seen: set[int] = set()
    while waiting:
        each, where, hops = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        further = values(each, where) if hops < MAX_HOPS else []
        for inner, there in further:
            waiting.append((inner, there, hops + 1))
        if not further:
            found.append((each, where))
    return found


def class_of(node: ast.expr, scope: Scope) -> str:
    """Return the class of the file whose object the expression is, or the objects that it is a container of."""
    return once(scope, ("class", id(node)), lambda: _class_of(node, scope), "")


def _class_of(node: ast.expr, scope: Scope) -> str:
    match node:
        case ast.Name(id="self"):
            return scope.function.owner.name if scope.function and scope.function.owner else ""
        case ast.Name(id=name):
            annotated = _annotation(name, scope)
            if annotated and annotated in scope.functions.classes:
                return annotated
            sources = [iterated(each, name, scope) for each in scope.assigned.get(name, ())]
            found = [class_of(each, scope) for each in sources if each is not None and each is not node]
            found += [class_of(each, where) for each, where in values(node, scope) if each is not node]
            return next(filter(None, found), "")
        case ast.Subscript(value=whole):
            return _class_of_values(node, scope) or class_of(whole, scope)
        case ast.Attribute() | ast.IfExp():
            return _class_of_values(node, scope)
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method in _KEEPS_OBJECT:
            return class_of(inner, scope)
        case ast.Call(args=[first, *_]) if called_name(node) in _WRAPPERS:
            return class_of(first, scope)
        case ast.Call(func=ast.Name(id=name)) if name in scope.functions.classes:
            return name
        case ast.Call():
            return next(filter(None, (class_of(each, where) for each, where in returned(node, scope))), "")
        case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) | ast.List(elts=[element, *_]):
            return class_of(element, scope)
    return ""


def _class_of_values(node: ast.expr, scope: Scope) -> str:
    return next(filter(None, (class_of(each, where) for each, where in values(node, scope))), "")


def _annotation(name: str, scope: Scope) -> str:
    if not isinstance(scope.node, FunctionNode):
        return ""
    arguments = scope.node.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    note = next((each.annotation for each in every if each.arg == name), None)
    return ast.unparse(note).strip("'\"").removesuffix(" | None") if note is not None else ""


def iterated(value: ast.expr, name: str, scope: Scope) -> ast.expr | None:
    """Return what a loop takes a name's values from: ``stats`` for `v` in ``for s, v in zip(sums, stats)``."""
    parent = scope.parents.get(id(value))
    if not isinstance(parent, ast.For | ast.comprehension) or parent.iter is not value:
        return None
    match value, parent.target:
        case ast.Call(func=ast.Name(id="zip"), args=parts), ast.Tuple(elts=targets) if len(parts) == len(targets):
            pairs = zip(parts, targets, strict=True)
            return next((part for part, each in pairs if isinstance(each, ast.Name) and each.id == name), None)
        case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]), ast.Tuple(elts=[_, ast.Name(id=last)]):
            return inner if last == name else None
        case ast.Call(func=ast.Attribute(value=inner, attr="items"), args=[]), ast.Tuple(elts=[_, ast.Name(id=last)]):
            return inner if last == name else None
        case ast.Call(func=ast.Attribute(value=inner, attr="values"), args=[]), ast.Name():
            return inner
    return value


def uses(root: ast.AST, scope: Scope) -> frozenset[str]:
    """Return the names that code calls, itself and through functions of the file, and ``in a loop: name`` for those
    that an inner loop calls."""
    return once(scope, ("uses", id(root)), lambda: frozenset(_uses(root, scope)), frozenset())


IN_LOOP = "in a loop: "


def _uses(root: ast.AST, scope: Scope) -> Iterator[str]:
    for each in getattr(root, "decorator_list", ()):
        yield ast.unparse(each.func if isinstance(each, ast.Call) else each).rpartition(".")[2]
    for call in scope.calls:
        around: list[ast.AST] = []
        for parent in scope.around(call):
            around.append(parent)
            if parent is root:
                break
        if not around or around[-1] is not root:
            continue
        found = {mode_set(call)}
        for function in callees(call, scope):
            inner = scope.program.scope_of(function)
            found |= uses(inner.node, inner)
        yield from found
        if any(isinstance(parent, ast.For | ast.While) for parent in around[:-1]):
            yield from (IN_LOOP + name for name in found if not name.startswith(IN_LOOP))


def is_step(loop: ast.AST, scope: Scope) -> bool:
    """Return whether each iteration of a loop is one step of a training, not an epoch of steps."""
    used = uses(loop, scope)
    return "backward" in used and IN_LOOP + "backward" not in used


def is_conditional(node: ast.AST, scope: Scope, root: ast.AST | None = None) -> bool:
    """Return whether code runs under a condition in its function or in `root`, or in a handler of an error."""
    child = node
    for parent in scope.around(node):
        if isinstance(parent, ast.ExceptHandler):
            return True
        if isinstance(parent, ast.If | ast.IfExp) and child is not parent.test:
            return True
        if parent is root:
            return False
        child = parent
    return False


def runs_each_step(scope: Scope) -> bool:
    """Return whether the file calls the scope's function, directly or through others, in each step of a training."""
    return once(scope, ("each step",), lambda: any(_is_called_each_step(*each) for each in callers(scope)), False)


def _is_called_each_step(call: ast.Call, caller: Scope) -> bool:
    loop = caller.loop_around(call)
    if is_conditional(call, caller, loop):
        return False
    return runs_each_step(caller) if loop is None else is_step(loop, caller)
