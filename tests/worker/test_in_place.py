"""In-place operators of exported graphs: which are replaced, and that the results stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from kernel_lsp.worker.capture.rewrites.in_place import without_in_place


class Block(nn.Module):
    """A convolution with its norm, and what `body` makes of it."""

    def __init__(self, body: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.convolution, self.norm, self.body = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), body

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self.norm(self.convolution(x)), x)


def exported(body: Callable[[torch.Tensor, torch.Tensor], Any], *, training: bool = False) -> tuple[Any, Block]:
    block = Block(body).train(training)
    return torch.export.export(block, (torch.randn(2, 3, 4, 4),), strict=False), block


def mutable(program: Any) -> list[str]:
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    return [str(node.target) for node in nodes if node.target._schema.is_mutable]


def residual(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = torch.relu_(y)
    y += x
    return torch.relu_(y) * 2


def read_before_and_after(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    before = torch.sigmoid(y)
    torch.nn.functional.hardtanh_(y, 0.0, 6.0)
    return before + y


@pytest.mark.parametrize("body", [residual, read_before_and_after])
def test_values_without_aliases_are_replaced(body: Callable[..., Any]) -> None:
    program, block = exported(body)
    assert mutable(program)
    assert without_in_place(program)
    assert mutable(program) == []
    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(program.module()(x), block(x))


def viewed(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    flat = y.view(-1)
    torch.relu_(y)
    return flat


def viewed_by_another_name(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    z = torch.relu_(y)
    flat = y.view(-1)
    z += x
    return flat


def an_input(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.relu_(x) + y


def a_wider_type(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y += x.double()
    return y


@pytest.mark.parametrize("body", [viewed, viewed_by_another_name, an_input, a_wider_type])
def test_what_may_be_aliased_is_left(body: Callable[..., Any]) -> None:
    program, _ = exported(body)
    before = mutable(program)
    assert not without_in_place(program)
    assert mutable(program) == before != []


def test_buffers_that_a_norm_changes_are_left() -> None:
    program, _ = exported(residual, training=True)
    assert not without_in_place(program)


def test_a_norm_by_the_batch_alone_is_no_reason_to_trace_again() -> None:
    block = Block(residual).train()
    block.norm.track_running_stats = False
    block.norm.running_mean = block.norm.running_var = block.norm.num_batches_tracked = None
    x = torch.randn(2, 3, 4, 4)
    program = torch.export.export(block, (x,), strict=False)
    assert without_in_place(program)
    assert mutable(program) == []
    assert torch.equal(program.module()(x), block(x))
