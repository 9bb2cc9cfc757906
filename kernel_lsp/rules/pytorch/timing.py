"""KL108, KL167 and KL168: waits for the GPU, gradients filled with zeros, and times that only hold launches."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from kernel_lsp.rules.pytorch.declare import INFORMATION, WARNING, declare, hit
from kernel_lsp.rules.pytorch.program import flow
from kernel_lsp.rules.pytorch.program.parsing import nodes_in, nodes_of
from kernel_lsp.rules.pytorch.program.scopes import Scope, keyword
from kernel_lsp.rules.pytorch.program.trained import holds_steps, is_occasional
from kernel_lsp.rules.rule import Hit

_CLOCKS = frozenset(f"time.{name}{unit}" for name in ("time", "perf_counter", "monotonic") for unit in ("", "_ns")) | {
    "timeit.default_timer"
}
_WAITS = frozenset(
    (
        "synchronize",
        "item",
        "tolist",
        "cpu",
        "numpy",
        "wait",
        "elapsed_time",
        "sync",
        "result",
        "sleep",
        "save",
        "query",
    )
)
_LAUNCHES_NOTHING = frozenset(("range", "print", "len", "append", "zip", "enumerate", "format", "iter", "min", "max"))


@declare(
    "KL108",
    "device-synchronize",
    WARNING,
    needs=("synchronize empty_cache",),
    summary="`torch.cuda.synchronize` or `empty_cache` in a forward, or `empty_cache` in each step of a training loop",
    why="""
    `synchronize` waits for all work of the GPU, `empty_cache` gives memory back that the next call must ask the driver
    for again, and waits as well. Both belong around measurements, never into a model.
    """,
    bad="""
    import torch
    from torch import nn

    class Block(nn.Module):
        def forward(self, x):
            y = torch.relu(x)
            torch.cuda.empty_cache()
            return y
    """,
    good="""
    import torch
    from torch import nn

    class Block(nn.Module):
        def forward(self, x):
            return torch.relu(x)

    def measure(model, x):
        model(x)
        torch.cuda.synchronize()
    """,
)
def device_synchronize(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        dotted = scope.dotted(call.func)
        if dotted not in ("torch.cuda.synchronize", "torch.cuda.empty_cache", "torch.accelerator.synchronize"):
            continue
        if dotted.endswith("synchronize") and _copies_to_host(scope):
            continue  # the copy is complete only then
        if scope.is_forward:
            yield hit(scope, call, f"`{dotted}` stalls the GPU at each forward")
        elif _is_in_each_step(call, scope):
            if dotted.endswith("empty_cache"):
                message = f"`{dotted}` stalls the GPU in each step: the next step allocates the memory again"
                yield hit(scope, call, message)
            elif not _TIMES.search(scope.module.text):
                yield hit(scope, call, f"`{dotted}` stalls the GPU in each step")


@declare(
    "KL167",
    "zeroed-gradients",
    INFORMATION,
    needs=("zero_grad zero_ fill_ zeros_like",),
    summary="Gradients are filled with zeros instead of dropped",
    why="""
    `zero_grad(set_to_none=False)` writes zeros into every gradient, and the backward pass then reads and adds to them.
    With `set_to_none=True`, the default, the backward pass writes them, and their memory is free in between.
    """,
    bad="""
    import torch

    def step(model, optimizer, loss):
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
    """,
    good="""
    import torch

    def step(model, optimizer, loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """,
)
def zeroed_gradients(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        if not isinstance(call.func, ast.Attribute):
            continue
        kept = keyword(call, "set_to_none") or (call.args[0] if call.args else None)
        is_kept = isinstance(kept, ast.Constant) and kept.value is False
        if call.func.attr == "zero_grad" and is_kept:
            yield hit(scope, call, "gradients are filled with zeros: drop them, `zero_grad(set_to_none=True)`")
        elif call.func.attr in ("zero_", "fill_") and _is_gradient(call.func.value) and scope.loop_around(call):
            yield hit(scope, call, "gradients are filled with zeros, a kernel each: set them to None")


@declare(
    "KL172",
    "missing-zero-grad",
    WARNING,
    needs=("step",),
    summary="An optimizer steps in a loop that never resets the gradients",
    why="""
    `backward` adds to the gradients that are there: each step then follows the sum over all batches before it. Call
    `optimizer.zero_grad()` in the loop that steps.
    """,
    bad="""
    import torch

    def train(model, batches, optimizer):
        optimizer.zero_grad()
        for x in batches:
            model(x).mean().backward()
            optimizer.step()
    """,
    good="""
    import torch

    def train(model, batches, optimizer):
        for x in batches:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
    """,
)
def missing_zero_grad(scope: Scope) -> Iterator[Hit]:
    methods = [(call, call.func) for call in scope.calls if isinstance(call.func, ast.Attribute)]
    steps = [(call, function.value) for call, function in methods if function.attr == "step"]
    for call, owner in steps if steps and not _resets_otherwise(scope.module.text) else ():
        loop = scope.loop_around(call)
        optimizer = call.args[0] if call.args else owner
        stepped = ast.unparse(optimizer)
        is_optimizer = "opt" in stepped.rpartition(".")[2].lower()
        if loop is None:
            used = flow.uses(scope.node, scope)
            is_missing = is_optimizer and "backward" in used and _is_never_reset(optimizer, scope)
        else:
            used = flow.uses(loop, scope)
            made = [ast.unparse(t) for n in nodes_in(loop) if isinstance(n, ast.Assign) for t in n.targets]
            # a new optimizer in each iteration has parameters without gradients
            is_missing = is_optimizer and "backward" in used and "zero_grad" not in used and stepped not in made
        if is_missing:
            message = f"gradients pile up: call `{stepped}.zero_grad()` in the loop that steps"
            outer = (c for c in scope.calls if isinstance(c.func, ast.Attribute) and c.func.attr == "zero_grad")
            yield hit(scope, next(outer, call), message)
            return


def _is_never_reset(optimizer: ast.expr, scope: Scope) -> bool:
    """Return whether the file resets gradients of named optimizers alone, and never those of one that is stepped in
    each step of a training."""
    if not flow.runs_each_step(scope):
        return False
    reset: set[str] = set()
    for function in scope.functions.calling.get("zero_grad", []):
        caller = scope.program.scope_of(function)
        for call in caller.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad":
                names = _identities(call.func.value, caller)
                if not names or not all("opt" in name.rpartition(".")[2].lower() for name in names):
                    return False
                reset |= names
    return not _identities(optimizer, scope) <= reset


def _identities(optimizer: ast.expr, scope: Scope) -> set[str]:
    """Return the attributes and names that hold what is stepped or reset: those that callers give for a parameter."""
    if isinstance(optimizer, ast.Name) and optimizer.id in scope.parameters:
        given = flow.given(optimizer.id, scope)
        return {name for each, caller in given for name in _identities(each, caller)}
    return {ast.unparse(optimizer)}


@declare(
    "KL173",
    "eval-not-restored",
    WARNING,
    needs=("eval train",),
    summary="A training loop goes on in evaluation mode",
    why="""
    `model.eval()` lasts until `model.train()`. A loop that evaluates after each epoch, and calls `train()` only once
    before it, trains from the second epoch on without dropout and with frozen statistics of batch norm. Call `train()`
    at the beginning of each epoch.
    """,
    bad="""
    import torch

    def fit(model, batches, optimizer, validate):
        model.train()
        for epoch in range(10):
            for x in batches:
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
            model.eval()
            validate(model)
    """,
    good="""
    import torch

    def fit(model, batches, optimizer, validate):
        for epoch in range(10):
            model.train()
            for x in batches:
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
            model.eval()
            validate(model)
    """,
)
def eval_not_restored(scope: Scope) -> Iterator[Hit]:
    if isinstance(scope.node, ast.Module) or scope.node.name == "eval":
        return
    for call in scope.calls:
        if not isinstance(call.func, ast.Attribute) or flow.mode_set(call) != "eval":
            continue
        model = ast.unparse(call.func.value).rpartition(".")[2]
        is_trained = f"{model}.train(" in scope.module.text or not scope.module.mentions(".train(")
        if is_trained and not _OTHER_MODELS.search(model) and _trains_on(call, scope):
            yield hit(scope, call, "the loop trains on in evaluation mode: call `train()` in each iteration")
            return


def _trains_on(call: ast.Call, scope: Scope) -> bool:
    """Return whether the innermost training loop around a call, here or where the file calls this function, sets no
    mode back."""
    loops = [each for each in scope.around(call) if isinstance(each, ast.For | ast.While)]
    for loop in loops:
        used = flow.uses(loop, scope)
        if "backward" in used:
            return "train" not in used and not _leaves(call, loop, scope)
        if "train" in used:
            return False
    if "train" in flow.uses(scope.node, scope):
        return False
    callers = flow.callers(scope)
    return flow.once(scope, ("trains on",), lambda: any(_trains_on(*each) for each in callers), False)


def _leaves(call: ast.Call, loop: ast.AST, scope: Scope) -> bool:
    """Return whether the loop ends after the call, in the same block."""
    for parent in scope.around(call):
        if parent is loop:
            return False
        if any(isinstance(each, ast.Break | ast.Return) for each in getattr(parent, "body", ())):
            return True
    return False


_OTHER_MODELS = re.compile(
    r"(?i)ema|teacher|target|frozen|^ref|reference|lpips|percept|avg|average|swa|shadow|vae|clip"
)
"""Names of models beside the one that is trained."""
_OTHER_RESETS = re.compile(r"\.zero_\(|\.grad\s*=\s*None|(?:reset|clear)_grad|_zero_grad")


@lru_cache(maxsize=1)
def _resets_otherwise(text: str) -> bool:
    """Return whether a file resets gradients by other means than `zero_grad`. Each of its functions asks."""
    return _OTHER_RESETS.search(text) is not None


@declare(
    "KL168",
    "timing-without-synchronize",
    WARNING,
    needs=("perf_counter time monotonic default_timer",),
    summary="A clock of the CPU times work of the GPU that nothing waits for",
    why="""
    Launches return at once: the time between two readings of a CPU clock is that of launching, unless
    `torch.cuda.synchronize()` comes before each reading. CUDA events, or `torch.utils.benchmark`, time the GPU itself.
    """,
    bad="""
    import time
    import torch

    def measure(model, n):
        x = torch.randn(64, 4096, device="cuda")
        start = time.perf_counter()
        for _ in range(n):
            model(x)
        return (time.perf_counter() - start) / n
    """,
    good="""
    import time
    import torch

    def measure(model, n):
        x = torch.randn(64, 4096, device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(n):
            model(x)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / n
    """,
)
def timing_without_synchronize(scope: Scope) -> Iterator[Hit]:
    if not scope.module.mentions("cuda"):
        return
    if (exit_ := _of_context(scope)) is not None:
        yield hit(scope, exit_, "time of launches alone: call `torch.cuda.synchronize()` before reading the clock")
        return
    clocks = sorted((call for call in scope.calls if _is_clock(call, scope)), key=_place)
    for end in clocks:
        start = _start_of(end, clocks, scope)
        outer = {id(node) for node in scope.around(end)}
        timed = [] if start is None else [c for c in scope.calls if _place(start) < _place(c) < _place(end)]
        timed = [call for call in timed if id(call) not in outer]
        is_measured = start is not None and (_MEASURES.search(_name(scope)) or _repeats(start, end, scope))
        if start is not None and is_measured and _is_unawaited(timed, scope) and not _loads(start, end, scope):
            yield hit(scope, end, "time of launches alone: call `torch.cuda.synchronize()` before reading the clock")


def _copies_to_host(scope: Scope) -> bool:
    """Return whether the function copies to memory of the host without a wait: into a tensor, or by `.to("cpu")`."""
    copies = (call for call in scope.calls if keyword(call, "non_blocking") is not None)
    return any(flow.called_name(call) == "copy_" or "cpu" in ast.unparse(call) for call in copies)


_TIMES = re.compile(r"\btime\b|Event\(|profil")


def _is_in_each_step(call: ast.Call, scope: Scope) -> bool:
    """Return whether the call is in a loop that trains, each time around, and in no handler of an error."""
    loop = scope.loop_around(call)
    if loop is None:
        return not flow.is_conditional(call, scope) and flow.runs_each_step(scope)
    if holds_steps(loop, scope) or is_occasional(call, loop, scope):
        return False
    if any(isinstance(parent, ast.ExceptHandler) for parent in scope.around(call)):
        return False
    return flow.is_step(loop, scope)


def _is_gradient(node: ast.expr) -> bool:
    """Return whether the node is ``p.grad`` or ``p.grad.data``."""
    text = ast.unparse(node)
    return text.removesuffix(".data").removesuffix(".detach()").endswith(".grad")


_MEASURES = re.compile(r"bench|tim(?:e|ing)|measure|latency|profile|throughput|speed|perf|flops", re.IGNORECASE)


def _name(scope: Scope) -> str:
    return "" if isinstance(scope.node, ast.Module) else scope.node.name


def _repeats(start: ast.Call, end: ast.Call, scope: Scope) -> bool:
    """Return whether a counting loop is timed."""
    return any(
        isinstance(loop, ast.For)
        and start.lineno < loop.lineno < end.lineno
        and isinstance(loop.iter, ast.Call)
        and getattr(loop.iter.func, "id", "") in ("range", "trange")
        for loop in scope.loops
    )


def _place(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _is_clock(call: ast.Call, scope: Scope) -> bool:
    dotted = scope.dotted(call.func)
    return not call.args and (dotted in _CLOCKS or dotted in {"perf_counter", "default_timer"})


def _start_of(end: ast.Call, clocks: list[ast.Call], scope: Scope) -> ast.Call | None:
    """Return the reading of the clock that an elapsed time begins with: ``clock() - start``, or that of two names."""
    used: set[str] = set()
    difference = next((n for n in scope.around(end) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Sub)), None)
    if difference is not None:
        used = {node.id for node in nodes_of(difference.right, ast.Name)}
    else:
        target = next((n for n in scope.around(end) if isinstance(n, ast.Assign)), None)
        names = {n.id for n in target.targets if isinstance(n, ast.Name)} if target is not None else set()
        for node in scope.binaries:
            sides = [{n.id for n in nodes_of(side, ast.Name)} for side in (node.left, node.right)]
            if isinstance(node.op, ast.Sub) and sides[0] & names:
                used |= sides[1]
    for clock in reversed(clocks):
        target = next((n for n in scope.around(clock) if isinstance(n, ast.Assign)), None)
        names = {n.id for n in target.targets if isinstance(n, ast.Name)} if target is not None else set()
        if names & used and _place(clock) < _place(end):
            return clock
    return None


def _of_context(scope: Scope) -> ast.Call | None:
    """Return the reading of the clock in the `__exit__` of a class that waits for nothing."""
    if isinstance(scope.node, ast.Module) or scope.node.name != "__exit__":
        return None
    owner = scope.module.class_of(scope.node)
    clock = next((call for call in scope.calls if _is_clock(call, scope)), None)
    waits = owner is None or any(n.attr in _WAITS for n in nodes_of(owner, ast.Attribute))
    return None if waits else clock


def _is_unawaited(timed: list[ast.Call], scope: Scope) -> bool:
    """Return whether the timed code calls a function or model, and nothing in it may wait for the GPU."""
    works = False
    for call in timed:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in _WAITS or "sync" in name or name in ("float", "int", "bool", "print") or _waits_inside(name, scope):
            return False
        works = works or not (name in _LAUNCHES_NOTHING or _is_clock(call, scope))
    return works


def _waits_inside(name: str, scope: Scope) -> bool:
    """Return whether a function of the file waits for the GPU."""
    functions = scope.module.functions_named(name)
    return any(node.attr in _WAITS for function in functions for node in nodes_of(function, ast.Attribute))


def _loads(start: ast.Call, end: ast.Call, scope: Scope) -> bool:
    """Return whether a loop over batches is timed, or every n of its steps: little of such a time is outstanding."""
    loop = scope.loop_around(end)
    if loop is not None and is_occasional(end, loop, scope, may_leave=False):
        return True
    return any(
        isinstance(loop, ast.For)
        and start.lineno < loop.lineno < end.lineno
        and not (isinstance(loop.iter, ast.Call) and getattr(loop.iter.func, "id", "") in ("range", "tqdm", "trange"))
        for loop in scope.loops
    )
