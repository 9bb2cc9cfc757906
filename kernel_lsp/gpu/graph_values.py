"""The values of a captured graph: their shapes, and their storage in bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import evaluate_int, parse
from kernel_lsp.core.operators import is_a
from kernel_lsp.core.task import Graph, GraphNode, TensorType

GRADIENT_PREFIX = "grad_"


@dataclass
class GraphValues:
    """Type and storage bytes of every value by (node, item). A view holds no more than its base."""

    graph: Graph
    sizes: Mapping[str, int]
    types: dict[tuple[str, int], TensorType] = field(default_factory=dict)
    storage: dict[tuple[str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, input_type in zip(self.graph.inputs, self.graph.input_types, strict=True):
            self._add((name, 0), input_type, None)
        for node in self.graph.nodes:
            viewed = next(iter(self.references(node)), None) if is_a(node.op, "view") else None
            for item, type_ in enumerate(node.types):
                if type_ is not None:
                    self._add((node.name, item), type_, self.storage.get(viewed) if viewed else None)

    def _add(self, key: tuple[str, int], type_: TensorType, at_most: int | None) -> None:
        n_bytes = prod(self.shape(type_)) * type_.dtype.itemsize
        self.types[key] = type_
        self.storage[key] = n_bytes if at_most is None else min(n_bytes, at_most)

    def shape(self, type_: TensorType) -> tuple[int, ...]:
        return tuple(evaluate_int(parse(dim), self.sizes) for dim in type_.shape)

    def references(self, node: GraphNode) -> list[tuple[str, int]]:
        """Return the tensors that a node takes, each once, in order."""
        found = list(references_in((node.arguments, node.keywords)))
        return [key for key in dict.fromkeys(found) if key in self.types]

    def shape_of(self, key: tuple[str, int]) -> tuple[int, ...]:
        return self.shape(self.types[key])

    def input_bytes(self, node: GraphNode) -> int:
        return sum(self.storage[key] for key in self.references(node))

    def output_bytes(self, node: GraphNode) -> int:
        return sum(self.storage[node.name, item] for item, type_ in enumerate(node.types) if type_ is not None)

    def output_shape(self, node: GraphNode) -> tuple[int, ...]:
        return self.shape(node.types[0]) if node.types and node.types[0] is not None else ()

    def dtype(self, node: GraphNode) -> DType:
        return node.types[0].dtype if node.types and node.types[0] is not None else DType.F32


def references_in(value: Any) -> Iterator[tuple[str, int]]:
    """Return the values, as (node, item), that a node's argument names, in order."""
    if isinstance(value, dict):
        if "node" in value:
            yield str(value["node"]), int(value.get("item") or 0)
            return
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for element in value:
            yield from references_in(element)
