"""Read task folders in robust-kbench's layout: a functional forward, and a file of settings whose product is the
configurations."""

from __future__ import annotations

import inspect
import itertools
import json
import os
from dataclasses import dataclass
from typing import Any, Callable

import torch

from ..failure import TargetFailure
from .inputs import CallInputs, generated
from .load import Callee, LoadedFile, call_user, find_symbol

FORWARD_SETTINGS, BACKWARD_SETTINGS = "config_forward.json", "config_backward.json"
MODEL, GET_INPUTS = "Model", "get_inputs"
MAX_CONFIGURATIONS = 64
"""Maximum configurations; known folders have up to 16."""


@dataclass(frozen=True)
class Settings:
    """One configuration of the folder: keyword arguments of `get_inputs` and of `Model`. `n_all` counts all given ones,
    also beyond `MAX_CONFIGURATIONS`. `declared` replaces fields of the target's source where that is no folder."""

    name: str
    inputs: dict[str, Any]
    init: dict[str, Any]
    n_all: int = 1
    declared: dict[str, Any] | None = None

    @property
    def all(self) -> dict[str, Any]:
        return {**self.init, **self.inputs}


def read_settings(file: str, with_backward: bool = False) -> list[Settings]:
    """Return the product of the folder's settings, single ones first, at most `MAX_CONFIGURATIONS`. The backward's own
    settings, if any, follow the forward's. Raises TargetFailure."""
    folder = os.path.dirname(os.path.abspath(file))
    given = [_read(os.path.join(folder, FORWARD_SETTINGS))]
    backward = os.path.join(folder, BACKWARD_SETTINGS)
    if with_backward and os.path.isfile(backward):
        given.append(_read(backward))
    combined = [merged for each in given for prefix in ("single", "multi") for merged in _product(each, prefix)]
    distinct = list({json.dumps(entry, sort_keys=True): entry for entry in combined or [({}, {})]}.values())
    return [
        Settings(_name(inputs, init), inputs, init, len(distinct)) for inputs, init in distinct[:MAX_CONFIGURATIONS]
    ]


def build(loaded: LoadedFile, source: dict[str, Any], settings: Settings) -> tuple[Callee, CallInputs]:
    """Build the model and the inputs of one configuration. Raises TargetFailure."""
    model_class = find_symbol(loaded, MODEL, source["line"])
    get_inputs = find_symbol(loaded, GET_INPUTS, source["line"])
    init = _accepted(model_class, settings.init)
    model = call_user(model_class, f"constructing {MODEL}({_name({}, init)})", loaded.file, **init)
    if not isinstance(model, torch.nn.Module):
        raise TargetFailure(f"{MODEL} is not an nn.Module", file=loaded.file, next_step="derive it from nn.Module")
    inputs = generated(loaded, source, model, _accepted(get_inputs, settings.inputs))
    return Callee(model, model, passes_state=True), inputs


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as stream:
            given = json.load(stream)
    except FileNotFoundError:
        name = os.path.basename(path)
        raise TargetFailure("the task folder has no settings", file=path, next_step=f"add {name}") from None
    except ValueError as error:
        line = getattr(error, "lineno", None)
        raise TargetFailure(f"the settings are not JSON: {error}", file=path, line=line) from None
    if not isinstance(given, dict):
        raise TargetFailure("the settings are not a JSON object", file=path, next_step="see robust-kbench's own tasks")
    for key, entries in given.items():
        if key.endswith("_configs") and not _are_settings(entries):
            message = f"'{key}' is not a list of objects"
            raise TargetFailure(message, file=path, next_step=f'write "{key}": [{{"name": value}}]')
    return given


def _are_settings(entries: Any) -> bool:
    if isinstance(entries, list):
        return all(isinstance(entry, dict) for entry in entries)
    return entries is None or isinstance(entries, dict)


def _product(given: dict[str, Any], prefix: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    if not any(key.startswith(f"{prefix}_") for key in given):
        return []
    parts = [_listed(given.get(f"{prefix}_{part}_configs")) for part in ("input", "init", "shared")]
    return [({**shared, **inputs}, {**shared, **init}) for inputs, init, shared in itertools.product(*parts)]


def _listed(entries: Any) -> list[dict[str, Any]]:
    """Return a list of settings: a single object becomes a list of one, nothing a list of one empty object."""
    return [entries] if isinstance(entries, dict) else (entries or [{}])


def _name(inputs: dict[str, Any], init: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in {**init, **inputs}.items()) or "default"


def _accepted(function: Callable[..., Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that the function accepts: shared ones are meant for either function."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind == p.VAR_KEYWORD for p in parameters):
        return dict(settings)
    names = {p.name for p in parameters}
    return {key: value for key, value in settings.items() if key in names}
