"""Describe the tensors of a task and draw them, and call one operator with drawn arguments."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Callable, Optional

import torch

from .domains import draw_arguments

NORMAL, POSITIVE, UNIT = "normal", "positive", "unit"
RANGES = (NORMAL, POSITIVE, UNIT)
"""Ranges of values from the widest on: any number, above 0, within (0, 1)."""
OUT_FEATURES = (16, 24, 32, 48, 64, 96, 128)
WEIGHT_SCALE = 0.5
Arguments = dict[str, Any]


@dataclass(frozen=True)
class Operand:
    """A further tensor of an operator. `is_parameter` tells the module's own tensors from inputs; `high` bounds
    classes; `scale` multiplies normal values."""

    shape: tuple[int, ...]
    values: str
    is_parameter: bool = False
    high: int = 0
    scale: float = 1.0


Strategy = Callable[[tuple[int, ...], str, Random], Optional[Operand]]


def draw_values(shape: tuple[int, ...], values: str, generator: torch.Generator, high: int = 0) -> torch.Tensor:
    """Return a tensor of the given range, classes or signs."""
    if values == "classes":
        return torch.randint(0, high, shape, generator=generator)
    if values == "signs":
        return torch.randint(0, 2, shape, generator=generator) * 2.0 - 1.0
    if values == NORMAL:
        return torch.randn(shape, generator=generator)
    unit = torch.rand(shape, generator=generator) * 0.9 + 0.05
    return unit * 4.0 if values == POSITIVE else unit


def meta_values(shape: tuple[int, ...], values: str) -> torch.Tensor:
    """Return a tensor without data, of the dtype that these values have."""
    return torch.empty(shape, device="meta", dtype=torch.int64 if values == "classes" else torch.float32)


# --- below: strategies for further operands


def _same(shape: tuple[int, ...], values: str, _: Random) -> Operand | None:
    return Operand(shape, values)


def _row(shape: tuple[int, ...], values: str, _: Random) -> Operand | None:
    return Operand(shape[-1:], values, is_parameter=values == NORMAL) if len(shape) > 1 else None


def _channel(shape: tuple[int, ...], values: str, _: Random) -> Operand | None:
    if len(shape) < 3:
        return None
    return Operand((shape[1], *(1 for _ in shape[2:])), values, is_parameter=values == NORMAL)


def _matrix(shape: tuple[int, ...], values: str, random: Random) -> Operand | None:
    if len(shape) < 2 or values != NORMAL:
        return None
    return Operand((shape[-1], random.choice(OUT_FEATURES)), NORMAL, is_parameter=True, scale=WEIGHT_SCALE)


def _matrices(shape: tuple[int, ...], values: str, random: Random) -> Operand | None:
    if len(shape) != 3 or values != NORMAL:
        return None
    return Operand((shape[0], shape[2], random.choice(OUT_FEATURES)), NORMAL)


def _classes(shape: tuple[int, ...], _values: str, _: Random) -> Operand | None:
    return Operand((shape[0], *shape[2:]), "classes", high=shape[1]) if len(shape) > 1 else None


def _signs(shape: tuple[int, ...], _values: str, _: Random) -> Operand | None:
    return Operand(shape, "signs")


STRATEGIES: dict[str, Strategy] = {
    "same": _same,
    "row": _row,
    "channel": _channel,
    "matrix": _matrix,
    "matrices": _matrices,
    "classes": _classes,
    "signs": _signs,
}


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
