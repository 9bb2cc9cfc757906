"""One call of `torch.export`: the user's call as a graph of tensors, with some dims symbolic and others fixed, and its
result as named tensors.

Shapes of recurrent layers without their steps: PyTorch's own shape functions run every step of every layer.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
from torch._decomp import decomposition_table
from torch.utils._traceback import CapturedTraceback

from ..failure import TargetFailure, is_user_file
from ..shipped.operator_settings import attribute
from ..valid_names import identifier
from .call_limit import CallLimit
from .inputs import CallInputs
from .load import Callee
from .returned import flatten_outputs, returned_form
from .rewrites.data_attribute import DataIsDetached
from .rewrites.decomposed import DECOMPOSED, bags_as_rows
from .rewrites.in_place import convert_copied, replace_copies, without_in_place
from .rewrites.masks import without_masks
from .side_effects import without_side_effects

RECURRENT = tuple(getattr(torch.ops.aten, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))
"""Recurrent layers, which a captured forward keeps whole."""
KEYS = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)


@contextlib.contextmanager
def shapes_alone() -> Iterator[None]:
    """Compute only the shapes of recurrent layers while the code is traced. A trace of 512 steps takes minutes."""
    before = {operator: dict(operator.py_kernels) for operator in RECURRENT}
    decompositions = {operator: decomposition_table[operator] for operator in RECURRENT}
    for operator in RECURRENT:
        _set_kernels(operator, dict.fromkeys(KEYS, _shape_function(operator)))
        decomposition_table[operator] = _shape_function(operator)  # used by fake tensors of symbolic sizes
    try:
        yield
    finally:
        decomposition_table.update(decompositions)
        for operator, kernels in before.items():
            _set_kernels(operator, kernels)


def _set_kernels(operator: Any, kernels: dict[Any, Callable[..., Any]]) -> None:
    for key in KEYS:
        operator.py_kernels.pop(key, None)
    operator.py_kernels.update(kernels)
    operator._dispatch_cache.clear()


def _shape_function(operator: Any) -> Callable[..., tuple[torch.Tensor, ...]]:
    def shapes(
        value: torch.Tensor, states: Any, parameters: Sequence[torch.Tensor], has_biases: bool, *settings: Any
    ) -> tuple[torch.Tensor, ...]:
        _, _, _, is_bidirectional, _ = settings
        given = states if isinstance(states, (list, tuple)) else [states]
        n_units = parameters[1].shape[1] * (2 if is_bidirectional else 1)
        output = value.new_empty((value.shape[0], value.shape[1], n_units))
        return (output, *(state.new_empty(state.shape) for state in given))

    return shapes


OWNER = "owner"
"""The attribute of `Wrapper` that holds the user's module."""

Dim = tuple[int, int]
"""(position among the tensor inputs, dim)."""


@dataclass
class Record:
    """The findings of the last call. Kept outside the module: export resets attributes that a call sets. `updates` are
    the buffers and attributes, by path, whose values after a call are results behind those of the code; True for one
    that the code assigns, False for one that it changes in place. `absent` ones were no tensor before, and `caches` are
    those of them whose new values depend on no input. `graphs` are, for new values that depend on no parameter, the
    inputs and states that give them a graph."""

    output_names: list[str]
    returns: str = ""
    problem: TargetFailure | None = None
    updates: dict[str, bool] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    caches: set[str] = field(default_factory=set)
    graphs: dict[str, list[str]] = field(default_factory=dict)
    changes_data: bool = False
    """The code may change a ``tensor.data`` in place, which autograd does not see."""


class Wrapper(torch.nn.Module):
    """Takes the user's tensors flat, calls the user's code with them in their positions, returns its tensors flat, and
    behind them what the code updates."""

    def __init__(self, callee: Callee, inputs: CallInputs, file: str, line: int, updates: Mapping[str, bool]) -> None:
        super().__init__()
        if callee.owner is not None:
            self.owner = callee.owner
        self._target = (callee, inputs.rebuild)
        self._place = (file, line)
        self._record = (Record([], updates=dict(updates)),)

    @property
    def record(self) -> Record:
        return self._record[0]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        callee, rebuild = self._target
        positional, keywords = rebuild(tensors)
        updates = self.record.updates
        before = {path: attribute(callee.owner, path) for path in updates}
        try:
            caches = self.record.caches.union(updates)
            with without_side_effects(callee, *self._place, caches), CallLimit(tensors), DataIsDetached() as data:
                result = callee.call(*positional, **keywords)
                flat = flatten_outputs(result, *self._place)
                self.record.returns = returned_form(result, [tensor for _, tensor in flat], *self._place)
            self.record.changes_data = data.changes_data
        except TargetFailure as problem:
            self.record.problem = problem
            raise
        for path, old in before.items():
            new = attribute(callee.owner, path)
            updates[path] = new is not old
            if not isinstance(old, torch.Tensor):
                self.record.absent.add(path)
            _restore(callee.owner, path, old)
            flat.append((identifier(f"new_{path}"), new))
        self.record.output_names = [name for name, _ in flat]
        return tuple(tensor for _, tensor in flat)


