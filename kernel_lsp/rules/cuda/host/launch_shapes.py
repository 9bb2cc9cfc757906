"""Compute the block and the template arguments of each launch, in host code or in a plan, where they are numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kernel_lsp.core.expression import ExpressionError, evaluate_int, parse
from kernel_lsp.source.host_launches import host_launches, plan_expression, split_top

LaunchShape = tuple[tuple[int | None, ...], tuple[int, int, int]]
"""Template arguments, None where one is no number, and the threads along x, y and z."""

_OF_PLAN = re.compile(r"^[ \t]*//[^\n]*?:[ \t]+([\w:]+[ \t]*(?:<[^\n]*>)?<<<[^\n]*)", re.M)
"""A launch in a plan's comment."""


def launch_shapes(text: str, constants: Mapping[str, int]) -> dict[str, tuple[LaunchShape, ...]]:
    """Return the template arguments and the block of each launch whose block is known, by kernel."""
    found: dict[str, tuple[LaunchShape, ...]] = {}
    of_file = {name: str(value) for name, value in constants.items()}
    for launch in host_launches(_OF_PLAN.sub(lambda line: line[1].replace("//", "/"), text)):
        defined = {**of_file, **launch.defined}
        block = _block(launch.sizes[1], defined) if len(launch.sizes) > 1 else None
        if block is not None:
            kernel = launch.kernel.rpartition("::")[2]
            arguments = tuple(_number(each, defined) for each in launch.template)
            found[kernel] = (*found.get(kernel, ()), (arguments, block))
    return found


def _block(size: str, defined: Mapping[str, str]) -> tuple[int, int, int] | None:
    sizes = defined.get(size, size).strip()
    sizes = sizes.removeprefix("dim3").strip(" ({})") if sizes.startswith("dim3") else sizes
    numbers = [_number(each, defined) for each in split_top(sizes)]
    if not 1 <= len(numbers) <= 3 or any(each is None or each <= 0 for each in numbers):
        return None
    x, y, z = (*[each or 1 for each in numbers], 1, 1)[:3]
    return x, y, z


def _number(text: str, defined: Mapping[str, str]) -> int | None:
    """Return the value of a host expression of integers; None for any other."""
    written = plan_expression(text, {}, defined)
    try:
        return None if written is None else evaluate_int(parse(written), {})
    except ExpressionError:
        return None
