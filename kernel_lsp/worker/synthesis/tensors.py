"""Describe the tensors of a task and draw them and other arguments, by their names: the table of domains.

A domain sees the operand's shape and the arguments drawn before, so that channels, groups and kernels fit each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random
from typing import Any, Callable, Optional

import torch

WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128)
"""Numbers of channels and features that an operator may produce."""
OPTIONAL_SHARE = 0.5
"""Share of optional arguments that get a value other than their default."""
NO_VALUE = object()


@dataclass
class Drawing:
    """The state of one operator's draw."""

    shape: tuple[int, ...]
    random: Random
    drawn: dict[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def channels(self) -> int:
        return self.shape[1] if self.rank > 1 else self.shape[0]

    @property
    def smallest_spatial(self) -> int:
        return min(self.shape[2:] or self.shape[-1:])

    def dim(self) -> int:
        return self.random.randrange(1 if self.rank > 1 else 0, self.rank)

    def divisor(self, number: int) -> int:
        return self.random.choice([each for each in range(1, min(number, 16) + 1) if number % each == 0])

    def uniform(self, low: float, high: float) -> float:
        return round(self.random.uniform(low, high), 2)


def draw_arguments(arguments: list[dict[str, Any]], shape: tuple[int, ...], random: Random) -> dict[str, Any] | None:
    """Return values by name, without tensors; None where a required argument has no domain."""
    drawing = Drawing(shape, random)
    for argument in arguments:
        if argument["type"] == "Tensor":
            continue
        value = _value(argument, drawing)
        if value is not NO_VALUE:
            drawing.drawn[argument["name"]] = value
        elif argument["is_required"]:
            return None
    return drawing.drawn


def _value(argument: dict[str, Any], drawing: Drawing) -> Any:
    domain = DOMAINS.get(argument["name"])
    if domain is None or (not argument["is_required"] and drawing.random.random() > OPTIONAL_SHARE):
        return NO_VALUE
    value = domain(drawing)
    is_list = "[]" in argument["type"] or argument["type"].startswith("List")
    return [value] if is_list and isinstance(value, int) and argument["name"] in ("dim", "dims") else value


def _padding(drawing: Drawing) -> int:
    kernel = drawing.drawn.get("kernel_size", 2)
    return drawing.random.randint(0, kernel // 2) if isinstance(kernel, int) else 1


def _groups(drawing: Drawing) -> int:
    produced = drawing.drawn.get("out_channels", drawing.channels)
    return drawing.divisor(math.gcd(drawing.channels, produced))


def _normalized_shape(drawing: Drawing) -> list[int]:
    n_dims = drawing.random.randint(1, max(1, min(2, drawing.rank - 1)))
    return list(drawing.shape[-n_dims:])


def _upscale(drawing: Drawing) -> int:
    fitting = [each for each in (2, 3, 4) if drawing.channels % (each * each) == 0]
    return drawing.random.choice(fitting or [2])


def _one_of(*values: Any) -> Callable[[Drawing], Any]:
    return lambda drawing: drawing.random.choice(values)


def _between(low: float, high: float) -> Callable[[Drawing], float]:
    return lambda drawing: drawing.uniform(low, high)


def _whole(low: int, high: int) -> Callable[[Drawing], int]:
    return lambda drawing: drawing.random.randint(low, high)


def _channels(drawing: Drawing) -> int:
    return drawing.channels


def _features(drawing: Drawing) -> int:
    return drawing.shape[-1]


DOMAINS: dict[str, Callable[[Drawing], Any]] = {
    **dict.fromkeys("dim dims dim0 dim1".split(), Drawing.dim),
    **dict.fromkeys(
        "keepdim unbiased descending bias affine elementwise_affine ceil_mode count_include_pad "
        "log_target full".split(),
        _one_of(False, True),
    ),
    **dict.fromkeys("in_channels num_features num_channels".split(), _channels),
    **dict.fromkeys("in_features in1_features in2_features input_size d_model".split(), _features),
    **dict.fromkeys("out_channels out_features hidden_size".split(), _one_of(*WIDTHS)),
    "num_parameters": _one_of(1, 1),
    "kernel_size": lambda drawing: drawing.random.randint(2, max(2, min(5, drawing.smallest_spatial))),
    **dict.fromkeys("stride shifts".split(), _whole(1, 3)),
    "padding": _padding,
    **dict.fromkeys("dilation n".split(), _whole(1, 2)),
    "output_padding": _one_of(0, 0),
    "groups": _groups,
    "num_groups": lambda drawing: drawing.divisor(drawing.channels),
    "output_size": lambda drawing: drawing.random.randint(1, max(1, min(6, drawing.smallest_spatial))),
    "normalized_shape": _normalized_shape,
    "upscale_factor": _upscale,
    **dict.fromkeys("downscale_factor scale_factor".split(), _one_of(2, 2)),
    "size": _whole(2, 5),
    **dict.fromkeys("negative_slope slope".split(), _between(0.01, 0.4)),
    "alpha": _between(0.4, 1.8),
    **dict.fromkeys("beta delta".split(), _between(0.5, 2.0)),
    "lambd": _between(0.1, 0.8),
    "margin": _between(0.2, 1.0),
    "threshold": _between(-0.5, 0.5),
    **dict.fromkeys("min min_val".split(), _between(-1.5, -0.2)),
    **dict.fromkeys("max max_val".split(), _between(0.2, 1.5)),
    "value": _between(-0.5, 1.5),
    "p": _one_of(1, 2, 3),
    "norm_type": _one_of(1, 2),
    "exponent": _one_of(2, 3),
    "correction": _one_of(0, 1),
    "approximate": _one_of("none", "tanh"),
    "reduction": _one_of("mean", "sum", "none"),
    "diagonal": _whole(-2, 2),
    "offset": _whole(0, 1),
    "repeats": _whole(2, 3),
    "pad": lambda drawing: [drawing.random.randint(0, 2), drawing.random.randint(1, 2)],
    "label_smoothing": _between(0.02, 0.2),
    "other": _between(0.3, 2.0),
}
"""Argument -> its domain. An optional argument without a row keeps its default; an operator that requires one is not
drawn."""


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


STRATEGIES: dict[str, Strategy] = {
    "same": lambda shape, values, _: Operand(shape, values),
    "row": _row,
    "channel": _channel,
    "matrix": _matrix,
    "matrices": _matrices,
    "classes": _classes,
    "signs": lambda shape, values, _: Operand(shape, "signs"),
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
