"""KL101 to KL106: synchronizations between the CPU and the GPU."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernel_lsp.rules.pytorch.declare import INFORMATION, WARNING, declare, hit
from kernel_lsp.rules.pytorch.program import flow
from kernel_lsp.rules.pytorch.program.evidence import NAMES_MASK
from kernel_lsp.rules.pytorch.program.kinds import Kind
from kernel_lsp.rules.pytorch.program.parsing import nodes_in, nodes_of
from kernel_lsp.rules.pytorch.program.scopes import Scope, keyword
from kernel_lsp.rules.pytorch.program.trained import (
    holds_steps,
    is_for_inference,
    is_occasional,
    is_on_device,
    is_on_host,
    item_of_training,
)
from kernel_lsp.rules.pytorch.usage import turns_gradients_off
from kernel_lsp.rules.rule import Hit

_TO_HOST_METHODS = ("item", "tolist", "numpy", "cpu")
_TO_SCALAR = ("float", "int", "bool", "complex")
_DYNAMIC_FUNCTIONS = ("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount")


@declare(
    "KL101",
    "host-sync",
    WARNING,
    on="forward",
    needs=("item tolist numpy np cpu",),
    summary="A tensor is read back to the CPU in a forward",
    why="""
    `.item()`, `.tolist()`, `.numpy()` and `.cpu()` wait until the GPU has done everything before them, and then the GPU
    waits for the CPU. `torch.compile` and CUDA graphs break there. Keep the value in a tensor; read it outside.
    """,
    bad="""
    import torch

    def normalize(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().max().item()
        return x / scale
    """,
    good="""
    import torch

    def normalize(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().max()
        return x / scale
    """,
)
def host_sync(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        name = _to_host(call, scope)
        loop = scope.loop_around(call) if name else None
        is_rare = loop is not None and is_occasional(call, loop, scope, may_leave=False)
        if name and not is_rare and not _is_wanted_on_cpu(call, scope):
            yield hit(scope, call, f"`{name}` waits for the GPU at each forward: keep the value in a tensor")


@declare(
    "KL102",
    "tensor-branch",
    WARNING,
    on="forward",
    needs=("if elif while assert and or not",),
    summary="Python branches on the value of a tensor in a forward",
    why="""
    `if`, `while`, `assert`, `and`, `or`, `not` and `x if c else y` need a Python bool, so the CPU waits for the GPU,
    and `torch.compile` breaks its graph. Compute both sides and choose with `torch.where`, or decide on a shape or a
    flag.
    """,
    bad="""
    import torch

    def positive_part(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return torch.zeros_like(x)
    """,
    good="""
    import torch

    def positive_part(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 0:
            return x
        return torch.where(x.sum() > 0, x, torch.zeros_like(x))
    """,
)
def tensor_branch(scope: Scope) -> Iterator[Hit]:
    for test in scope.tests:
        if scope.is_tensor(test) and not _is_maybe_none(test, scope):
            yield hit(scope, test, "Python asks for the value of a tensor here: use `torch.where`, or a shape or flag")


@declare(
    "KL103",
    "tensor-to-scalar",
    WARNING,
    on="forward",
    needs=("float int bool complex",),
    summary="`float()`, `int()` or `bool()` of a tensor in a forward",
    why="The same wait as `.item()`, in a quieter form. Keep the value in a tensor.",
    bad="""
    import torch
    from torch import nn

    class Scale(nn.Module):
        def forward(self, x):
            return x * float(x.abs().mean())
    """,
    good="""
    import torch
    from torch import nn

    class Scale(nn.Module):
        def forward(self, x):
            n_rows = int(x.shape[0])
            return x * x.abs().mean() / n_rows
    """,
)
def tensor_to_scalar(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        name = _scalar_conversion(call, scope)
        loop = scope.loop_around(call) if name else None
        if name and not (loop is not None and is_occasional(call, loop, scope)):
            yield hit(scope, call, f"`{name}()` of a tensor waits for the GPU at each forward: keep the tensor")


@declare(
    "KL104",
    "print-tensor",
    WARNING,
    on="forward",
    needs=("print",),
    summary="A tensor is printed in a forward",
    why="Printing copies the tensor to the CPU at each call. Print its shape, or print outside of the forward.",
    bad="""
    import torch
    from torch import nn

    class Block(nn.Module):
        def forward(self, x):
            print("activations", x.mean())
            return torch.relu(x)
    """,
    good="""
    import torch
    from torch import nn

    class Block(nn.Module):
        def forward(self, x):
            print("activations", x.shape)
            return torch.relu(x)
    """,
)
def print_tensor(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        is_print = isinstance(call.func, ast.Name) and call.func.id == "print"
        if is_print and any(scope.is_tensor(part) for argument in call.args for part in _printed(argument)):
            yield hit(scope, call, "printing a tensor copies it to the CPU at each forward")


@declare(
    "KL105",
    "sync-in-loop",
    INFORMATION,
    needs=(
        "item tolist numpy cpu float int bool complex any all print isnan isfinite isinf if while log info add_scalar "
        "set_postfix update push add append",
    ),
    summary="A tensor is read back to the CPU in each round of a loop",
    why="""
    Outside a forward one `.item()` is fine, but in a loop it stops the CPU from running ahead of the GPU at each step.
    Sum up in a tensor, and read it once behind the loop or every so many steps.
    """,
    bad="""
    import torch

    def mean_loss(model, batches):
        total = 0.0
        for batch, label in batches:
            loss = torch.nn.functional.cross_entropy(model(batch), label)
            total += loss.item()
        return total
    """,
    good="""
    import torch

    def mean_loss(model, batches):
        total = torch.zeros((), device="cuda")
        for step, (batch, label) in enumerate(batches):
            loss = torch.nn.functional.cross_entropy(model(batch), label)
            total += loss.detach()
            if step % 100 == 0:
                print(loss.item())
        return total.item()
    """,
)
def sync_in_loop(scope: Scope) -> Iterator[Hit]:
    if scope.is_forward:
        return
    for call in scope.calls:
        name = _to_host(call, scope) or _scalar_conversion(call, scope) or item_of_training(call, scope)
        name = name or _condition(call, scope) or _read_by_callee(call, scope)
        if name and item_of_training(call, scope) and _is_in_comprehension(call, scope):
            yield hit(scope, call, f"`{name}` waits for the GPU in each iteration: read the values at once")
            continue
        if name and not _is_long(call, scope) and _is_repeated(call, name, scope):
            yield hit(scope, call, f"`{name}` waits for the GPU in each iteration: read the value after the loop")
    for test in scope.tests:
        if not isinstance(test, ast.BoolOp) and _asks_device(test, scope):
            yield hit(scope, test, "this condition waits for the GPU in each iteration: decide every so many steps")


@declare(
    "KL106",
    "data-dependent-shape",
    INFORMATION,
    on="forward",
    needs=(" ".join((*_DYNAMIC_FUNCTIONS, "where [")),),
    summary="The size of a result depends on values, so the CPU must wait for it",
    why="""
    A boolean mask as an index, `nonzero`, `masked_select`, `unique` and `torch.where` with one argument give as many
    elements as the data says: the CPU waits for the count, and `torch.compile` breaks its graph. Keep the full shape
    and mask with `torch.where` or `masked_fill`.
    """,
    bad="""
    import torch

    def sum_of_positive(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sum()
    """,
    good="""
    import torch

    def sum_of_positive(x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(x <= 0, 0.0).sum()
    """,
)
def data_dependent_shape(scope: Scope) -> Iterator[Hit]:
    for subscript in scope.subscripts:
        is_masked = isinstance(subscript.ctx, ast.Load) and _is_mask(subscript.slice, scope)
        if is_masked and scope.is_tensor(subscript.value):
            message = "a boolean mask as an index makes the CPU wait for the count: mask with `torch.where`"
            yield hit(scope, subscript, message)
    for call in scope.calls:
        name = scope.function_name(call)
        is_bare_where = name == "where" and len(call.args) == 1 and not call.keywords
        is_sized = name == "bincount" and keyword(call, "minlength") is not None
        if (name in _DYNAMIC_FUNCTIONS or is_bare_where) and not is_sized:
            yield hit(scope, call, f"the size of what `{name}` gives depends on values: the CPU waits for it")


def _read_by_callee(call: ast.Call, scope: Scope) -> str:
    """Return ``push()`` for a call of a function or method of the file that reads back an argument from the device."""
    given = [position for position, each in enumerate(call.args) if is_on_device(each, scope)]
    given_names = {each.arg for each in call.keywords if each.arg and is_on_device(each.value, scope)}
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    for function in scope.module.functions_named(name) if given or given_names else ():
        parameters = [each.arg for each in function.args.args if each.arg not in ("self", "cls")]
        taken = {parameters[position] for position in given if position < len(parameters)} | given_names
        if given_names and function.args.kwarg is not None:
            taken.add(function.args.kwarg.arg)
        for each in (n for n in nodes_in(function) if isinstance(n, ast.For | ast.comprehension)):
            if not taken.isdisjoint(n.id for n in nodes_of(each.iter, ast.Name)):
                taken |= {n.id for n in nodes_of(each.target, ast.Name)}
        for node in nodes_in(function):
            match node:
                case ast.Call(func=ast.Name(id="float" | "int"), args=[ast.Name(id=read)]):
                    pass
                case ast.Call(
                    func=ast.Attribute(
                        value=ast.Name(id=read) | ast.Call(func=ast.Attribute(value=ast.Name(id=read), attr="detach")),
                        attr="item" | "tolist" | "cpu" | "numpy",
                    )
                ):
                    pass
                case _:
                    continue
            if read in taken:
                return f"{name}()"
    return ""


_OUTPUTS = (".cpu()", ".numpy()", ".tolist()", '.to("cpu")')
"""Copies that an inference without gradients makes of its results, which have to go somewhere."""
_OPTIONS = re.compile(r"(?:args|cfg|config|options)\.|[(\[]")
"""Loops over a few options of a program."""


def _is_repeated(call: ast.Call, name: str, scope: Scope) -> bool:
    """Return whether a loop reads the value in each iteration, here or where the file calls this function."""
    loop = scope.loop_around(call)
    if loop is not None:
        is_output = name in _OUTPUTS and turns_gradients_off(scope) and not _is_total(call, scope)
        is_few = isinstance(loop, ast.For) and _OPTIONS.match(ast.unparse(loop.iter)) is not None
        return not (is_output or is_few or is_occasional(call, loop, scope) or holds_steps(loop, scope))
    read = call.args[0] if call.args else getattr(call.func, "value", call)
    is_of_caller = isinstance(read, ast.Name) and read.id in scope.parameters and read.id not in scope.assigned
    return not is_of_caller and not flow.is_conditional(call, scope) and flow.runs_each_step(scope)


def _is_total(call: ast.Call, scope: Scope) -> bool:
    """Return whether the value is one number of a whole batch: ``hits.sum().cpu()``."""
    node = call.func.value if isinstance(call.func, ast.Attribute) else call
    for _ in range(flow.MAX_HOPS):
        node = scope.definition(node)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        if node.func.attr in _TOTALS and not node.args and not node.keywords:
            return True
        if node.func.attr not in _KEEPS_TOTAL:
            return False
        node = node.func.value
    return False


_TOTALS = ("sum", "mean", "max", "min", "all", "any", "norm", "count_nonzero", "prod")
_KEEPS_TOTAL = ("detach", "cpu", "float", "double", "long", "int", "to")
_TRUTHS = ("any", "all", "isnan", "isfinite", "isinf")


def _is_helper(node: ast.expr, scope: Scope) -> bool:
    """Return whether the node calls a function of the file."""
    return isinstance(node, ast.Call) and bool(flow.callees(node, scope))


def _asks_device(test: ast.expr, scope: Scope) -> bool:
    """Return whether a condition in each step is the value of a tensor: ``if torch.isnan(loss):``."""
    loop = scope.loop_around(test)
    made = [each for each, _ in flow.values(test, scope)] if isinstance(test, ast.Name) else []
    is_truth = any(isinstance(e, ast.Compare) or flow.called_name(e) in _TRUTHS or _is_helper(e, scope) for e in made)
    is_unclear = isinstance(test, ast.Name | ast.Attribute) and not is_truth
    if is_unclear or not is_on_device(test, scope):
        return False
    if loop is None:
        return not flow.is_conditional(test, scope) and flow.runs_each_step(scope)
    if holds_steps(loop, scope):
        return False
    is_check = any(isinstance(n, ast.Attribute) and n.attr in ("isnan", "isfinite", "isinf") for n in nodes_in(test))
    is_check |= isinstance(scope.parents.get(id(test)), ast.If) and flow.is_step(loop, scope)
    if not is_check and not scope.is_tensor(test) and not flow.is_step(loop, scope):
        return False
    if not is_check and any(isinstance(n, ast.Call) and item_of_training(n, scope) for n in nodes_in(test)):
        return False
    return not is_occasional(test, loop, scope, may_leave=not is_check)


def _is_mask(index: ast.expr, scope: Scope) -> bool:
    """Return whether an index is a boolean tensor: a comparison, ``mask.bool()``, or a tensor that is named a mask."""
    index = scope.definition(index)
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.Invert):
        index = scope.definition(index.operand)
    if isinstance(index, ast.Call) and isinstance(index.func, ast.Attribute) and index.func.attr == "bool":
        return True
    if not isinstance(index, ast.Name) or not NAMES_MASK.search(index.id):
        return scope.kind(index) is Kind.MASK
    is_given = index.id in scope.parameters and index.id not in scope.assigned
    return is_given or (index.id.endswith("mask") and scope.is_tensor(index)) or scope.kind(index) is Kind.MASK


def _is_long(call: ast.Call, scope: Scope) -> bool:
    """Return whether what is read back is the result of a function of the file with a loop: ``sample(model).cpu()``."""
    made = call.func.value if isinstance(call.func, ast.Attribute) else None
    name = made.func.id if isinstance(made, ast.Call) and isinstance(made.func, ast.Name) else ""
    inner = (node for function in scope.module.functions_named(name) for node in nodes_in(function))
    return any(isinstance(node, ast.For | ast.While) for node in inner)


def _is_in_comprehension(call: ast.Call, scope: Scope) -> bool:
    comprehensions = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    return any(isinstance(parent, comprehensions) for parent in scope.around(call))


def _is_maybe_none(test: ast.expr, scope: Scope) -> bool:
    """Return whether the condition is a parameter, still as it was given, or an attribute. Its truth value is often a
    test for None."""
    if not isinstance(test, ast.Name):
        return isinstance(test, ast.Attribute)
    is_given = test.id in scope.parameters and scope.loop_around(test) is None
    return all(is_given and test.lineno < value.lineno for value in scope.assigned.get(test.id, ()))


def _to_host(call: ast.Call, scope: Scope) -> str:
    """Return ``.item()`` and similar calls as text, "" for other calls."""
    function = call.func
    if scope.dotted(function).startswith("numpy.") and any(map(scope.is_tensor, call.args)):
        return ast.unparse(function)
    if not isinstance(function, ast.Attribute) or not scope.is_tensor(function.value):
        return ""
    if function.attr in _TO_HOST_METHODS:
        return "" if is_on_host(function.value, scope) else f".{function.attr}()"
    targets = [*call.args, keyword(call, "device")]
    is_cpu = any(isinstance(target, ast.Constant) and target.value == "cpu" for target in targets)
    return '.to("cpu")' if function.attr == "to" and is_cpu else ""


def _scalar_conversion(call: ast.Call, scope: Scope) -> str:
    if not isinstance(call.func, ast.Name) or call.func.id not in _TO_SCALAR or len(call.args) != 1:
        return ""
    return call.func.id if scope.is_tensor(call.args[0]) else ""


def _printed(argument: ast.expr) -> list[ast.expr]:
    if isinstance(argument, ast.JoinedStr):
        return [part.value for part in argument.values if isinstance(part, ast.FormattedValue)]
    return [argument]


def _condition(call: ast.Call, scope: Scope) -> str:
    """Return ``if ... .any()`` for a tensor's truth value that a branch asks for."""
    name = scope.function_name(call)
    if name not in ("any", "all"):
        return ""
    node: ast.AST = call
    for parent in scope.around(call):
        if isinstance(parent, ast.If) and parent.test is node:
            return f"if ... .{name}()"
        if not isinstance(parent, ast.UnaryOp | ast.BoolOp):
            return ""
        node = parent
    return ""


_CPU_ARGUMENTS = ("pack_padded_sequence",)
"""Functions that require a CPU argument: their lengths must be on the CPU."""


def _is_wanted_on_cpu(call: ast.Call, scope: Scope) -> bool:
    """Return whether the value is needed on the CPU: as such an argument, or as the result of a sampler or similar
    inference function."""
    parent = next((each for each in scope.around(call) if not isinstance(each, ast.Tuple)), None)
    if isinstance(parent, ast.Return) and scope.owner is None and is_for_inference(scope):
        return True
    if isinstance(parent, ast.Attribute) and parent.attr == "numpy" and is_for_inference(scope):
        return True
    return isinstance(parent, ast.Call) and scope.dotted(parent.func).rpartition(".")[2] in _CPU_ARGUMENTS
