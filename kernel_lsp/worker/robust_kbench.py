"""Task folders in robust-kbench's layout: a functional forward, and a file of settings whose product is the
configurations."""

from __future__ import annotations

import inspect
import itertools
import json
import os
from dataclasses import dataclass
from typing import Any, Callable

import torch

from .failure import Failure, TargetFailure
from .inputs import CallInputs, generated
from .load import Callee, LoadedFile, call_user, find_symbol

SETTINGS_FILE = "config_forward.json"
MODEL, GET_INPUTS = "Model", "get_inputs"
MAX_CONFIGURATIONS = 16
"""Each one past the first costs up to a capture; folders seen have fewer."""


@dataclass(frozen=True)
class Settings:
    """One configuration of the folder: keyword arguments of `get_inputs` and of `Model`."""

    name: str
    inputs: dict[str, Any]
    init: dict[str, Any]
    n_all: int = 1


def first_configuration(loaded: LoadedFile, source: dict[str, Any]) -> tuple[Callee, CallInputs]:
    """The model and inputs of the folder's first configuration. Raises TargetFailure."""
    return _build(loaded, source, read_settings(source["file"])[0])


def read_settings(file: str) -> list[Settings]:
    """The product of the folder's settings, single ones first, at most `MAX_CONFIGURATIONS`. Raises TargetFailure."""
    path = os.path.join(os.path.dirname(os.path.abspath(file)), SETTINGS_FILE)
    try:
        with open(path, encoding="utf-8") as stream:
            given = json.load(stream)
    except FileNotFoundError:
        raise TargetFailure("the task folder has no settings", file=path, next_step=f"add {SETTINGS_FILE}") from None
    except ValueError as error:
        line = getattr(error, "lineno", None)
        raise TargetFailure(f"the settings are not JSON: {error}", file=path, line=line) from None
    if not isinstance(given, dict):
        raise TargetFailure("the settings are not a JSON object", file=path, next_step="see robust-kbench's own tasks")
    combined = [merged for prefix in ("single", "multi") for merged in _product(given, prefix)]
    distinct = list({json.dumps(entry, sort_keys=True): entry for entry in combined}.values())
    return [
        Settings(_name(inputs, init), inputs, init, len(distinct)) for inputs, init in distinct[:MAX_CONFIGURATIONS]
    ]


def all_configurations(captured: Any) -> list[dict[str, Any]]:
    """Every configuration that the capture covers; the others are named in its notes."""
    from .task import captured_shapes

    settings = read_settings(captured.source["file"])
    loaded = LoadedFile(captured.source["file"], inspect.getmodule(type(captured.callee.owner)))  # type: ignore[arg-type]
    found = [_entry(settings[0], captured_shapes(captured))]
    for other in settings[1:]:
        shapes = _shapes_if_covered(captured, loaded, other, settings[0])
        if shapes is None:
            captured.notes.append(f"not covered by this capture, whose fixed sizes or constants differ: {other.name}")
        else:
            found.append(_entry(other, shapes))
    if settings[0].n_all > MAX_CONFIGURATIONS:
        captured.notes.append(f"{settings[0].n_all} configurations are given; the first {MAX_CONFIGURATIONS} were read")
    return found


# --- below: settings


def _product(given: dict[str, Any], prefix: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    if not any(key.startswith(f"{prefix}_") for key in given):
        return []
    parts = [given.get(f"{prefix}_{part}_configs") or [{}] for part in ("input", "init", "shared")]
    return [({**shared, **inputs}, {**shared, **init}) for inputs, init, shared in itertools.product(*parts)]


def _name(inputs: dict[str, Any], init: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in {**init, **inputs}.items()) or "default"


def _entry(settings: Settings, shapes: dict[str, list[int]]) -> dict[str, Any]:
    return {"name": settings.name, "shapes": shapes, "settings": {**settings.init, **settings.inputs}}


# --- below: building


def _build(loaded: LoadedFile, source: dict[str, Any], settings: Settings) -> tuple[Callee, CallInputs]:
    model_class = find_symbol(loaded, MODEL, source["line"])
    get_inputs = find_symbol(loaded, GET_INPUTS, source["line"])
    init = _accepted(model_class, settings.init)
    model = call_user(model_class, f"constructing {MODEL}({_name({}, init)})", loaded.file, **init)
    if not isinstance(model, torch.nn.Module):
        raise TargetFailure(f"{MODEL} is not an nn.Module", file=loaded.file, next_step="derive it from nn.Module")
    inputs = generated(loaded, source, model, _accepted(get_inputs, settings.inputs))
    return Callee(model, model), inputs


def _accepted(function: Callable[..., Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that the function takes: shared ones are meant for either."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind == p.VAR_KEYWORD for p in parameters):
        return dict(settings)
    names = {p.name for p in parameters}
    return {key: value for key, value in settings.items() if key in names}


def _shapes_if_covered(
    captured: Any, loaded: LoadedFile, settings: Settings, first: Settings
) -> dict[str, list[int]] | None:
    """The shapes of the arguments in another configuration; None when the captured graph is not right for it."""
    from .capture import capture_call

    try:
        callee, inputs = _build(loaded, captured.source, settings)
        shapes = _shapes(captured, callee, inputs)
        if not _fits(captured, shapes) or settings.init == first.init:
            return shapes if _fits(captured, shapes) else None
        again = capture_call(captured.source, callee, inputs, with_backward=False)
    except Failure:
        return None
    return shapes if _skeleton(again) == _skeleton(captured) else None


def _shapes(captured: Any, callee: Callee, inputs: CallInputs) -> dict[str, list[int]]:
    """The shape of every argument of the capture in another configuration; none for one that it does not have."""
    state = {**dict(callee.owner.named_parameters()), **dict(callee.owner.named_buffers())}
    found = {}
    for argument in captured.arguments:
        placeholder = argument.placeholder
        is_input = placeholder.role == "input"
        value = inputs.tensors[placeholder.index] if is_input else state.get(placeholder.qualified_name)
        found[argument.name] = list(value.shape) if value is not None else []
    return found


def _skeleton(captured: Any) -> list[Any]:
    return [(node["op"], node["arguments"], node["keywords"]) for node in captured.forward_text.nodes]


def _fits(captured: Any, shapes: dict[str, list[int]]) -> bool:
    """Whether shapes agree with the captured ones: fixed dims equal, each symbol one size within its bounds."""
    sizes: dict[Any, int] = {}
    for argument in captured.arguments:
        fake = captured.program.fake_inputs[argument.position]
        if len(shapes[argument.name]) != fake.dim():
            return False
        for declared, size in zip(fake.shape, shapes[argument.name]):
            expression = getattr(getattr(declared, "node", None), "expr", None)
            if size != (int(declared) if expression is None else sizes.setdefault(expression, size)):
                return False
    return all(size == 1 or captured.bounds[s].holds(size) for s, size in sizes.items() if s in captured.bounds)