def _restore(owner: torch.nn.Module, path: str, old: Any) -> None:
    """Set an attribute that is no tensor of a buffer to what it was: export restores these alone."""
    prefix, _, name = path.rpartition(".")
    part = owner.get_submodule(prefix)
    if name not in part._buffers or old is None:
        setattr(part, name, old)


@dataclass(frozen=True)
class Placeholder:
    """An argument of the captured graphs. `role` is input, parameter, buffer or constant; `index` is the position of an
    input among the tensor inputs; `value` is that of a parameter, buffer or constant."""

    node: str
    role: str
    index: int
    qualified_name: str
    value: Any


@dataclass
class Program:
    """A captured call: `functional` is the user's code in ATen; `core` is its decomposition. `mutations` are the
    buffers that the code changes, by path, with what a counter is increased by, None for any other."""

    functional: Any
    core: Any
    placeholders: list[Placeholder]
    mutations: dict[str, int | None]
    has_no_grad_region: bool

    @property
    def fake_inputs(self) -> list[Any]:
        """Return the placeholders' fake tensors, in order."""
        return [node.meta["val"] for node in self.functional.graph.nodes if node.op == "placeholder"]


def export_program(wrapper: Wrapper, inputs: CallInputs, dynamic: frozenset[Dim]) -> Program:
    """Export with the given dims symbolic. Raises any exception of torch or the user's code."""
    tensors = tuple(leaf.empty() for leaf in inputs.tensors)
    shapes = tuple(
        {dim: torch.export.Dim.AUTO for dim in range(tensor.dim()) if (position, dim) in dynamic} or None
        for position, tensor in enumerate(tensors)
    )
    with quiet(), _user_frames(), eagerly(), shapes_alone():
        exported = torch.export.export(wrapper, tensors, dynamic_shapes=(shapes,) if dynamic else None, strict=False)
        convert_copied(exported.graph_module.graph)
        is_changed = without_masks(exported)
        needs_tracing = is_changed or (_needs_rewriting(exported) and not without_in_place(exported))
        functional = exported.run_decompositions({}) if needs_tracing else exported
        if needs_tracing:
            replace_copies(functional.graph_module.graph)
            functional.graph_module.recompile()
        with bags_as_rows(exported.graph_module.graph):
            core = exported.run_decompositions(decompositions())
    kinds = [spec.kind.name for spec in functional.graph_signature.output_specs]
    if "USER_INPUT_MUTATION" in kinds:
        raise _input_mutation(exported, inputs)
    return Program(
        functional,
        core,
        _placeholders(functional),
        _mutations(functional),
        _has_no_grad_region(exported) or wrapper.record.changes_data,
    )


def all_dims(inputs: CallInputs) -> frozenset[Dim]:
    """Return every dim of every tensor input that can be symbolic: sizes 0 and 1 cannot, nor most of a module's
    state."""
    return frozenset(
        (position, dim)
        for position, leaf in enumerate(inputs.tensors)
        for dim, size in enumerate(leaf.shape)
        if size > 1 and (leaf.state is None or dim in leaf.state.dims)
    )


@contextlib.contextmanager
def _user_frames() -> Iterator[None]:
    """Keep the user's lines on nodes. Export keeps only frames of functions named `forward`. So nodes made in a plain
    function, or in a helper that `forward` calls, would have no line. Therefore all the user's frames get that name."""
    original = CapturedTraceback.summary

    def summary(self: Any) -> traceback.StackSummary:
        frames = [frame for frame in original(self) if is_user_file(frame.filename)]
        return traceback.StackSummary.from_list(
            [traceback.FrameSummary(frame.filename, frame.lineno, "forward") for frame in frames]
        )

    CapturedTraceback.summary = summary  # type: ignore[method-assign]  # for a time
    try:
        yield
    finally:
        CapturedTraceback.summary = original  # type: ignore[method-assign]  # as it was


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Disable `torch.compile` inside the user's code temporarily."""
    stance = getattr(torch.compiler, "set_stance", None)
    with stance("force_eager") if stance is not None else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's warnings and logs of its tries: failures are reported as answers."""
    previous = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


def user_outputs(exported: Any) -> list[Any]:
    """Return the graph's results that the user returned, as nodes. Buffer mutations come first and are left out."""
    return [result for result, spec in _results(exported) if spec.kind.name == "USER_OUTPUT"]


def _results(exported: Any) -> Iterator[tuple[Any, Any]]:
    results = next(node for node in reversed(exported.graph.nodes) if node.op == "output").args[0]
    return zip(results, exported.graph_signature.output_specs)


