"""The fp64 reference: the captured graph on upcast inputs, with every cast among floats left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .program import DROPPED_OPS, Program, user_outputs


class ExactInterpreter(torch.fx.Interpreter):
    """Runs the user's graph in float64: a cast to a lower dtype inside the code must not round the reference."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if str(target) in DROPPED_OPS:
            return None
        return super().call_function(target, _widened(args), _widened(kwargs))


def run_exact(program: Program, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The user's outputs in float64 (integers and booleans stay), from the placeholders' values."""
    wide = [value.double() if value.is_floating_point() else value for value in values]
    interpreter = ExactInterpreter(program.functional.graph_module)
    results = list(interpreter.run(*wide, enable_io_processing=False))
    return results[len(results) - len(user_outputs(program.functional)) :]


def _widened(value: Any) -> Any:
    """`value` with every floating dtype replaced by float64."""
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    if isinstance(value, (list, tuple)):
        return type(value)(_widened(entry) for entry in value)
    if isinstance(value, dict):
        return {name: _widened(entry) for name, entry in value.items()}
    return value
