"""KL158, KL159, KL165, KL166, KL170, KL171 and KL175: loading of batches, gradients of a loop, and modes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernel_lsp.rules.pytorch.declare import INFORMATION, WARNING, declare, hit
from kernel_lsp.rules.pytorch.program import flow
from kernel_lsp.rules.pytorch.program.scopes import Scope, keyword
from kernel_lsp.rules.rule import Hit

_N_POSITIONAL = 6
"""Positional arguments of `DataLoader` from which `num_workers` is among them."""
_IN_MEMORY = ("TensorDataset",)


@declare(
    "KL165",
    "loader-without-workers",
    INFORMATION,
    needs=("DataLoader",),
    summary="The GPU waits while the training process loads each batch",
    why="""
    Without `num_workers` a `DataLoader` reads and transforms a batch when the loop asks for it: nothing runs on the GPU
    meanwhile. Workers load ahead; `pin_memory=True` with `non_blocking=True` copies beside the computation.
    """,
    bad="""
    import torch
    from torch.utils.data import DataLoader

    def train(dataset, model, optimizer):
        loader = DataLoader(dataset, batch_size=64)
        for x, y in loader:
            loss = model(x.to("cuda"), y.to("cuda"))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """,
    good="""
    import torch
    from torch.utils.data import DataLoader

    def train(dataset, model, optimizer):
        loader = DataLoader(dataset, batch_size=64, num_workers=4, pin_memory=True)
        for x, y in loader:
            loss = model(x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """,
)
def loader_without_workers(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        is_unpacked = any(given.arg is None for given in call.keywords)
        is_loader = scope.dotted(call.func).endswith("utils.data.DataLoader") and len(call.args) < _N_POSITIONAL
        workers, pinned = keyword(call, "num_workers"), keyword(call, "pin_memory")
        is_alone = workers is None or (isinstance(workers, ast.Constant) and workers.value == 0)
        if not is_loader or is_unpacked or not (is_alone or pinned is None) or _is_in_memory(call, scope):
            continue
        used = _used_by_loops(call, scope)
        if is_alone and any("backward" in each and not each.isdisjoint(("to", "cuda")) for each in used):
            message = "batches are loaded in the training process: `num_workers=4, pin_memory=True` loads ahead"
            yield hit(scope, call, message)
        elif pinned is None and used and "non_blocking=True" in scope.module.text:
            message = "`non_blocking` copies of pageable memory wait: load with `pin_memory=True`"
            yield hit(scope, call, message)


@declare(
    "KL166",
    "float16-without-scaler",
    WARNING,
    needs=("autocast", "float16 half", "backward"),
    summary="A training in float16 without a `GradScaler`",
    why="""
    Gradients below 6e-8 are 0 in float16, and many are: the loss must be scaled before `backward`, and the gradients
    back. `torch.amp.GradScaler` does both. bfloat16 has the range of f32 and needs none.
    """,
    bad="""
    import torch

    def train(model, batches, optimizer):
        for x in batches:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """,
    good="""
    import torch

    def train(model, batches, optimizer):
        for x in batches:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """,
)
def float16_without_scaler(scope: Scope) -> Iterator[Hit]:
    text = scope.module.text
    if "caler" in text or "scale_loss" in text or not any(_is_method(call, "backward") for call in scope.calls):
        return
    for call in scope.calls if any(_is_method(call, "step") for call in scope.calls) else ():
        dtype = keyword(call, "dtype")
        is_half = dtype is not None and scope.dotted(dtype) in ("torch.float16", "torch.half")
        if is_half and scope.dotted(call.func).endswith("autocast"):
            yield hit(scope, call, "float16 without `torch.amp.GradScaler`: small gradients become 0, or use bfloat16")


@declare(
    "KL158",
    "missing-eval",
    WARNING,
    needs=("no_grad inference_mode", "load_state_dict"),
    summary="A loaded model is used for inference in training mode",
    why="""
    Modules start in training mode: dropout drops, and batch normalization takes the statistics of the batch at hand and
    changes its own. `no_grad` does not alter that. Call `model.eval()` after loading.
    """,
    bad="""
    import torch

    def predict(path, x):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))
        model.load_state_dict(torch.load(path))
        with torch.no_grad():
            return model(x)
    """,
    good="""
    import torch

    def predict(path, x):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))
        model.load_state_dict(torch.load(path))
        model.eval()
        with torch.no_grad():
            return model(x)
    """,
)
def missing_eval(scope: Scope) -> Iterator[Hit]:
    text = scope.module.text
    if not _MODE_LAYERS.search(text) or re.search(r"\.(?:eval|train)\(", text):
        return
    loaded = {
        ast.unparse(c.func.value)
        for c in scope.calls
        if isinstance(c.func, ast.Attribute) and c.func.attr == "load_state_dict"
    }
    for call in scope.calls:
        withs = [each for each in scope.around(call) if isinstance(each, ast.With)]
        items = [item.context_expr for each in withs for item in each.items]
        is_inference = any("no_grad" in ast.unparse(item) or "inference_mode" in ast.unparse(item) for item in items)
        if is_inference and ast.unparse(call.func) in loaded:
            yield hit(scope, call, f"`{ast.unparse(call.func)}` is in training mode: call `.eval()` first")
            return


@declare(
    "KL159",
    "debug-mode",
    INFORMATION,
    needs=("set_detect_anomaly detect_anomaly cudnn CUDA_LAUNCH_BLOCKING",),
    summary="A mode for debugging is on",
    why="""
    Anomaly detection records a traceback for each operation and checks each gradient for NaN, `CUDA_LAUNCH_BLOCKING`
    waits after each kernel, and without cuDNN convolutions take slower kernels. Switch them on by an option.
    """,
    bad="""
    import torch

    torch.autograd.set_detect_anomaly(True)
    """,
    good="""
    import torch

    def debug(is_wanted):
        torch.autograd.set_detect_anomaly(is_wanted)
    """,
)
def debug_mode(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        name, given = scope.dotted(call.func), [*call.args, *(each.value for each in call.keywords)]
        is_on = not given or (isinstance(given[0], ast.Constant) and given[0].value is True)
        if name.endswith(("autograd.set_detect_anomaly", "autograd.detect_anomaly")) and is_on:
            yield hit(scope, call, "anomaly detection slows every step: switch it on by an option")
    for statement in scope.statements:
        match statement:
            case ast.Assign(targets=[target], value=ast.Constant(value=value)):
                text = ast.unparse(target)
                if (text.endswith("cudnn.enabled") and value is False) or (
                    "CUDA_LAUNCH_BLOCKING" in text and value == "1"
                ):
                    yield hit(scope, statement, "a mode for debugging is on: switch it on by an option")


@declare(
    "KL175",
    "gradients-reduced-each-micro-step",
    INFORMATION,
    needs=("backward",),
    summary="Gradients that accumulate are reduced over all processes in each micro step",
    why="""
    `DistributedDataParallel` reduces gradients in each `backward`. Where several micro steps accumulate before the
    optimizer's step, all but the last belong under `model.no_sync()`: the traffic is then that of one.
    """,
    bad="""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    def train(model, batches, optimizer, accumulate):
        model = DistributedDataParallel(model)
        for i, x in enumerate(batches):
            (model(x).mean() / accumulate).backward()
            if (i + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    """,
    good="""
    import contextlib
    import torch
    from torch.nn.parallel import DistributedDataParallel

    def train(model, batches, optimizer, accumulate):
        model = DistributedDataParallel(model)
        for i, x in enumerate(batches):
            is_last = (i + 1) % accumulate == 0
            with contextlib.nullcontext() if is_last else model.no_sync():
                (model(x).mean() / accumulate).backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
    """,
)
def gradients_reduced_each_micro_step(scope: Scope) -> Iterator[Hit]:
    text = scope.module.text
    if "DistributedDataParallel" not in text or "no_sync" in text or "require_backward_grad_sync" in text:
        return
    for call in scope.calls:
        value = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "backward" else None
        found = [] if value is None else flow.origins(value, scope)
        shares = [each.right for each, _ in found if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div)]
        if any(_ACCUMULATES.search(ast.unparse(each)) for each in shares):
            yield hit(scope, call, "gradients are reduced in each micro step: all but the last under `no_sync()`")


_ACCUMULATES = re.compile(r"(?i)accum|micro|grad_acc|n_steps")


@declare(
    "KL170",
    "sampler-without-set-epoch",
    WARNING,
    needs=("DistributedSampler", "epoch epochs"),
    summary="A `DistributedSampler` that is never told the epoch",
    why="""
    The sampler shuffles by a seed and the number of the epoch. Without `sampler.set_epoch(epoch)` each epoch goes
    through the data in the same order.
    """,
    bad="""
    import torch
    from torch.utils.data.distributed import DistributedSampler

    def train(dataset, step, epochs):
        sampler = DistributedSampler(dataset)
        loader = torch.utils.data.DataLoader(dataset, sampler=sampler)
        for epoch in range(epochs):
            for batch in loader:
                step(batch)
    """,
    good="""
    import torch
    from torch.utils.data.distributed import DistributedSampler

    def train(dataset, step, epochs):
        sampler = DistributedSampler(dataset)
        loader = torch.utils.data.DataLoader(dataset, sampler=sampler)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for batch in loader:
                step(batch)
    """,
)
def sampler_without_set_epoch(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls if not scope.module.mentions("set_epoch") else ():
        shuffle = keyword(call, "shuffle")
        is_in_order = isinstance(shuffle, ast.Constant) and shuffle.value is False
        is_trained = scope.module.mentions("backward") or scope.module.mentions("step(")
        if scope.dotted(call.func).endswith("DistributedSampler") and not is_in_order and is_trained:
            yield hit(scope, call, "each epoch has the same order: call `set_epoch(epoch)` of the sampler")


@declare(
    "KL171",
    "clip-of-scaled-gradients",
    WARNING,
    needs=("clip_grad_norm_ clip_grad_value_",),
    summary="Gradients are clipped while they are still scaled",
    why="""
    With a `GradScaler` the gradients are multiplied by its scale, often 65,536, until `scaler.unscale_(optimizer)`:
    clipping before that makes nearly every step too small.
    """,
    bad="""
    import torch

    def step(model, optimizer, loss, scaler):
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    """,
    good="""
    import torch

    def step(model, optimizer, loss, scaler):
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    """,
)
def clip_of_scaled_gradients(scope: Scope) -> Iterator[Hit]:
    steps = [call for call in scope.calls if _is_method(call, "step") and "scaler" in ast.unparse(call.func)]
    for call in scope.calls if steps and not scope.module.mentions("unscale_") else ():
        if scope.dotted(call.func).endswith(("clip_grad_norm_", "clip_grad_value_")):
            yield hit(scope, call, "the gradients are still scaled: call `scaler.unscale_(optimizer)` first")


_MODE_LAYERS = re.compile(r"\b(?:Dropout|BatchNorm|resnet|vit_|densenet|efficientnet)")


def _is_method(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == name


def _used_by_loops(call: ast.Call, scope: Scope) -> list[frozenset[str]]:
    """Return what each loop of the file over a loader calls: ``for x in loader``, also of `enumerate` or `tqdm`."""
    scopes = {id(scope): scope}
    for function in scope.functions.by_node.values():
        inner = scope.program.scope_of(function)
        scopes[id(inner)] = inner
    found: list[frozenset[str]] = []
    for where in scopes.values():
        for loop in where.loops:
            parts = [loop.iter, *getattr(loop.iter, "args", [])] if isinstance(loop, ast.For) else []
            if any(each is call for part in parts for each, _ in flow.origins(part, where)):
                found.append(flow.uses(loop, where))
    return found


def _is_in_memory(call: ast.Call, scope: Scope) -> bool:
    """Return whether the dataset is tensors in memory, which workers would only copy."""
    made = [each for each, _ in flow.origins(call.args[0], scope)] if call.args else []
    return any(flow.called_name(each) in _IN_MEMORY for each in made)