def depends_on_inputs(node: Any) -> bool:
    """Return True if a node's value depends on any argument of its graph."""
    todo, seen = [node], set()
    while todo:
        each = todo.pop()
        if each.op == "placeholder":
            return True
        if each not in seen:
            seen.add(each)
            todo += each.all_input_nodes
    return False


MUTATIONS = {"BUFFER_MUTATION", "PARAMETER_MUTATION"}


def _mutations(exported: Any) -> dict[str, int | None]:
    buffers = {spec.arg.name: str(spec.target) for spec in exported.graph_signature.input_specs}
    mutated = ((node, str(spec.target)) for node, spec in _results(exported) if spec.kind.name in MUTATIONS)
    return {_own(target): _increment(node, buffers, target) for node, target in mutated}


def _increment(node: Any, buffers: dict[str, str], target: str) -> int | None:
    """Return what a buffer of one integer, such as a count of calls, is increased by; None for any other update."""
    increment = 0
    while _is_addition(node):
        increment += node.args[1]
        node = node.args[0]
    return increment if increment and buffers.get(node.name) == target else None


def _is_addition(node: Any) -> bool:
    """Return True for the addition of a number to a tensor of one integer."""
    is_sum = node.target == torch.ops.aten.add.Tensor and not node.meta["val"].dtype.is_floating_point
    return is_sum and node.meta["val"].numel() == 1 and type(node.args[1]) is int and not node.kwargs


WITHOUT_PRODUCT = 2
"""PyTorch's mode of `cdist` that subtracts rows. By products, a distance of 0 is the root of a difference: 0.01."""


def _distances(by_products: Callable[..., Any]) -> Callable[..., Any]:
    """Return the decomposition of `cdist` that subtracts rows where these are those of one tensor."""

    def rule(left: torch.Tensor, right: torch.Tensor, p: float = 2.0, compute_mode: int | None = None) -> Any:
        if left is right:
            return torch.ops.aten._cdist_forward(left, right, p, WITHOUT_PRODUCT)
        return by_products(left, right, p, compute_mode)

    return rule


@functools.cache
def decompositions() -> dict[Any, Any]:
    """Return PyTorch's decompositions except those of recurrent layers, which repeat the step for every time. Listing
    them takes as long as decomposing a small graph: once for all exports of a capture, as the user's code may add
    operators before the next."""
    table, cdist = torch.export.default_decompositions(), torch.ops.aten.cdist.default
    table[cdist] = _distances(table[cdist])
    table.update(DECOMPOSED)
    return {operator: rule for operator, rule in table.items() if operator not in RECURRENT}


def _needs_rewriting(exported: Any) -> bool:
    """Check whether the graph changes tensors in place, or holds regions under autocast or no_grad as graphs of their
    own."""
    return any(
        node.op == "get_attr" or getattr(getattr(node.target, "_schema", None), "is_mutable", False)
        for node in exported.graph.nodes
    )


def _has_no_grad_region(exported: Any) -> bool:
    return any("set_grad_enabled" in str(node.target) for node in exported.graph.nodes if node.op == "call_function")


def _placeholders(exported: Any) -> list[Placeholder]:
    found, n_inputs = [], 0
    state = {**exported.state_dict, **exported.constants}
    for spec in exported.graph_signature.input_specs:
        kind, target = spec.kind.name, str(spec.target or "")
        role = {"USER_INPUT": "input", "PARAMETER": "parameter", "BUFFER": "buffer"}.get(kind, "constant")
        value = state.get(target)
        if role == "constant" and not isinstance(value, torch.Tensor):
            raise TargetFailure(f"the code uses an object that cannot be captured: {target or kind}")
        found.append(Placeholder(spec.arg.name, role, n_inputs if role == "input" else -1, _own(target), value))
        n_inputs += role == "input"
    return found


def _own(target: str) -> str:
    prefix = f"{OWNER}."
    return target[len(prefix) :] if target.startswith(prefix) else target


def _input_mutation(exported: Any, inputs: CallInputs) -> TargetFailure:
    from .source_lines import SourceLines

    sources = SourceLines()
    placeholders = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"}
    names: Sequence[str] = [leaf.name for leaf in inputs.tensors]
    for node in exported.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op == "call_function" and schema is not None and schema.is_mutable:
            changed = _root(node.args[0]) if node.args else None
            if changed is not None and changed.name in placeholders:
                place = sources.of(node)
                return TargetFailure(
                    f"an input is changed in place ({str(node.target).split('.')[1]}); inputs here are {list(names)}",
                    file=place.file if place else None,
                    line=place.line if place else None,
                    next_step="return a new tensor, and copy it into the input where the target is called",
                )
    return TargetFailure(
        "an input is changed in place", next_step="return a new tensor, and copy it where it is called"
    )


def _root(node: Any) -> Any:
    """Return the placeholder at the root of a chain of views, or the last node reached."""
    while getattr(node, "op", "") == "call_function" and node.args and hasattr(node.args[0], "op"):
        node = node.args[0]
    return node
