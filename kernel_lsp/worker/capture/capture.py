"""The command `capture`: convert a target's source into a task, and keep the state that `make_cases` needs. Before it,
`prepare_capture` imports what both need.

Of several configurations, those of a task folder or of a recorded run, one capture covers as many as it can, and each
of the others has its own.
"""

from __future__ import annotations

import contextlib
import json
import linecache
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..failure import Failure, TargetFailure
from ..files import PLAN_NAMES
from ..host import take_asked
from .attribute_watch import AttributeWatch
from .call import capture_call, prepare_module, refuse_empty
from .captured import WARM, Argument, Captured, bind_sizes
from .exported_program import decompositions
from .inputs import CallInputs, Leaf, ScalarLeaf, TensorLeaf, inputs_of
from .lifting import lifted, state_of
from .load import Callee, LoadedFile, load_file, resolve
from .modes import choose_mode, method_of, module_settings
from .numbers import attribute_place
from .robust_kbench import MAX_CONFIGURATIONS, Settings, build, read_settings
from .symbols import symbol_of


def prepare_capture(_: dict[str, Any]) -> dict[str, Any]:
    """Import everything that a first capture and its first case need, and return ``{}``. The client sends it while it
    still imports its own modules."""
    import torch._dynamo  # by `torch.export`, at its first use

    from ..cases import make_cases  # noqa: F401 (to have it imported)

    with contextlib.suppress(ImportError):  # a private name of torch's: without it torch imports the module on demand
        import torch.export._trace  # noqa: F401 (to have it imported)
    return {}


def capture(request: dict[str, Any]) -> dict[str, Any]:
    """Capture: ``{"source": TargetSource, "with_backward": bool, "configuration": int}`` -> ``{"task": Task}``. A
    configuration other than the first keeps the first one's capture. Raises Failure."""
    source, configuration = request["source"], int(request.get("configuration", 0))
    linecache.checkcache()
    decompositions.cache_clear()
    take_asked()
    if not configuration:
        WARM.captured, WARM.others = None, {}
    loaded = load_file(source["file"])
    captured = _captured_target(loaded, source, bool(request.get("with_backward")), configuration)
    if take_asked():
        captured.notes.append("the code asks for a GPU and there is none here: captured on the CPU")
    captured.configuration = configuration
    if configuration:
        WARM.others[configuration] = captured
    else:
        WARM.captured = captured
    from .task import task_of

    return {"task": task_of(captured)}


def _captured_target(loaded: LoadedFile, source: dict[str, Any], with_backward: bool, configuration: int) -> Captured:
    if source["kind"] == "robust_kbench" or source.get("configurations"):
        return capture_configuration(loaded, source, with_backward, configuration)
    callee = resolve(loaded, source)
    for given in source.get("attributes") or ():
        module, name = attribute_place(callee.owner, given["path"])
        setattr(module, name, given["value"])
    inputs = inputs_of(loaded, source, callee.call)
    refuse_empty(inputs, source)
    return capture_call(source, callee, inputs, with_backward)


MAX_COMPARE_S = 45.0
"""Seconds for captures that compare other configurations with the first. Configurations left over get captures of their
own."""
NOT_COMPARED = "not compared with the first one: there are too many"


@dataclass(frozen=True)
class _Built:
    """A configuration, ready to be captured."""

    settings: Settings
    callee: Callee
    inputs: CallInputs

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        owner = self.callee.owner
        return {} if owner is None else {name: tuple(tensor.shape) for name, tensor in state_of(owner).items()}


@dataclass
class Coverage:
    """The configurations that one capture covers, by entry of the task, and why it does not cover the others."""

    covered: list[dict[str, Any]]
    uncovered: list[dict[str, Any]]
    differing_settings: set[str]
    """Attributes of the module that differ between covered configurations."""


