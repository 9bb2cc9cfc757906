"""Find the size that each kernel of a file bounds its grid by: along x and along y, or along x alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

_KERNEL = re.compile(
    r"__global__[^;{}]*?\b(?!__launch_bounds__)(?P<name>\w+)\s*\((?P<parameters>[^;{}()]*)\)\s*\{(?P<body>[^{}\n]*(?=\})|.*?(?=^\}))",
    re.DOTALL | re.MULTILINE,
)
_COORDINATE = re.compile(r"\b(?P<name>\w+)\s*=\s*(?P<value>[^;,]*\bblockIdx\s*\.\s*(?P<axis>[xyz])\b[^;,]*)[;,]")
AXES = ("x", "y")

AxisSize = tuple[str, str, int, str]
"""A kernel, an axis of its grid, the position of the parameter that bounds it, and the member of it that does."""


def axis_sizes(text: str) -> Iterator[AxisSize]:
    """Yield the sizes of kernels that check a coordinate along x and one along y, each against a parameter."""
    for kernel, positions in _kernels_in(text):
        bounds = {axis: _bounds(kernel["body"], axis) for axis in AXES}
        sizes = {axis: [name for name in names if name[0] in positions] for axis, names in bounds.items()}
        if all(len(names) == 1 for names in sizes.values()) and sizes["x"] != sizes["y"]:
            yield from ((kernel["name"], axis, positions[name], member) for axis, [(name, member)] in sizes.items())


def linear_sizes(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the kernels in which each thread handles the element at its index across the grid, the position of the
    parameter that the index is checked against, and the number of parameters."""
    for kernel, positions in _kernels_in(text):
        bounds = _linear_bounds(kernel["body"]) & positions.keys()
        if len(bounds) == 1:
            yield kernel["name"], positions[next(iter(bounds))], len(positions)


def _kernels_in(text: str) -> Iterator[tuple[re.Match[str], dict[str, int]]]:
    """Yield the kernels, each with the positions of its parameters by name."""
    for kernel in _KERNEL.finditer(text):
        given = [re.findall(r"\w+", each) for each in kernel["parameters"].split(",")]
        yield kernel, {words[-1]: index for index, words in enumerate(given) if words}


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
