"""Find the size that each kernel of a file bounds its grid by: along x and along y, or along x alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

_COORDINATE = re.compile(r"\b(?P<name>\w+)\s*=\s*(?P<value>[^;,]*\bblockIdx\s*\.\s*(?P<axis>[xyz])\b[^;,]*)[;,]")
AXES = ("x", "y")

AxisSize = tuple[str, str, int, str]
"""A kernel, an axis of its grid, the position of the parameter that bounds it, and the member of it that does."""


Parameters = Mapping[str, Mapping[str, int]]
"""The positions of each kernel's parameters by name."""


def axis_sizes(bodies: Mapping[str, str], parameters: Parameters) -> Iterator[AxisSize]:
    """Yield the sizes of kernels that check a coordinate along x and one along y, each against a parameter."""
    for kernel, positions in parameters.items():
        bounds = {axis: _bounds(bodies[kernel], axis) for axis in AXES}
        sizes = {axis: [name for name in names if name[0] in positions] for axis, names in bounds.items()}
        if all(len(names) == 1 for names in sizes.values()) and sizes["x"] != sizes["y"]:
            yield from ((kernel, axis, positions[name], member) for axis, [(name, member)] in sizes.items())


def linear_sizes(bodies: Mapping[str, str], parameters: Parameters) -> Iterator[tuple[str, int]]:
    """Yield the kernels in which each thread handles the element at its index across the grid, and the position of the
    parameter that the index is checked against."""
    for kernel, positions in parameters.items():
        bounds = _linear_bounds(bodies[kernel]) & positions.keys()
        if len(bounds) == 1:
            yield kernel, positions[next(iter(bounds))]


@lru_cache(maxsize=512)
def _linear_bounds(body: str) -> frozenset[str]:
    """Return the names that the one index across the grid is compared with. None where the index changes, another one
    exists, or the size is compared with anything else."""
    if body.count("blockIdx") != 1 or "gridDim" in body or not (index := _LINEAR_INDEX.search(body)):
        return frozenset()
    name = index["name"]
    rest = body[index.end() :]
    found = re.findall(rf"(?<![-+*/.\w] )(?<![-+*/.\w])\b{name}\s*(?:<|>=)\s*(\w+)\s*(?=[)&|?])", rest)
    is_moved = re.search(rf"\b{name}\s*(?:[-+*/]?=(?!=)|\+\+|--|\+\s*\w*\s*[*<>])|(?:\+\+|--|&){name}\b", rest)
    is_compared = len(re.findall(rf"\b{name}\b[^;{{}}&|?]*(?:<=?|>=?)(?![<>])", rest))
    return frozenset(found) if is_moved is None and is_compared == len(found) else frozenset()


_LINEAR_INDEX = re.compile(
    r"\b(?P<name>\w+)\s*=\s*(?:static_cast<[\w: ]+>\s*\(\s*|\([\w: ]+\)\s*)?(?:blockIdx\.x\s*\)?\s*\*\s*\w+(?:\.x)?"
    r"|\w+(?:\.x)?\s*\*\s*blockIdx\.x)\s*\+\s*threadIdx\.x\s*;"
)


@lru_cache(maxsize=512)  # each pause while typing leaves a text behind
def _bounds(body: str, axis: str) -> frozenset[tuple[str, str]]:
    """Return the names that coordinates along an axis are compared with, and their members: of ``x < w``, or
    ``x >= image.w``."""
    names: set[tuple[str, str]] = set()
    for found in _COORDINATE.finditer(body):
        other = re.findall(r"\b(?:blockIdx|threadIdx)\s*\.\s*([xyz])\b", found["value"])
        if found["axis"] == axis and set(other) == {axis} and len(other) > 1:
            names.update(re.findall(rf"\b{found['name']}\s*(?:<|>=)\s*(\w+)(?:\.(\w+))?\b(?!\s*[-+*/.\[(])", body))
    return frozenset(names)
