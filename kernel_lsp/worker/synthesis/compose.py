"""The command `draw_task`: compose up to five operators in sequence, with branches and residuals, into one task.

A draw is a function of its seed and index, the catalogue and torch's version. Shapes come from meta tensors, so that it
takes milliseconds for any size.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from .crawl import resolve_operator
from .tensors import NORMAL, POSITIVE, RANGES, Operand, call_operator, draw_call, meta_values

INDENT = " " * 8
TARGET = "target"
"""The argument of a loss that is compared with."""
IMPORTS = {"nn.": "from torch import nn", "F.": "import torch.nn.functional as F"}


@dataclass(frozen=True)
class Step:
    """One line of `forward`, and the lines that it needs in the constructor."""

    name: str
    operator: str
    text: str
    constructor: tuple[str, ...] = ()

    @staticmethod
    def of(
        name: str,
        entry: dict[str, Any],
        operand: str,
        scalars: dict[str, Any],
        operands: dict[str, Operand],
        names: dict[str, str],
    ) -> Step:
        """Return the step that calls an operator. `operands` are by name in the text, `names` by argument."""
        target = names.get(TARGET)  # some losses have no gradient for it
        constructor = [
            _own_tensor(each, given, is_learned=each != target)
            for each, given in operands.items()
            if given.is_parameter
        ]
        spelled = {each: f"self.{each}" if given.is_parameter else each for each, given in operands.items()}
        settings = [f"{key}={value!r}" for key, value in scalars.items()]
        if entry["kind"] == "module":
            attribute = f"{entry['name'].lower()}_{name}"
            constructor.append(f"self.{attribute} = {entry['short']}({', '.join(settings)})")
            call = f"self.{attribute}({', '.join([operand, *(spelled[names[key]] for key in names)])})"
        else:
            given_by_name = [f"{key}={spelled[names[key]]}" for key in names]
            call = f"{entry['short']}({', '.join([operand, *given_by_name, *settings])})"
        return Step(name, entry["short"], call, tuple(constructor))


def task_text(inputs: Sequence[tuple[str, Operand]], steps: Sequence[Step], origin: str) -> str:
    """Return the file's text."""
    constructor = [line for step in steps for line in step.constructor]
    body = [f"{step.name} = {step.text}" for step in steps[:-1]] + [f"return {steps[-1].text}"]
    words = " ".join([*constructor, *body])
    imports = ["import torch", *(line for part, line in IMPORTS.items() if part in words)]
    parameters = ", ".join(["self", *(name for name, _ in inputs)])
    lines = [
        f'"""{", ".join(step.operator for step in steps)}. Synthesized: {origin}."""',
        "",
        *sorted(imports, key=lambda line: line.startswith("from")),
        "",
        *(f"{name}_shape = {operand.shape!r}" for name, operand in inputs),
        "",
        "",
        f"class Model({'nn' if 'nn.' in words else 'torch.nn'}.Module):",
        "    def __init__(self):",
        f"{INDENT}super().__init__()",
        *(f"{INDENT}{line}" for line in constructor),
        "",
        f"    def forward({parameters}):",
        *(f"{INDENT}{line}" for line in body),
        "",
        "",
        "def get_inputs():",
        f"    return [{', '.join(_input(name, operand) for name, operand in inputs)}]",
        "",
        "",
        "def get_init_inputs():",
        "    return []",
    ]
    return "\n".join(lines) + "\n"


def _own_tensor(name: str, operand: Operand, *, is_learned: bool) -> str:
    values = f"torch.randn{operand.shape!r} * {operand.scale}"
    return f"self.{name} = torch.nn.Parameter({values})" if is_learned else f"self.register_buffer({name!r}, {values})"


def _input(name: str, operand: Operand) -> str:
    shape = f"{name}_shape"
    if operand.values == "classes":
        return f"torch.randint(0, {operand.high}, {shape})"
    if operand.values == "signs":
        return f"torch.randint(0, 2, {shape}) * 2.0 - 1.0"
    if operand.values == NORMAL:
        return f"torch.randn({shape})"
    unit = f"(torch.rand({shape}) * 0.9 + 0.05)"
    return f"{unit} * 4.0" if operand.values == POSITIVE else unit


