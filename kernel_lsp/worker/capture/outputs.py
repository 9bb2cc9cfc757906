"""Flatten a target's result into a list of named tensors."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from typing import Any, Callable

import torch

from ..failure import TargetFailure
from ..names import identifier


def flatten_outputs(result: Any, file: str, line: int | None) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors with their names; None is dropped. Raises TargetFailure for anything else."""
    flat = _flatten("", result, file, line)
    if not flat:
        raise TargetFailure(
            "the target returns no tensor", file=file, line=line, next_step="return a tensor, or a tuple of tensors"
        )
    return flat


def returned_names(function: Callable[..., Any]) -> list[str | None]:
    """Return the variables of a final ``return a, b``: ``["a", "b"]``; empty when the function does not end so."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return []
    returns = [node for node in ast.walk(tree) if isinstance(node, ast.Return)]
    if len(returns) != 1 or not isinstance(returns[0].value, ast.Tuple):
        return []
    return [element.id if isinstance(element, ast.Name) else None for element in returns[0].value.elts]


def _flatten(name: str, value: Any, file: str, line: int | None) -> list[tuple[str, torch.Tensor]]:
    if value is None:
        return []
    if isinstance(value, torch.Tensor):
        return [(name or "out", value)]
    pairs = _members(name, value)
    if pairs is None:
        what = f"output '{name}'" if name else "what the target returns"
        kind = (
            "Python number" if isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) else type(value).__name__
        )
        raise TargetFailure(
            f"{what} is a {kind}, not a tensor",
            file=file,
            line=line,
            next_step="return a tensor, or a tuple, list, dict or dataclass of tensors",
        )
    return [entry for inner, member in pairs for entry in _flatten(inner, member, file, line)]


def _members(name: str, value: Any) -> list[tuple[str, Any]] | None:
    """Return the named parts of a container; None for anything else."""
    prefix = f"{name}_" if name else ""
    if isinstance(value, dict):
        return [(identifier(f"{prefix}{key}"), member) for key, member in value.items()]
    if hasattr(value, "_fields"):
        return [(f"{prefix}{key}", getattr(value, key)) for key in value._fields]
    if isinstance(value, (tuple, list)):
        prefix = prefix or "out_"
        return [(f"{prefix}{position}", member) for position, member in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f"{prefix}{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value)]
    return None
