"""Call one operator with drawn arguments, on real or on meta tensors."""

from __future__ import annotations

from random import Random
from typing import Any, Callable

import torch

from .domains import draw_arguments
from .tensors import STRATEGIES, Operand

Arguments = dict[str, Any]


def tensor_arguments(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tensors that the operator requires beside its first operand."""
    found = [argument for argument in entry["arguments"] if argument["type"] == "Tensor"]
    return [argument for argument in found if argument["is_required"] or argument.get("is_call")]


def draw_call(
    entry: dict[str, Any], shape: tuple[int, ...], values: str, strategies: list[str], random: Random
) -> tuple[Arguments, dict[str, Operand]] | None:
    """Return an operator's arguments and further operands; None where one cannot be drawn for this shape."""
    scalars = draw_arguments(entry["arguments"], shape, random)
    operands = {}
    for argument, strategy in zip(tensor_arguments(entry), strategies):
        operand = STRATEGIES[strategy](shape, values, random)
        if operand is None:
            return None
        operands[argument["name"]] = operand
    return None if scalars is None else (scalars, operands)


def call_operator(
    entry: dict[str, Any],
    operator: Callable[..., Any],
    first: torch.Tensor,
    scalars: Arguments,
    operands: dict[str, torch.Tensor],
) -> Any:
    """Call a function, or construct a module on the operand's device and call it."""
    if entry["kind"] == "module":
        with torch.device(first.device):
            return operator(**scalars)(first, *operands.values())
    return operator(first, **operands, **scalars)
