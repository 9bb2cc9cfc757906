"""Choose the block that a kernel is simulated with: that of a launch in the file, or one that its text implies."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernel_lsp.rules.cuda.bounds.thread_range import block_size
from kernel_lsp.rules.cuda.host.launch_shapes import LaunchShape
from kernel_lsp.rules.cuda.literals import integer_literal
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.simulation.values import Value

MAX_THREADS = 1024
DEFAULT_THREADS, DEFAULT_SIDE = 128, 16
"""Threads of a block, and along each axis of one in two dims, where the text says nothing."""


_STEP = re.compile(r"=\s*threadIdx\.x\s*;[^;{}]*;\s*\w+\s*\+=\s*(\w+)\s*\)")
"""A loop in which the threads of a block count together."""
_HALVES = re.compile(r"=\s*(\d+)\s*;[^;]*;\s*\w+\s*(?:>>=\s*1|/=\s*2)\s*\)|\+=\s*\w+\s*\[\s*[\w.]+\s*\+\s*(\d+)\s*\]")
"""The distance of a reduction's first step, in a loop or written out."""
_ARRAY_OF_HELPER = re.compile(r"__shared__\s[^;\[]*\[\s*(\w+)\s*\]\s*[;,]")
_BOUND = re.compile(r"__launch_bounds__\(\s*(\w+)\s*[,)]")


@dataclass(frozen=True)
class Shape:
    """The threads along x, y and z, whether the text says them, and the arguments of a template."""

    block: tuple[int, int, int]
    is_known: bool
    template: tuple[Value | None, ...] = ()
    guess: int = DEFAULT_THREADS
    is_implied: bool = False
    """True where an index across the grid implies the threads, which may be fewer than the block's."""
    launch: LaunchShape | None = None
    """The launch in the file, if the block is its."""


def shape_of(function: Function) -> Shape:
    """Return the block of the kernel's first launch whose size is known, or an implied one."""
    guess = DEFAULT_SIDE if re.search(r"(?:threadIdx|thread_index\(\))\.y", whole_text(function)) else DEFAULT_THREADS
    for shape in _launched(function, guess):
        return shape
    sides = [_implied(function, axis) for axis in ("x", "y")]
    if guess == DEFAULT_SIDE:
        x, y = (
            sides[0] or sides[1] or _tile_side(function) or guess,
            _rows(function) or sides[1] or sides[0] or _tile_side(function) or guess,
        )
        if x * y > MAX_THREADS:
            y = max(1, MAX_THREADS // x)
        return Shape((x, y, 1), bool(sides[0] and sides[1] and not _rows(function)), (), guess, True)
    bound = _BOUND.search(function.head)
    stated = None if bound is None else integer_literal(bound[1]) or function.file.constants.get(bound[1])
    if stated is not None and stated == sides[0]:
        return Shape((stated, 1, 1), True, (), guess)
    extent = sides[0] or _extent(function) or _halved(function) or guess
    return Shape((extent, 1, 1), bool(sides[0]), (), guess, True)


def larger_shape_of(function: Function, shape: Shape) -> Shape | None:
    """Return the largest block of the kernel's launches, if the given one is that of another launch and smaller."""
    if shape.launch is None:
        return None
    largest = max(_launched(function, shape.guess), key=lambda each: math.prod(each.block))
    return largest if math.prod(largest.block) > math.prod(shape.block) else None


def _launched(function: Function, guess: int) -> Iterator[Shape]:
    """Yield the blocks of the kernel's launches whose size is known and possible."""
    for launch in function.file.launch_shapes.get(function.key, ()):
        if 0 < math.prod(launch.block) <= MAX_THREADS:
            template = tuple(None if each is None else Value(each) for each in launch.template)
            yield Shape(launch.block, True, template, guess, launch=launch)


def whole_text(function: Function) -> str:
    """Return the text of a kernel and of the device functions that it names."""
    others = function.file.device_texts
    return " ".join((function.text, *(text for name, text in others.items() if name in function.text)))


def _implied(function: Function, axis: str) -> int:
    """Return the block's size along an axis in ``blockIdx.x * 256 + threadIdx.x``."""
    name = block_size(function, axis)
    if not name and axis == "x" and (found := _STEP.search(function.text)) is not None:
        name = found[1]
    size = integer_literal(name) if name else None
    if size is None and name:
        known = function.named(name)
        size = function.constant(known[0].value) if len(known) == 1 else function.file.constants.get(name)
    return size if size is not None and 0 < size <= MAX_THREADS else 0


def _tile_side(function: Function) -> int:
    for variable in function.all_variables():
        if variable.is_shared and len(variable.sizes) > 1:
            size = function.constant(variable.sizes[-2])
            if size is not None and 4 <= size <= 32:
                return size
    return 0


def _rows(function: Function) -> int:
    """Return the step of a loop over the rows of a tile: ``i += BLOCK_ROWS``."""
    found = re.search(r"\+=\s*(\w+)\s*\)", function.text)
    size = None if found is None else integer_literal(found[1]) or function.file.constants.get(found[1])
    return size if size is not None and 2 <= size <= 32 and "for" in function.text else 0


def _halved(function: Function) -> int:
    """Return the threads of a reduction by halves that begins at a number: 256 for ``s = 128; ...; s >>= 1``."""
    sizes = (2 * int(match[1] or match[2]) for match in _HALVES.finditer(function.text))
    return max((size for size in sizes if DEFAULT_THREADS < size <= MAX_THREADS), default=0)


def _extent(function: Function) -> int:
    """Return the size of the first shared array that may have one element for each thread."""
    for variable in function.all_variables():
        if variable.is_shared and len(variable.sizes) == 1:
            size = function.constant(variable.sizes[0])
            if _may_be_threads(size):
                return size or 0
    sizes = (match[1] for match in _ARRAY_OF_HELPER.finditer(whole_text(function)))
    numbers = (integer_literal(each) or function.file.constants.get(each) for each in sizes)
    return next((number or 0 for number in numbers if _may_be_threads(number)), 0)


def _may_be_threads(size: int | None) -> bool:
    return size is not None and 64 <= size <= MAX_THREADS and size % 32 == 0
