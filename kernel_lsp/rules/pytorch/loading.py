"""KL165 and KL166: training loops that wait for their batches, or lose small gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.rules.pytorch.declare import INFORMATION, WARNING, declare, hit
from kernel_lsp.rules.pytorch.scopes import Scope, keyword
from kernel_lsp.rules.rule import Hit

_N_POSITIONAL = 6
"""Positional arguments of `DataLoader` from which `num_workers` is among them."""
_IN_MEMORY = ("TensorDataset",)


@declare(
    "KL165",
    "loader-without-workers",
    INFORMATION,
    needs=("DataLoader", "cuda", "backward"),
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
    """,
)
def loader_without_workers(scope: Scope) -> Iterator[Hit]:
    loops = [loop for loop in scope.loops if isinstance(loop, ast.For) and _trains_on_gpu(loop)]
    for call in scope.calls if loops else ():
        is_unpacked = any(given.arg is None for given in call.keywords)
        is_loader = scope.dotted(call.func) == "torch.utils.data.DataLoader" and len(call.args) < _N_POSITIONAL
        if not is_loader or is_unpacked or keyword(call, "num_workers") is not None or _is_in_memory(call, scope):
            continue
        if any(_iterates(loop.iter, call, scope) for loop in loops):
            message = "batches are loaded in the training process: `num_workers=4, pin_memory=True` loads ahead"
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
    """,
    good="""
    import torch

    def train(model, batches, optimizer):
        for x in batches:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(x)
            loss.backward()
            optimizer.step()
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


# --- below


def _is_method(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == name


def _trains_on_gpu(loop: ast.For) -> bool:
    """Return whether the loop moves its batches to a GPU and computes gradients."""
    called = {n.func.attr for n in ast.walk(loop) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
    return "backward" in called and not called.isdisjoint(("to", "cuda"))


def _is_in_memory(call: ast.Call, scope: Scope) -> bool:
    """Return whether the dataset is tensors in memory, which workers would only copy."""
    made = scope.definition(call.args[0]) if call.args else None
    return isinstance(made, ast.Call) and scope.dotted(made.func).rpartition(".")[2] in _IN_MEMORY


def _iterates(iterated: ast.expr, call: ast.Call, scope: Scope) -> bool:
    """Return whether a loop goes over the loader: ``loader``, ``enumerate(loader)``, ``tqdm(loader)``."""
    parts = [iterated, *(iterated.args if isinstance(iterated, ast.Call) else ())]
    return any(scope.definition(part) is call for part in parts)
