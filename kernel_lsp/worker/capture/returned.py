"""Read what a call returns: its tensors by name, and the form that they have in it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..failure import TargetFailure
from ..valid_names import identifier


def flatten_outputs(result: Any, file: str, line: int | None) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors with their names; None, numbers and texts are dropped. Raises TargetFailure for anything
    else."""
    flat = _flatten("", result, file, line)
    if not flat:
        raise TargetFailure(
            "the target returns no tensor",
            file=file,
            line=line,
            next_step="return a tensor, or a tuple of them; of an update in place, as an optimizer's, the new values",
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
    if _is_literal(value):
        return []
    if isinstance(value, torch.Tensor):
        return [(name or "out", value)]
    pairs = _members(name, value)
    if pairs is None:
        what = f"output '{name}'" if name else "what the target returns"
        kind = "Python number" if isinstance(value, (torch.SymInt, torch.SymFloat)) else type(value).__name__
        raise TargetFailure(
            f"{what} is a {kind}, not a tensor",
            file=file,
            line=line,
            next_step="return a tensor, or a tuple, list, dict or dataclass of tensors",
        )
    return [entry for inner, member in pairs for entry in _flatten(inner, member, file, line)]


def _is_literal(value: Any) -> bool:
    return value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value))


def returned_form(result: Any, tensors: Sequence[torch.Tensor], file: str, line: int | None) -> str:
    """Return `Task.returns`: ``lambda out, *, Out="models.outputs": Out(logits=out[0], loss=None)``. Raises
    TargetFailure for a result of `tensors` that cannot be made so, such as a `defaultdict`."""
    is_flat = type(result) is tuple and len(result) > 1 and all(isinstance(each, torch.Tensor) for each in result)
    if is_flat or isinstance(result, torch.Tensor):
        return ""
    classes: dict[str, type] = {}
    text = _form(result, iter(range(1_000_000)), classes)
    try:
        is_alike = _is_alike(eval(f"lambda out: {text}", dict(classes))(tensors), result)
    except Exception as error:  # the user's class may raise anything
        raise _unmade(result, f": {type(error).__name__}: {error}", file, line) from None
    if not is_alike:
        raise _unmade(result, "", file, line)
    stated = [f"{name}={_literal(kind.__module__)}" for name, kind in classes.items()]
    return f"lambda {', '.join(['out', *(['*'] if stated else []), *stated])}: {text}"


def _is_alike(made: Any, result: Any) -> bool:
    """Return True if both have the same classes and members."""
    if type(made) is not type(result):
        return False
    pairs = _members("", result)
    if pairs is None:
        return made is result or bool(made == result)
    again = _members("", made) or []
    return len(again) == len(pairs) and all(_is_alike(one, two) for (_, one), (_, two) in zip(again, pairs))


def _unmade(result: Any, why: str, file: str, line: int | None) -> TargetFailure:
    return TargetFailure(
        f"the target returns a {type(result).__name__} that cannot be made again from its tensors{why}",
        file=file,
        line=line,
        next_step="return a tensor, or a tuple, list, dict or dataclass of tensors",
    )


def _literal(value: Any) -> str:
    """Return a literal of Python; texts in double quotes, as formatters of the user's files want them."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _form(value: Any, places: Iterator[int], classes: dict[str, type]) -> str:
    """Return a result as an expression of the tensors ``out[0]``, ``out[1]``, and note the classes that it names."""
    if isinstance(value, torch.Tensor):
        return f"out[{next(places)}]"
    if _is_literal(value):
        return _literal(value)
    kind = type(value)
    if kind not in (dict, tuple, list):
        classes[kind.__name__] = kind
    if dataclasses.is_dataclass(value):
        members = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return (
            f"{kind.__name__}({', '.join(f'{name}={_form(each, places, classes)}' for name, each in members.items())})"
        )
    if isinstance(value, dict):
        text = "{" + ", ".join(f"{_literal(key)}: {_form(each, places, classes)}" for key, each in value.items()) + "}"
        return text if kind is dict else f"{kind.__name__}({text})"
    listed = ", ".join(_form(each, places, classes) for each in value)
    if kind is tuple:
        return f"({listed}{',' * (len(value) == 1)})"
    if hasattr(value, "_fields"):
        return f"{kind.__name__}({listed})"
    return f"[{listed}]" if kind is list else f"{kind.__name__}([{listed}])"


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
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else ()
    if fields and all(field.init for field in fields):
        return [(f"{prefix}{field.name}", getattr(value, field.name)) for field in fields]
    return None
