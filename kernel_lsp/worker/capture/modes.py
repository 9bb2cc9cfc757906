"""Modes and settings of a module: which mode is captured, whether the other one computes the same, and which plain
attributes are constants in the captured graph."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch

from .attempt import Attempt
from .captured import Captured
from .load import Callee

TRAINING = "training"
MODULE_KINDS = ("module", "method")
"""Kinds of targets whose mode is ours to choose: benchmarks define their own."""
TOLD_BY_SHAPES = frozenset(
    "in_features out_features in_channels out_channels num_features num_channels num_embeddings embedding_dim "
    "normalized_shape affine elementwise_affine output_padding transposed training call_super_init "
    "dump_patches num_batches_tracked".split()
)
"""Attributes that the parameters' shapes determine, or that do not affect values."""


def choose_mode(callee: Callee, kind: str, with_backward: bool) -> None:
    """Put a module into eval mode where no backward is asked for: inference runs it so."""
    if kind in MODULE_KINDS and not with_backward and callee.owner is not None:
        callee.owner.eval()


def mode_settings(owner: torch.nn.Module, mode: bool) -> dict[str, bool]:
    """Return the mode, and by qualified name that of each submodule in the other one, such as a frozen batch norm.
    A dropout's says nothing: one that is captured is inactive."""
    dropout = torch.nn.modules.dropout._DropoutNd
    others = (path for path, m in owner.named_modules() if m.training != mode and not isinstance(m, dropout))
    return {TRAINING: mode, **{f"{path}.{TRAINING}": not mode for path in others if path}}


def module_settings(owner: Any, *, is_eval: bool = False) -> dict[str, Any]:
    """Return the settings by qualified name, e.g. ``{"norm.eps": 1e-06, "conv.stride": [2, 2]}``; empty for a function.
    With `is_eval` the rate of a dropout is left out: it affects nothing in eval mode."""
    if not isinstance(owner, torch.nn.Module):
        return {}
    settings: dict[str, Any] = {}
    for path, module in owner.named_modules():
        if is_eval and isinstance(module, torch.nn.modules.dropout._DropoutNd):
            continue
        for name, value in vars(module).items():
            if name.startswith("_") or name in TOLD_BY_SHAPES or not _is_plain(value):
                continue
            settings[f"{path}.{name}" if path else name] = list(value) if isinstance(value, tuple) else value
    return settings


def updates_statistics(owner: Any) -> bool:
    """Tell whether the mode decides between a batch's statistics and running ones."""
    norm = torch.nn.modules.batchnorm._NormBase
    modules = owner.modules() if isinstance(owner, torch.nn.Module) else ()
    return any(isinstance(module, norm) and module.track_running_stats for module in modules)


@contextlib.contextmanager
def watched_mode(owner: Any) -> Iterator[list[str]]:
    """List a module's class for each time that code asks for its mode: `training` is a property meanwhile."""
    reads: list[str] = []
    if not isinstance(owner, torch.nn.Module):
        yield reads
        return
    watched = {id(module) for module in owner.modules()}

    def read(self: torch.nn.Module) -> bool:
        if id(self) in watched:
            reads.append(type(self).__name__)
        if TRAINING not in vars(self):
            raise AttributeError(TRAINING)
        return bool(vars(self)[TRAINING])

    def write(self: torch.nn.Module, mode: bool) -> None:
        vars(self)[TRAINING] = mode

    torch.nn.Module.training = property(read, write)  # type: ignore[assignment]  # for a time
    try:
        yield reads
    finally:
        del torch.nn.Module.training


def is_same_in_other_mode(captured: Captured, again: Attempt) -> bool:
    """Capture the module again in the other mode, and compare the graphs. The modes are left as they were."""
    owner = captured.callee.owner
    before = {module: module.training for module in owner.modules()}
    try:
        owner.train(not owner.training)
        return _computation(again.run(with_backward=False)) == _computation(captured)
    except Exception:  # whatever the other mode raises, as dropout does, it is not the same computation
        return False
    finally:
        for module, mode in before.items():
            module.training = mode


def _computation(captured: Captured) -> tuple[Any, ...]:
    text = captured.forward_text
    return [argument.name for argument in captured.arguments], text.nodes, text.outputs


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(type(entry) is int for entry in value)
    if type(value) is float:
        return math.isfinite(value)
    return type(value) in (int, bool, str)
