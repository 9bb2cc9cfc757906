"""What the steps of a plan mention: expressions, and the names of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kernel_lsp.core.expression import Expression
from kernel_lsp.core.plan import Launch, LibraryArgument


def launch_numbers(launch: Launch) -> Iterator[Expression]:
    """What decides how a launch is made: grid, block, shared memory, template arguments and the condition."""
    yield from launch.grid
    yield from launch.block
    yield launch.shared_bytes
    yield from (argument for argument in launch.template_arguments if isinstance(argument, Expression))
    if launch.condition is not None:
        yield launch.condition


def flat_arguments(arguments: Iterable[LibraryArgument]) -> Iterator[str | Expression]:
    """The names and expressions among the arguments of a library call, those in lists too."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from flat_arguments(argument)
        elif argument is not None:
            yield argument


def argument_expressions(arguments: Iterable[LibraryArgument]) -> Iterator[Expression]:
    """The expressions among them."""
    return (argument for argument in flat_arguments(arguments) if isinstance(argument, Expression))
