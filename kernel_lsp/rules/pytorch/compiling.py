"""KL169 and KL174: code that is compiled again and again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.rules.pytorch.declare import INFORMATION, WARNING, declare, hit
from kernel_lsp.rules.pytorch.program import flow
from kernel_lsp.rules.pytorch.program.file_names import ModuleClass
from kernel_lsp.rules.pytorch.program.parsing import nodes_in, nodes_of
from kernel_lsp.rules.pytorch.program.scopes import Scope, keyword
from kernel_lsp.rules.pytorch.program.trained import holds_steps
from kernel_lsp.rules.rule import Hit


@declare(
    "KL169",
    "compile-in-loop",
    WARNING,
    needs=("compile script trace",),
    summary="A model is compiled in each round of a loop, or in a forward",
    why="""
    `torch.compile` wraps the function anew: guards are checked and often code is generated again, which takes seconds.
    Compile once, before the loop.
    """,
    bad="""
    import torch

    def run(model, batches):
        for x in batches:
            torch.compile(model)(x)
    """,
    good="""
    import torch

    def run(model, batches):
        compiled = torch.compile(model)
        for x in batches:
            compiled(x)
    """,
)
def compile_in_loop(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        if scope.dotted(call.func) not in ("torch.compile", "torch.jit.script", "torch.jit.trace"):
            continue
        loop = scope.loop_around(call)
        counted = {n.id for n in nodes_of(loop.target, ast.Name)} if isinstance(loop, ast.For) else set()
        used = {n.id for n in nodes_of(call, ast.Name)}
        if (loop is not None and not used & counted) or (scope.is_forward and scope.owner is not None):
            yield hit(scope, call, "compiled again each time: compile once, before the loop")


@declare(
    "KL174",
    "recompile-each-step",
    INFORMATION,
    needs=("self for while",),
    summary="A number that changes in each step is a constant of compiled code",
    why="""
    `torch.compile` guards on the numbers that a module keeps, and with `dynamic=False` on those that a function gets:
    each new value compiles again, and after eight versions the code runs in eager mode. Keep the number in a tensor.
    """,
    bad="""
    import torch
    from torch import nn

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = 0

        def forward(self, x):
            self.step += 1
            return x / self.step

    model = torch.compile(Scale())
    """,
    good="""
    import torch
    from torch import nn

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("step", torch.zeros(()))

        def forward(self, x):
            self.step += 1
            return x / self.step

    model = torch.compile(Scale())
    """,
)
def recompile_each_step(scope: Scope) -> Iterator[Hit]:
    owner = scope.owner if scope.module.mentions("compile") else None
    if owner is not None and getattr(scope.node, "name", "") in owner.forward_methods and _is_compiled(scope):
        read = [n for n in scope.attributes if isinstance(n.value, ast.Name) and n.value.id == "self"]
        for name in dict.fromkeys(n.attr for n in read if n.attr not in owner.submodules):
            if _changes(name, owner.node.name, scope):
                first = next(n for n in read if n.attr == name)
                yield hit(scope, first, f"`self.{name}` changes in each step: compiled code has it as a constant")
    for call in scope.calls if scope.module.mentions("dynamic=False") else ():
        changing = next((each for each in call.args if _counts(each, scope)), None)
        if changing is not None and _is_static(call, scope):
            yield hit(scope, changing, "a number that changes in each step compiles again: give a tensor")


def _is_compiled(scope: Scope) -> bool:
    """Return whether the file compiles the module of a method, one that contains it, or one that it does not name."""
    for function in scope.functions.calling.get("compile", []):
        caller = scope.program.scope_of(function)
        for call in caller.calls:
            if flow.called_name(call) != "compile" or not isinstance(call.func, ast.Attribute):
                continue
            is_function = caller.dotted(call.func) == "torch.compile"
            made = flow.class_of(call.args[0] if is_function and call.args else call.func.value, caller)
            whole = scope.names.classes.get(made)
            if not made or (whole is not None and _contains(whole, scope, 0)):
                return True
    return False


def _contains(whole: ModuleClass, scope: Scope, depth: int) -> bool:
    parts = [scope.names.classes[name] for name in whole.submodules.values() if name in scope.names.classes]
    is_listed = scope.owner is not None and f"{scope.owner.node.name}(" in ast.unparse(whole.node)
    return whole is scope.owner or is_listed or (depth < 4 and any(_contains(e, scope, depth + 1) for e in parts))


def _changes(attribute: str, class_name: str, scope: Scope) -> bool:
    """Return whether an attribute begins as a number, and code that runs repeatedly assigns others."""
    values = [e for e, w in flow.stored(attribute, class_name, scope) if w.function and w.function.name == "__init__"]
    if not any(isinstance(each, ast.Constant) and type(each.value) in (int, float) for each in values):
        return False
    for function in scope.functions.storing.get(attribute, []):
        inner = scope.program.scope_of(function)
        for statement in inner.statements if function.name != "__init__" else ():
            if not isinstance(statement, ast.Assign | ast.AugAssign):
                continue
            is_new = isinstance(statement, ast.AugAssign) or not _is_constant(statement.value)
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for each in targets if is_new and not inner.is_tensor(statement.value) else []:
                if not isinstance(each, ast.Attribute) or each.attr != attribute:
                    continue
                if flow.class_of(each.value, inner) == class_name and _is_repeated(statement, inner):
                    return True
    return False


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant | ast.Call) and not (
        isinstance(node, ast.Call) and flow.called_name(node) in ("min", "max", "float", "int", "next")
    )


def _is_repeated(node: ast.AST, scope: Scope) -> bool:
    """Return whether a loop over steps runs the code, here or where the file calls this function, or a forward."""
    loop = scope.loop_around(node)
    if loop is not None or scope.is_forward:
        return loop is None or not holds_steps(loop, scope)
    callers = flow.callers(scope)
    return flow.once(scope, ("repeated",), lambda: any(_is_repeated(*each) for each in callers), False)


def _is_static(call: ast.Call, scope: Scope) -> bool:
    """Return whether the callee is compiled with `dynamic=False`."""
    made = [each for each, _ in flow.origins(call.func, scope)]
    made += [each for f in flow.callees(call, scope) for each in getattr(f.node, "decorator_list", ())]
    calls = [each for each in made if isinstance(each, ast.Call) and scope.dotted(each.func) == "torch.compile"]
    given = [keyword(each, "dynamic") for each in calls]
    return any(isinstance(each, ast.Constant) and each.value is False for each in given)


def _counts(node: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Return whether a number follows the counter of a loop: ``step / n`` in ``for step in range(n)``."""
    if scope.is_tensor(node) or depth > flow.MAX_HOPS:
        return False
    loops = [loop for loop in scope.loops if isinstance(loop, ast.For)]
    targets = [loop.target for loop in loops if flow.called_name(loop.iter) in ("range", "enumerate")]
    firsts = [each.elts[0] if isinstance(each, ast.Tuple) else each for each in targets]
    counters = {each.id for each in firsts if isinstance(each, ast.Name)}
    for name in (each for each in nodes_in(node) if isinstance(each, ast.Name)):
        steps = (scope.parents.get(id(value)) for value in scope.assigned.get(name.id, ()))
        is_raised = any(isinstance(each, ast.AugAssign) and scope.loop_around(each) is not None for each in steps)
        if name.id in counters or is_raised:
            return True
        is_number = isinstance(node, ast.Name | ast.BinOp) or flow.called_name(node) in _NUMBERS
        if is_number and any(each is not node and _counts(each, w, depth + 1) for each, w in flow.values(name, scope)):
            return True
    return False


_NUMBERS = ("min", "max", "float", "int", "cos", "exp", "pow", "sqrt")
