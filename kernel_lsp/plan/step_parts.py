"""Enumerate the expressions and tensor names in a plan's steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kernel_lsp.core.expression import Expression, Name
from kernel_lsp.core.plan import Fill, Launch, LibraryArgument, LibraryStep, Step


def launch_numbers(launch: Launch) -> Iterator[Expression]:
    """Yield the expressions that determine a launch: grid, block, shared memory, template arguments and condition."""
    yield from launch.grid
    yield from launch.block
    yield launch.shared_bytes
    yield from (argument for argument in launch.template_arguments if isinstance(argument, Expression))
    if launch.condition is not None:
        yield launch.condition


def flat_arguments(arguments: Iterable[LibraryArgument]) -> Iterator[str | Expression]:
    """Return the names and expressions among a library call's arguments, including nested lists."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from flat_arguments(argument)
        elif argument is not None:
            yield argument


def argument_expressions(arguments: Iterable[LibraryArgument]) -> Iterator[Expression]:
    """Return the expressions among the arguments."""
    return (argument for argument in flat_arguments(arguments) if isinstance(argument, Expression))


def touched(step: Step) -> set[str]:
    """Return the names of the tensors that a step reads or writes."""
    match step:
        case Fill(tensor):
            return {tensor}
        case Launch():
            return {argument.id for argument in step.arguments if isinstance(argument, Name)}
        case LibraryStep():
            names = {argument for argument in flat_arguments(step.arguments) if isinstance(argument, str)}
            return names | set(step.results)