LENGTHS = {1: 4, 2: 18, 3: 30, 4: 28, 5: 20}
"""Number of operators -> its weight."""
STRUCTURES = {"sequence": 50, "residual": 25, "branch": 25}
RANKS = {1: 3, 2: 27, 3: 25, 4: 35, 5: 10}
JOINS = ("{a} + {b}", "{a} * {b}", "{a} - {b}", "torch.maximum({a}, {b})", "torch.cat([{a}, {b}], dim={dim})")
CHANNELS = (3, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
SPATIAL = (7, 8, 12, 14, 16, 20, 24, 28, 32, 40, 56, 64)
FEATURES = (32, 48, 64, 96, 100, 128, 192, 256, 384, 512)
HEAVY = ("convolution", "mm", "norm", "softmax", "scaled_dot_product", "pool")
HEAVY_WEIGHT = 4
"""Weight of a group of operators with one of these parts in a name; of any other it is 1."""
N_TRIES = 40
MIN_ELEMENTS = 64
MIN_ROWS_SHARE = 0.001
"""Minimum size of a value that is not the last, as a share of the input's: the rest would work on next to nothing."""
GROWTH = 8
"""Maximum size of any value, as a multiple of the largest input's size."""


@dataclass(frozen=True)
class Value:
    """A tensor of the task: its name in the text, shape, and range of values."""

    name: str
    shape: tuple[int, ...]
    values: str


@dataclass
class Draft:
    """A task while it is drawn."""

    inputs: list[tuple[str, Operand]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    n_flops: int = 0


class NoFit(Exception):
    """Nothing that was drawn fits; another index may do better."""


def draw_task(request: dict[str, Any]) -> dict[str, Any]:
    """Return a task: ``{"catalogue", "seed", "index", "elements": [low, high], "max_flops", "max_operators"}`` ->
    ``{"text", "operators", "structure", "shapes"}``, or ``{"problem"}`` where no composition was found."""
    torch.set_num_threads(1)  # tasks run in parallel, each in a process
    random = Random(f"{request['seed']}/{request['index']}")
    composer = _Composer(_catalogue(request["catalogue"]), request, random)
    try:
        structure, draft = composer.compose()
    except NoFit as problem:
        return {"problem": str(problem)}
    return {
        "text": task_text(draft.inputs, draft.steps, f"seed {request['seed']}, index {request['index']}"),
        "operators": [step.operator for step in draft.steps],
        "structure": structure,
        "shapes": [list(operand.shape) for _, operand in draft.inputs],
        "n_flops": draft.n_flops,
    }


@lru_cache(maxsize=2)
def _catalogue(path: str) -> dict[str, Any]:
    """Return the uses of every operator by rank, grouped by the ATen operators that ran: aliases count once."""
    with open(path, encoding="utf-8") as file:
        operators = json.load(file)["operators"]
    by_rank: dict[int, dict[str, list[tuple[Any, Any]]]] = {}
    for entry in operators:
        for use in entry["uses"]:
            by_rank.setdefault(use["rank"], {}).setdefault(" ".join(use["ops"]), []).append((entry, use))
    weighted = {
        rank: [groups[ops] for ops in groups for _ in range(HEAVY_WEIGHT if any(part in ops for part in HEAVY) else 1)]
        for rank, groups in by_rank.items()
    }
    return {str(rank): groups for rank, groups in weighted.items()}


class _Composer:
    def __init__(self, catalogue: dict[str, Any], request: dict[str, Any], random: Random) -> None:
        self._catalogue, self._random = catalogue, random
        self._low, self._high = request["elements"]
        self._max_flops = request["max_flops"]
        self._max_operators = min(int(request["max_operators"]), max(LENGTHS))
        self._draft = Draft()

    def compose(self) -> tuple[str, Draft]:
        lengths = {n: weight for n, weight in LENGTHS.items() if n <= self._max_operators}
        n_operators = _weighted(lengths, self._random)
        structure = _weighted(STRUCTURES, self._random) if n_operators >= 3 else "sequence"
        value = self._start()
        if structure == "sequence":
            value = self._chain(value, n_operators, ends=True)
        else:
            n_before = self._random.randint(0, n_operators - 3)
            value = self._chain(value, n_before, ends=False)
            n_inside = self._random.randint(1, n_operators - n_before - 2)
            value = self._joined(structure, value, n_inside)
            self._chain(value, n_operators - len(self._draft.steps), ends=True)
        return structure, self._draft

    def _start(self) -> Value:
        rank = _weighted(RANKS, self._random)
        shape = _draw_shape(rank, self._low, self._high, self._random)
        self._draft.inputs.append(("x", Operand(shape, NORMAL)))
        return Value("x", shape, NORMAL)

    def _chain(self, value: Value, n_operators: int, *, ends: bool) -> Value:
        for number in range(n_operators):
            value = self._applied(value, is_last=ends and number == n_operators - 1)
        return value

    def _joined(self, structure: str, value: Value, n_inside: int) -> Value:
        """Append a residual, or two branches of the same shape, and their join."""
        before = len(self._draft.steps), self._draft.n_flops, len(self._draft.inputs)
        for _ in range(N_TRIES):
            try:
                one = self._chain(value, n_inside, ends=False)
                other = value if structure == "residual" else self._applied(value, is_last=False)
                if one.shape == other.shape:
                    return self._join(one, other)
            except NoFit:
                pass
            del self._draft.steps[before[0] :], self._draft.inputs[before[2] :]
            self._draft.n_flops = before[1]
        raise NoFit(f"no {structure} keeps the shape {value.shape}")

    def _join(self, one: Value, other: Value) -> Value:
        form = self._random.choice(JOINS if len(one.shape) > 1 else JOINS[:-1])
        name = f"h{len(self._draft.steps) + 1}"
        shape = one.shape
        if "cat" in form:
            shape = (shape[0], shape[1] * 2, *shape[2:])
        if math.prod(shape) > GROWTH * self._high:
            raise NoFit("the join is too large")
        text = form.format(a=one.name, b=other.name, dim=1)
        operator = text.split("(")[0] if "torch" in text else {"+": "add", "*": "mul", "-": "sub"}[form[4]]
        values = NORMAL if "-" in form or NORMAL in (one.values, other.values) else POSITIVE
        self._draft.steps.append(Step(name, operator, text))
        return Value(name, shape, values)

    def _applied(self, value: Value, *, is_last: bool) -> Value:
        """Append an operator that fits the value."""
        groups = self._catalogue.get(str(len(value.shape)), [])
        for _ in range(N_TRIES if groups else 0):
            entry, use = self._random.choice(self._random.choice(groups))
            if self._fits(entry, use, value, is_last=is_last):
                applied = self._try(entry, use, value, is_last=is_last)
                if applied is not None:
                    return applied
        raise NoFit(f"no operator fits the shape {value.shape}")

    def _fits(self, entry: dict[str, Any], use: dict[str, Any], value: Value, *, is_last: bool) -> bool:
        is_wide_enough = RANGES.index(value.values) >= RANGES.index(use["values"])
        repeats = any(step.operator == entry["short"] for step in self._draft.steps)
        return is_wide_enough and not repeats and (is_last or use["result"] == "float")

    def _try(self, entry: dict[str, Any], use: dict[str, Any], value: Value, *, is_last: bool) -> Value | None:
        drawn = draw_call(entry, value.shape, use["values"], use["strategies"], self._random)
        if drawn is None:
            return None
        scalars, operands = drawn
        shape, n_flops = _result_shape(entry, value.shape, scalars, operands)
        if shape is None or not self._is_sized(shape, is_last=is_last):
            return None
        if self._draft.n_flops + n_flops > self._max_flops:
            return None
        self._draft.n_flops += n_flops
        name = f"h{len(self._draft.steps) + 1}"
        names = {}
        for argument, operand in operands.items():
            names[argument] = f"{argument}{len(self._draft.steps) + 1}"
            if not operand.is_parameter:
                self._draft.inputs.append((names[argument], operand))
        step = Step.of(name, entry, value.name, scalars, {names[each]: operands[each] for each in operands}, names)
        self._draft.steps.append(step)
        return Value(name, shape, use["result_values"])

    def _is_sized(self, shape: tuple[int, ...], *, is_last: bool) -> bool:
        size, given = math.prod(shape), math.prod(self._draft.inputs[0][1].shape)
        least = 1 if is_last else max(MIN_ELEMENTS, MIN_ROWS_SHARE * given)
        return least <= size <= GROWTH * max(given, self._low) and (is_last or len(shape) > 0)


def _result_shape(
    entry: dict[str, Any], shape: tuple[int, ...], scalars: dict[str, Any], operands: dict[str, Operand]
) -> tuple[tuple[int, ...] | None, int]:
    """Return the result's shape and the operations of its products; None where the operator refuses."""
    counter = FlopCounterMode(display=False)
    given = {name: meta_values(operand.shape, operand.values) for name, operand in operands.items()}
    try:
        with warnings.catch_warnings(), torch.no_grad(), counter:
            warnings.simplefilter("error")  # as in the probe
            result = call_operator(entry, resolve_operator(entry), meta_values(shape, NORMAL), scalars, given)
    except Exception:  # the drawn arguments do not fit this shape, or the operator has no meta kernel
        return None, 0
    if not isinstance(result, torch.Tensor):
        return None, 0
    return tuple(result.shape), counter.get_total_flops()


def _draw_shape(rank: int, low: int, high: int, random: Random) -> tuple[int, ...]:
    """Return a shape with about as many elements as drawn from the bounds; the first dim is the batch."""
    n_elements = math.exp(random.uniform(math.log(low), math.log(high)))
    inner = tuple(_inner_dims(rank, random))
    return (max(2 if rank > 1 else low, round(n_elements / math.prod(inner))), *inner)


def _inner_dims(rank: int, random: Random) -> Iterator[int]:
    if rank == 2:
        yield random.choice(FEATURES)
    elif rank > 2:
        yield random.choice(CHANNELS)
        for _ in range(rank - 2):
            yield random.choice(SPATIAL[:6] if rank == 5 else SPATIAL if rank == 4 else FEATURES)


def _weighted(weights: dict[Any, int], random: Random) -> Any:
    return random.choices(list(weights), weights=list(weights.values()))[0]
