"""One case in memory, the captured program's arguments of it, and gradients of its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..capture.captured import Captured


@dataclass
class Case:
    """One case in memory. `inputs` has every tensor input of the user's call; `state` every other placeholder;
    `gradients` those of the floating outputs, once they are known."""

    inputs: list[torch.Tensor]
    state: dict[str, torch.Tensor]
    gradients: list[torch.Tensor]

    def on(self, device: torch.device) -> Case:
        """Return the case on another device."""
        return Case(
            [value.to(device) for value in self.inputs],
            {name: value.to(device) for name, value in self.state.items()},
            [value.to(device) for value in self.gradients],
        )


def placeholder_values(captured: Captured, case: Case) -> list[torch.Tensor]:
    """Return the captured program's arguments of a case, in its order."""
    return [case.inputs[p.index] if p.role == "input" else case.state[p.node] for p in captured.program.placeholders]


def leaves_of(captured: Captured, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies of the placeholders' values, which require gradients where these are wanted."""
    wanted = captured.backward.of if captured.backward is not None else []
    return [value.detach().clone().requires_grad_(position in wanted) for position, value in enumerate(values)]


def widened(value: torch.Tensor) -> torch.Tensor:
    """Convert floating values to float64, return others unchanged."""
    return value.double() if value.is_floating_point() else value


def differentiate(
    captured: Captured,
    outputs: list[torch.Tensor],
    leaves: list[torch.Tensor],
    gradients: list[torch.Tensor],
) -> list[torch.Tensor]:
    """Return the gradients of the wanted placeholders that exist in the captured backward."""
    backward = captured.backward
    assert backward is not None
    wanted = [position for position, result in zip(backward.of, backward.results) if result is not None]
    pairs = [(outputs[p], g) for p, g in zip(backward.outputs, gradients) if outputs[p].requires_grad]
    found = torch.autograd.grad(
        [output for output, _ in pairs],
        [leaves[position] for position in wanted],
        [gradient for _, gradient in pairs],
        allow_unused=True,
    )
    return [
        gradient if gradient is not None else torch.zeros_like(leaves[position])
        for position, gradient in zip(wanted, found)
    ]