def capture_configuration(loaded: LoadedFile, source: dict[str, Any], with_backward: bool, index: int) -> Captured:
    """Return the capture of configuration `index`. That of the first one covers others where it can. Raises Failure."""
    settings = _settings(source, with_backward)
    chosen = source.get("configuration", 0)
    if max(index, chosen) >= len(settings):
        number = max(index, chosen) + 1
        raise TargetFailure(f"there are {len(settings)} configurations, and no {number}th", file=source["file"])
    if chosen:
        settings = settings[chosen : chosen + 1]
    built = _build(loaded, source, settings[index], with_backward)
    refuse_empty(built.inputs, source)
    if index:
        return _capture(source, built, with_backward, {})
    others = [_Other(loaded, source, entry, with_backward) for entry in settings[1:]]
    captured = _capture(source, built, with_backward, _varying(built, others))
    captured.coverage = _coverage(captured, built, others, with_backward)
    if settings[0].n_all > MAX_CONFIGURATIONS:
        captured.notes.append(f"{settings[0].n_all} configurations are given; the first {MAX_CONFIGURATIONS} were read")
    return captured


class _Other:
    """Another configuration, built on demand; `problem` says why it cannot be."""

    def __init__(self, loaded: LoadedFile, source: dict[str, Any], settings: Settings, with_backward: bool) -> None:
        self.settings, self._arguments = settings, (loaded, source, settings, with_backward)
        self._built: _Built | None = None
        self.problem = ""

    @property
    def built(self) -> _Built | None:
        if self._built is None and not self.problem:
            try:
                self._built = _build(*self._arguments)
            except Failure as failure:
                self.problem = failure.message
        return self._built


def _settings(source: dict[str, Any], with_backward: bool) -> list[Settings]:
    """Return the folder's configurations, or the target's own inputs and its recorded ones."""
    if source["kind"] == "robust_kbench":
        return read_settings(source["file"], with_backward)
    init = dict(source.get("init_arguments") or {})
    others = source["configurations"]
    return [Settings("captured", {}, init, declared={})] + [
        Settings(other["name"], {}, dict(other["init_arguments"] or {}), declared=other) for other in others
    ]


def _build(loaded: LoadedFile, source: dict[str, Any], settings: Settings, with_backward: bool) -> _Built:
    if settings.declared is None:
        callee, inputs = build(loaded, source, settings)
    else:
        declared = {**source, **settings.declared}
        callee = resolve(loaded, declared)
        inputs = inputs_of(loaded, declared, callee.call)
        choose_mode(callee, source["kind"], with_backward)
    callee.notes += prepare_module(callee, source["kind"])
    return _Built(settings, callee, inputs)


def _varying(first: _Built, others: Sequence[_Other]) -> dict[str, tuple[int, ...]]:
    """Return the dims of the module's parameters and buffers that differ between configurations with the same
    parameters."""
    own = first.state_shapes
    shapes = [other.built.state_shapes for other in others if other.built is not None]
    alike = [found for found in shapes if found.keys() == own.keys() and all(len(found[n]) == len(own[n]) for n in own)]
    return {
        name: dims
        for name in own
        if (dims := tuple(d for d in range(len(own[name])) if any(found[name][d] != own[name][d] for found in alike)))
    }


def _capture(
    source: dict[str, Any], built: _Built, with_backward: bool, varying: dict[str, tuple[int, ...]]
) -> Captured:
    """Capture with the varying sizes of parameters symbolic; with all of them fixed where the code does not allow
    that."""
    attributes = AttributeWatch()
    if varying:
        try:
            lifted_call = lifted(built.callee, built.inputs, varying)
            captured = capture_call(source, *lifted_call, with_backward, attributes)
        except TargetFailure:
            captured = None
        if captured is not None and captured.has_symbolic_state:
            return captured
    return capture_call(source, built.callee, built.inputs, with_backward, attributes)


