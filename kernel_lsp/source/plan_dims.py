"""Fit the dims of a drafted launch plan to its task: a kernel counts ``n`` elements where a tensor has two dims."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

NAMES = {2: ("B", "D"), 3: ("B", "T", "D"), 4: ("B", "C", "H", "W")}
"""Names of dims by a tensor's rank, for those that the target states as numbers."""


@dataclass(frozen=True)
class TaskTensor:
    """A tensor that a target takes: per dim its name, or its size where it has none."""

    name: str
    dims: tuple[str | int, ...]


@dataclass
class DimNames:
    """Names of a task's dims in a plan: one of a size is the same for all tensors."""

    taken: set[str]
    by_size: dict[str | int, str] = field(default_factory=dict)

    def of(self, tensor: TaskTensor) -> list[str]:
        """Return the names of the dims of a tensor."""
        wanted = NAMES.get(len(tensor.dims), tuple(f"D{i}" for i in range(len(tensor.dims))))
        return [self._name(dim, name) for dim, name in zip(tensor.dims, wanted, strict=True)]

    def _name(self, dim: str | int, wanted: str) -> str:
        if dim not in self.by_size:
            name = dim if isinstance(dim, str) else wanted
            while name in self.taken or name in self.by_size.values():
                name += "0"
            self.by_size[dim] = name
        return self.by_size[dim]


def parts_of_dims(
    drafted: Sequence[tuple[str, Sequence[str]]], tensors: Sequence[TaskTensor], taken: set[str]
) -> dict[str, list[str]]:
    """Return the dims of the task by drafted dim. `drafted` has the plan's inputs with their dims; they are the task's
    by name, and the others by order where there are as many. Tensors of at least as many dims as in the task stay."""
    names = DimNames(taken - {dim for _, shape in drafted for dim in shape})
    found: dict[str, list[str]] = {}
    for shape, tensor in _pairs(drafted, tensors):
        n_merged = len(tensor.dims) - len(shape) + 1
        if n_merged < 2 or not shape or len({*shape}) < len(shape) or not all(dim.isidentifier() for dim in shape):
            continue
        dims = names.of(tensor)
        parts = {shape[0]: dims[:n_merged]} | {
            dim: [name] for dim, name in zip(shape[1:], dims[n_merged:], strict=True)
        }
        if all(found.get(dim, part) == part for dim, part in parts.items()):
            found |= parts
    return found


def _pairs(
    drafted: Sequence[tuple[str, Sequence[str]]], tensors: Sequence[TaskTensor]
) -> Iterator[tuple[Sequence[str], TaskTensor]]:
    by_name = {tensor.name: tensor for tensor in tensors}
    yield from ((shape, by_name[name]) for name, shape in drafted if name in by_name)
    others = [shape for name, shape in drafted if name not in by_name]
    left = [tensor for tensor in tensors if tensor.name not in dict(drafted)]
    if len(others) == len(left):
        yield from zip(others, left, strict=True)


def spliced(shape: Sequence[str], parts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a shape with the task's dims in the places of drafted ones."""
    return [each for dim in shape for each in (parts.get(dim) or [multiplied(dim, parts)])]


def multiplied(text: str, parts: Mapping[str, Sequence[str]]) -> str:
    """Return a line of the plan with products of the task's dims in the places of drafted dims."""
    for dim, names in parts.items():
        product = " * ".join(names)
        text = re.sub(rf"\b{dim}\b", f"({product})" if len(names) > 1 else product, text)
        text = re.sub(rf"(?<=[(<,])(\s*)\({re.escape(product)}\)(?=\s*[,)>])", rf"\1{product}", text)
    return text
