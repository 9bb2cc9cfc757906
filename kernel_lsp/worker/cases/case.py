"""One case in memory, what the captured program takes of it, and gradients of what that gives."""

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
        """The same on another device."""
        return Case(
            [value.to(device) for value in self.inputs],
            {name: value.to(device) for name, value in self.state.items()},
            [value.to(device) for value in self.gradients],
        )


def placeholder_values(captured: Captured, case: Case) -> list[torch.Tensor]:
    """What the captured program takes of a case, in its order."""
    return [case.inputs[p.index] if p.role == "input" else case.state[p.node] for p in captured.program.placeholders]


def leaves_of(captured: Captured, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of the placeholders' values; those to differentiate with respect to ask for their gradient."""
    wanted = captured.backward.of if captured.backward is not None else []
    return [value.detach().clone().requires_grad_(position in wanted) for position, value in enumerate(values)]


def widened(value: torch.Tensor) -> torch.Tensor:
    """Floating values in float64, others as they are."""
    return value.double() if value.is_floating_point() else value


def differentiate(
    captured: Captured,
    outputs: list[torch.Tensor],
    leaves: list[torch.Tensor],
    gradients: list[torch.Tensor],
) -> list[torch.Tensor]:
    """The gradients of the wanted placeholders that exist in the captured backward."""
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