def _coverage(captured: Captured, first: _Built, others: Sequence[_Other], with_backward: bool) -> Coverage:
    method = method_of(captured.source)
    own_settings = module_settings(first.callee.owner, method)
    found = Coverage([_entry(first.settings, shapes_of(captured, first))], [], set())
    comparison = _Comparison(captured, first, with_backward)
    for position, other in enumerate(others):
        reason = comparison.difference(other)
        if not reason and other.built is not None:
            found.covered.append(_entry(other.settings, shapes_of(captured, other.built)))
            theirs = module_settings(other.built.callee.owner, method)
            found.differing_settings |= {name for name, value in own_settings.items() if theirs.get(name) != value}
        else:
            shapes = {} if other.built is None else shapes_of(captured, other.built)
            entry = {"index": position + 1, "name": other.settings.name, "reason": reason, "shapes": shapes}
            found.uncovered.append(entry)
    return found


class _Comparison:
    """Finds out why the capture does not cover another configuration. Differences in the inputs' sizes alone need no
    capture. One capture decides for all configurations that construct the module alike."""

    def __init__(self, captured: Captured, first: _Built, with_backward: bool) -> None:
        self._captured, self._first, self._with_backward = captured, first, with_backward
        self._known: dict[str, str] = {}
        self._deadline = time.monotonic() + MAX_COMPARE_S

    def difference(self, other: _Other) -> str:
        """Return the difference; empty when there is none."""
        built = other.built
        if built is None:
            return f"it cannot be built: {other.problem}"
        own_names, names = ({leaf.name for leaf in each.inputs.tensors} for each in (self._first, built))
        for name in sorted(own_names ^ names):
            return f"'{name}' is {'a tensor' if name in names else 'no tensor'} there"
        shapes = shapes_of(self._captured, built)
        problem = _misfit(self._captured, shapes) or _other_types(self._captured, built)
        own, theirs = _plain_values(self._first.inputs), _plain_values(built.inputs)
        for name in {} if problem else {**own, **theirs}:
            found, captured = theirs.get(name, _LEFT_OUT), own.get(name, _LEFT_OUT)
            if found != captured:
                return f"'{name}' is {found}, not {captured}"
        if problem:
            return problem
        if built.settings.init == self._first.settings.init:
            return ""
        key = json.dumps(built.settings.init, sort_keys=True)
        if key not in self._known:
            if time.monotonic() > self._deadline:
                return NOT_COMPARED
            self._known[key] = self._constants_differ(built)
        return self._known[key]

    def _constants_differ(self, built: _Built) -> str:
        try:
            again = _capture_alike(self._captured, built, self._with_backward)
        except Failure as failure:
            return f"it cannot be captured: {failure.message}"
        return _other_nodes(self._captured, again)


def _capture_alike(captured: Captured, built: _Built, with_backward: bool) -> Captured:
    """Capture the other configuration with the same dims symbolic. A size of 1 cannot be symbolic: it is replaced by
    the captured size, since only constants are compared."""
    inputs = _without_ones(captured, built)
    varying = {leaf.state.name: leaf.state.dims for leaf in captured.inputs.tensors if leaf.state is not None}
    if not varying:
        return capture_call(captured.source, built.callee, inputs, with_backward)
    return capture_call(captured.source, *lifted(built.callee, inputs, varying), with_backward)


def _without_ones(captured: Captured, built: _Built) -> CallInputs:
    fakes = {
        argument.placeholder.index: captured.program.fake_inputs[argument.position]
        for argument in captured.arguments
        if argument.placeholder.role == "input"
    }
    position = -1
    leaves: list[Leaf] = []
    for leaf in built.inputs.leaves:
        if isinstance(leaf, TensorLeaf):
            position += 1
            leaf = replace(leaf, shape=_grown(leaf.shape, fakes.get(position), captured))
        leaves.append(leaf)
    return replace(built.inputs, leaves=leaves)


