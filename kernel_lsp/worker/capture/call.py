"""Capture one call of the user's code: prepare its module, and retry with fewer symbolic dims until that works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..failure import TargetFailure
from .attempt import Attempt, MustFix, StillRandom
from .attribute_reads import owner_of
from .attribute_watch import AttributeWatch
from .captured import Captured
from .exported_program import Dim, Wrapper, all_dims
from .inputs import CallInputs
from .lifting import with_draws
from .load import Callee
from .modes import MODULE_KINDS, choose_mode, has_running_statistics, is_same_in_other_mode, watched_mode
from .numbers import find_numbers

DROPOUT_NOTE = "dropout is random in training mode: captured with the module in eval mode"
MODE_NOTE = "captured in eval mode: training mode computes something else"
DEEP_MODE_NOTE = "captured in eval mode: the module is deep, and training mode was not compared"
STATISTICS_NOTE = "batch norm is in training mode: it uses the batch's statistics, and running ones are not updated"
DEEP_NOTE = "the module is deep: only the first dim of each input may change"
MAX_SYMBOLIC_LAYERS = 32
"""Maximum layers of a module whose inputs may change in every dim. A ResNet-18, which has 61, took 11 s of a processor
to export so."""
MAX_ATTEMPTS = 6
"""Maximum attempts with symbolic dims; each fixes at least one, and the last fixes all."""


def capture_call(
    source: dict[str, Any],
    callee: Callee,
    inputs: CallInputs,
    with_backward: bool,
    attributes: AttributeWatch | None = None,
) -> Captured:
    """Capture one call, with as many dims symbolic as torch and our expressions allow. Raises Failure. `attributes` are
    those that earlier captures of the same object have read."""
    attributes = attributes or AttributeWatch()
    choose_mode(callee, source["kind"], with_backward)
    has_statistics = has_running_statistics(callee.owner)
    notes = list(dict.fromkeys([*callee.notes, *inputs.notes, *prepare_module(callee, source["kind"])]))
    place = (source["file"], source["line"])
    wrapper = Wrapper(callee, inputs, *place, _running_statistics(callee))
    dynamic = _symbolic_dims(callee, inputs, notes)
    for attempt in range(MAX_ATTEMPTS + 1):
        if attempt == MAX_ATTEMPTS:
            dynamic = frozenset()
        try:
            with attributes.over(owner_of(callee)):
                with watched_mode(callee.owner) as reads:
                    captured = Attempt(source, callee, inputs, wrapper, dynamic, notes).run(with_backward)
                other = Wrapper(callee, inputs, *place, wrapper.record.updates)
                again = Attempt(source, callee, inputs, other, dynamic, [])
                _note_mode(captured, again, has_statistics, reads)
            captured.attributes = attributes
            find_numbers(captured, again, has_settings=not _is_deep(callee))
            return captured
        except MustFix as must:
            fewer = dynamic - must.dims if must.dims else frozenset()
            notes += [note for note in must.notes if note not in notes]
            dynamic = fewer
        except StillRandom:
            if getattr(callee.module, "training", False):
                callee.module.eval()
                notes.append(DROPOUT_NOTE)
                continue
            callee, inputs = with_draws(callee, inputs)
            notes += [note for note in inputs.notes if note not in notes]
            wrapper = Wrapper(callee, inputs, *place, wrapper.record.updates)
            dynamic = _symbolic_dims(callee, inputs, notes)
    raise AssertionError("an attempt without symbolic dims returns or raises a failure")


def _symbolic_dims(callee: Callee, inputs: CallInputs, notes: list[str]) -> frozenset[Dim]:
    """Return the dims to try as symbolic: all that can be, and of a deep module the first of each input. Every layer
    with a stride adds a level to the sizes of all that follow, and torch's time grows with both."""
    dims = all_dims(inputs)
    if not _is_deep(callee):
        return dims
    first = frozenset(dim for dim in dims if dim[1] == 0 or inputs.tensors[dim[0]].state is not None)
    if first != dims and DEEP_NOTE not in notes:
        notes.append(DEEP_NOTE)
    return first


