"""The corpus itself, in plain PyTorch: every folder runs in every configuration, and every backward is one."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
FOLDERS = sorted(path.parent for path in HERE.glob("*/func_forward.py"))
WITH_BACKWARD = [folder for folder in FOLDERS if (folder / "func_backward.py").is_file()]
MAX_ELEMENTS = 300_000
"""Limit of any tensor, so that a whole check takes seconds on a CPU."""
TOLERANCES = {torch.float32: 2e-5, torch.float16: 5e-2, torch.bfloat16: 1e-1}


def by_name(folder: Path) -> str:
    return folder.name


@pytest.mark.parametrize("folder", FOLDERS, ids=by_name)
def test_a_folder_runs_in_every_configuration(folder: Path) -> None:
    module = load(folder, "func_forward")
    for inputs, init in configurations(folder, "config_forward.json"):
        model, given = build(module, inputs, init)
        output = call(model, given)
        assert bool(output.isfinite().all())
        assert max(tensor.numel() for tensor in (*flat(given), output)) <= MAX_ELEMENTS
        assert list(module.input_names) == [p for p in inspect.signature(model.forward).parameters if p != "fn"]


@pytest.mark.parametrize("folder", WITH_BACKWARD, ids=by_name)
def test_a_backward_function_gives_the_gradients_of_the_forward(folder: Path) -> None:
    forward, backward = load(folder, "func_forward"), load(folder, "func_backward")
    assert callable(backward.AutogradFunction.backward_fn)
    for inputs, init in configurations(folder, "config_backward.json"):
        theirs, given = build(backward, inputs, init)
        ours, _ = build(forward, inputs, init)
        ours.load_state_dict(theirs.state_dict())
        expected, found = gradients(ours, given), gradients(theirs, given)
        assert len(expected) == len(found)
        for one, other in zip(expected, found, strict=True):
            tolerance = TOLERANCES[one.dtype]
            torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance)


def test_the_corpus_has_the_benchmarks_eleven_tasks() -> None:
    assert len(FOLDERS) == 11
    assert len(WITH_BACKWARD) == 8


def load(folder: Path, name: str) -> Any:
    """A file of the folder, imported with its neighbours, and forgotten again."""
    known = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location(f"{folder.name}_{name}", folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(folder))
        for neighbour in set(sys.modules) - known:
            if str(getattr(sys.modules[neighbour], "__file__", "")).startswith(str(HERE)):
                del sys.modules[neighbour]


def configurations(folder: Path, name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Keyword arguments of `get_inputs` and `Model`: the product of each list of the settings."""
    given = json.loads((folder / name).read_text())
    found = []
    for prefix in ("single", "multi"):
        lists = [given.get(f"{prefix}_{part}_configs", [{}]) for part in ("input", "init", "shared")]
        lists = [entries if isinstance(entries, list) else [entries] for entries in lists]
        if any(key.startswith(prefix) for key in given):
            found += [({**shared, **one}, {**shared, **two}) for one, two, shared in itertools.product(*lists)]
    return found


def build(module: Any, inputs: dict[str, Any], init: dict[str, Any]) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    return module.Model(**accepted(module.Model, init)), module.get_inputs(**accepted(module.get_inputs, inputs))


def accepted(function: Any, settings: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return settings
    return {name: value for name, value in settings.items() if name in parameters}


def call(model: torch.nn.Module, given: Any) -> torch.Tensor:
    return model(**given) if isinstance(given, dict) else model(*given)


def flat(given: Any) -> list[torch.Tensor]:
    return list(given.values()) if isinstance(given, dict) else list(given)


def gradients(model: torch.nn.Module, given: Any) -> list[torch.Tensor]:
    leaves = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in flat(given)]
    output = call(model, dict(zip(given, leaves, strict=True)) if isinstance(given, dict) else leaves)
    generator = torch.Generator().manual_seed(1)
    gradient = torch.randn(output.shape, generator=generator).to(output.dtype)
    wanted = [tensor for tensor in leaves if tensor.requires_grad] + list(model.parameters())
    return list(torch.autograd.grad(output, wanted, gradient))