def _grown(shape: Sequence[int], fake: Any, captured: Captured) -> tuple[int, ...]:
    if fake is None or fake.dim() != len(shape):
        return tuple(shape)
    symbols = [symbol_of(declared) for declared in fake.shape]
    return tuple(captured.captured_sizes.get(symbol, 1) if n == 1 else n for n, symbol in zip(shape, symbols))


def shapes_of(captured: Captured, built: _Built) -> dict[str, list[int]]:
    """Return the shape of every argument of the capture in another configuration; an empty one for an argument that is
    missing there."""
    found = {argument.name: _tensor_of(captured, built, argument) for argument in captured.arguments}
    return {name: [] if tensor is None else list(tensor.shape) for name, tensor in found.items()}


def _tensor_of(captured: Captured, built: _Built, argument: Argument) -> Any:
    """Return a configuration's tensor for an argument, with its shape and dtype; None when it has none."""
    name, index = captured.state_name(argument), argument.placeholder.index
    if name is not None:
        return state_of(built.callee.owner).get(name, argument.placeholder.value if index < 0 else None)
    tensors = built.inputs.tensors
    return tensors[index] if 0 <= index < len(tensors) else None


def _entry(settings: Settings, shapes: dict[str, list[int]]) -> dict[str, Any]:
    return {"name": settings.name, "shapes": shapes, "settings": settings.all}


_LEFT_OUT = "left out"


def _plain_values(inputs: CallInputs) -> dict[str, Any]:
    """Return the arguments that are no tensors, by name."""
    return {leaf.name: leaf.value for leaf in inputs.leaves if isinstance(leaf, ScalarLeaf)} | {
        **inputs.constants,
        **inputs.structures,
    }


def _other_types(captured: Captured, built: _Built) -> str:
    for argument in captured.arguments:
        found = _tensor_of(captured, built, argument)
        own = captured.program.fake_inputs[argument.position].dtype
        if found is not None and found.dtype != own:
            names = [PLAN_NAMES.get(dtype, str(dtype)) for dtype in (found.dtype, own)]
            return f"'{argument.name}' is {names[0]}, captured as {names[1]}"
    return ""


def _other_nodes(captured: Captured, again: Captured) -> str:
    own, other = _nodes(captured), _nodes(again)
    if [node["op"] for node in own] != [node["op"] for node in other]:
        return "it is made of other operations"
    for one, two in zip(map(_without_numbers, own), map(_without_numbers, other)):
        for key in ("arguments", "keywords", "types"):
            if one[key] != two[key]:
                return f"{one['op']} has {_first_difference(two[key], one[key])}"
    return ""


def _without_numbers(node: dict[str, Any]) -> dict[str, Any]:
    """Return the node with the texts of the caller's numbers in place of their values, which are arguments."""
    texts = node["scalars"]
    positional = [texts.get(str(position), value) for position, value in enumerate(node["arguments"])]
    named = {name: texts.get(name, value) for name, value in node["keywords"].items()}
    return {**node, "arguments": positional, "keywords": named}


def _first_difference(found: Any, wanted: Any) -> str:
    if isinstance(found, (list, tuple)) and isinstance(wanted, (list, tuple)) and len(found) == len(wanted):
        return next(_first_difference(a, b) for a, b in zip(found, wanted) if a != b)
    return f"{found} where the capture has {wanted}"


def _nodes(captured: Captured) -> list[dict[str, Any]]:
    texts = [captured.forward_text, captured.backward_text]
    return [node for text in texts if text is not None for node in text.nodes]


def _misfit(captured: Captured, shapes: dict[str, list[int]]) -> str:
    """Describe shapes that do not fit the capture: as `bind_sizes` finds, or with a symbol out of bounds."""
    sizes, problem = bind_sizes(captured, shapes)
    for symbol, size in sizes.items() if not problem else ():
        if symbol in captured.bounds and size != 1 and not captured.bounds[symbol].holds(size):
            return f"the size {size} is outside of the bounds of {captured.symbols.names.get(symbol, symbol)}"
    return problem
