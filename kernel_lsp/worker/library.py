"""The command `run_library`: run one vendor library function on files."""

from __future__ import annotations

from typing import Any

import torch

from .capture.exported_program import quiet
from .failure import Failure, TargetFailure, short_message
from .files import read_tensor, torch_dtype, write_tensor
from .operators import operators
from .shipped.sdpa import sdpa_backward, sdpa_backward_kept, sdpa_forward, sdpa_forward_kept

OVERLOADS = {"conv_transpose2d": "input", "conv_transpose3d": "input"}
"""Overloads other than `default`."""
COMPOSITES = {
    "sdpa::forward": sdpa_forward,
    "sdpa::backward": sdpa_backward,
    "sdpa::forward_kept": sdpa_forward_kept,
    "sdpa::backward_kept": sdpa_backward_kept,
}
"""Functions that call more than one of ATen's."""


def run_library(request: dict[str, Any]) -> dict[str, Any]:
    """Read tensors, call the function, write its results. Raises TargetFailure when it refuses its arguments."""
    function = _function(request["function"])
    tensors = {entry["name"]: read_tensor(entry) for entry in request["tensors"]}
    arguments = [_argument(argument, tensors) for argument in request["arguments"]]
    try:
        with torch.no_grad(), quiet():
            results = function(*arguments)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise TargetFailure(
            f"{request['function']} refuses its arguments: {short_message(error)}",
            next_step="check the step's arguments against the shapes of its tensors",
        ) from None
    values = list(results) if isinstance(results, (tuple, list)) else [results]
    return {"results": _write(request["results"], values, request["function"])}


def _function(name: str) -> Any:
    if name in COMPOSITES:
        return COMPOSITES[name]
    base = name.split("::")[-1]
    if not name.startswith("aten::") or base not in operators("library"):
        allowed = [*(f"aten::{function}" for function in sorted(operators("library"))), *COMPOSITES]
        raise TargetFailure(
            f"'{name}' is not a library function that a plan may call",
            next_step=f"use one of: {', '.join(allowed)}",
        )
    return getattr(getattr(torch.ops.aten, base), OVERLOADS.get(base, "default"))


def _argument(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if "dtype" in value:
            return torch_dtype(value["dtype"])
        if value.get("tensor") not in tensors:
            raise Failure(f"the library step names a tensor that it was not given: {value}")
        return tensors[value["tensor"]]
    if isinstance(value, list):
        return [_argument(entry, tensors) for entry in value]
    return value


def _write(entries: list[dict[str, Any]], values: list[Any], function: str) -> list[dict[str, Any]]:
    values = [value for value in values if value is not None]
    if len(values) < len(entries):
        raise TargetFailure(f"{function} gives {len(values)} results, and the step names {len(entries)}")
    written = []
    for entry, value in zip(entries, values):
        if list(value.shape) != list(entry["shape"]):
            raise TargetFailure(
                f"{function} gives shape {list(value.shape)} for '{entry['name']}', declared {list(entry['shape'])}",
                next_step="correct the shape of the result, or of the scratch tensor, in the plan",
            )
        written.append(write_tensor(entry["path"], entry["name"], value.to(torch_dtype(entry["dtype"]))))
    return written
