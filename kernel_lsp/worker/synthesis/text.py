"""Write a composition as the text of a KernelBench file: `Model`, `get_inputs` and `get_init_inputs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .tensors import NORMAL, POSITIVE, Operand

INDENT = " " * 8
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
        constructor = [_parameter(each, given) for each, given in operands.items() if given.is_parameter]
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
        f'"""{_title(steps)}. Synthesized: {origin}."""',
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


# --- below: lines


def _title(steps: Sequence[Step]) -> str:
    return ", ".join(step.operator for step in steps)


def _parameter(name: str, operand: Operand) -> str:
    return f"self.{name} = torch.nn.Parameter(torch.randn{operand.shape!r} * {operand.scale})"


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