def _is_deep(callee: Callee) -> bool:
    modules = callee.owner.modules() if callee.owner is not None else ()
    return sum(not any(True for _ in module.children()) for module in modules) > MAX_SYMBOLIC_LAYERS


def refuse_empty(inputs: CallInputs, source: dict[str, Any]) -> None:
    """Raises TargetFailure for an input without elements."""
    for leaf in inputs.tensors:
        if 0 in leaf.shape:
            raise TargetFailure(
                f"input '{leaf.name}' has no elements (shape {list(leaf.shape)}), so there is nothing to compute",
                file=source["file"],
                line=source["line"],
                next_step="capture with sizes of at least 1",
            )


def prepare_module(callee: Callee, kind: str) -> list[str]:
    """Move the user's module to the CPU and into a mode whose result is a function of its arguments. A batch norm in
    training mode updates its statistics, but for a benchmark, which compares what it returns, and in a deep module,
    where each would be two results more."""
    owner, notes = callee.owner, []
    if owner is None:
        return []
    if any(tensor.device.type != "cpu" for tensor in [*owner.parameters(), *owner.buffers()]):
        owner.cpu()
        notes.append("the module was built on a GPU: captured on the CPU")
    notes += _register_tensors(owner)
    dropout = torch.nn.modules.dropout._DropoutNd
    if any(isinstance(m, dropout) and m.training and m.p > 0 for m in owner.modules()):
        owner.eval()
        notes.append(DROPOUT_NOTE)
    leaves_out = kind not in MODULE_KINDS or _is_deep(callee)
    for module in owner.modules():
        if isinstance(module, dropout):
            module.eval()
        if _updates_statistics(module) and not callee.passes_state and (leaves_out or module.momentum is None):
            notes += _use_batch_statistics(module)
    return list(dict.fromkeys(notes))


def _register_tensors(owner: torch.nn.Module) -> list[str]:
    """Make buffers of plain tensor attributes, such as a hidden state that `forward` assigns: export forbids changes of
    any other tensor."""
    found = []
    for path, module in owner.named_modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
                delattr(module, name)
                module.register_buffer(name, value.detach(), persistent=False)
                found.append(f"{path}.{name}" if path else name)
    return [f"the tensor attribute '{name}' is captured as a buffer" for name in found]


def _note_mode(captured: Captured, again: Attempt, has_statistics: bool, reads: Sequence[str]) -> None:
    """Note the mode that the capture of a module holds for, where the other one computes something else. A deep module
    that asks for its mode is not captured a second time for that: a vision transformer's took 14 s of a processor."""
    owner = captured.callee.owner
    if owner is None or captured.source["kind"] == "robust_kbench":
        return
    is_deep = _is_deep(captured.callee)
    if has_statistics or (reads and (is_deep or not is_same_in_other_mode(captured, again))):
        captured.mode = owner.training
        if not owner.training and DROPOUT_NOTE not in captured.notes:
            captured.notes.append(DEEP_MODE_NOTE if is_deep else MODE_NOTE)


def _updates_statistics(module: Any) -> bool:
    return isinstance(module, torch.nn.modules.batchnorm._NormBase) and module.training and module.track_running_stats


def _running_statistics(callee: Callee) -> dict[str, bool]:
    """Return the running statistics that a call updates in place, by path."""
    modules = callee.owner.named_modules() if callee.owner is not None and not callee.passes_state else ()
    paths = [path for path, module in modules if _updates_statistics(module)]
    return {f"{path}.{name}".strip("."): False for path in paths for name in ("running_mean", "running_var")}


def _use_batch_statistics(module: Any) -> list[str]:
    """Make a module in training mode depend on the batch alone: updates of running statistics are left out."""
    module.track_running_stats = False
    module.running_mean = module.running_var = module.num_batches_tracked = None
    return [STATISTICS_NOTE]
