"""Predict the kernels that `torch.compile` launches for a captured graph: fused passes over memory, and library calls.

Every node that is no library call is fused with those it shares a value with, up to the next library call. A reduction
to few results ends a fused kernel, because its consumers need all of it first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod

from kernel_lsp.core.operators import base_op, is_a
from kernel_lsp.core.task import Graph, GraphNode
from kernel_lsp.gpu.eager import (
    ATTENTION_CALL,
    EagerKernel,
    EagerRun,
    fused_attention,
    launching_nodes,
    memory_us,
    node_kernels,
    place_of,
)
from kernel_lsp.gpu.graph_values import GraphValues
from kernel_lsp.gpu.specs import GpuSpec

FUSED_EFFICIENCY = 0.97
"""Fraction of the copy bandwidth that a fused kernel reaches: an RMSNorm takes 127.2 us where its bytes take 124.9 us
on one H200 (``benchmarks/results/gpu_baselines-nvidia_h200-2026-11-21.json``), rounded down."""

Key = tuple[str, int]


def compiled_run(graph: Graph, sizes: Mapping[str, int], gpu: GpuSpec) -> EagerRun:
    """Return the kernels that a compiled graph launches. Raises ExpressionError for a size without a value."""
    return EagerRun(tuple(_Fusion(graph, sizes, gpu).kernels()))


@dataclass(frozen=True)
class _Unit:
    """Nodes that are one library call, or one node that can be fused."""

    nodes: tuple[GraphNode, ...]
    is_library: bool


@dataclass(frozen=True)
class _Fused:
    """Units of one kernel, with the values that they read and make."""

    units: tuple[_Unit, ...]
    touched: frozenset[Key]

    @property
    def names(self) -> set[str]:
        return {node.name for unit in self.units for node in unit.nodes}


class _Fusion:
    """The kernels of one graph. A unit's level counts the kernels that must end before it."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int], gpu: GpuSpec) -> None:
        self._graph, self._gpu = graph, gpu
        self._values = GraphValues(graph, sizes)
        self._roots = _roots(graph, self._values)
        self._level: dict[str, int] = {}
        self._unit_of: dict[str, _Unit] = {}

    def kernels(self) -> Iterator[EagerKernel]:
        by_level: dict[int, list[_Unit]] = {}
        for unit in _units(self._graph):
            by_level.setdefault(self._place(unit), []).append(unit)
        for level in sorted(by_level):
            units = by_level[level]
            yield from (self._library(unit) for unit in units if unit.is_library)
            yield from map(self._pass, self._groups([unit for unit in units if not unit.is_library]))

    def _place(self, unit: _Unit) -> int:
        """Return the level of a unit, after everything that it reads."""
        inside = {node.name for node in unit.nodes}
        read = {key[0] for key in self._reads(unit)} - inside
        level = max(
            (self._level[name] + self._needs_end(name, unit) for name in read if name in self._level), default=0
        )
        for name in inside:
            self._level[name], self._unit_of[name] = level, unit
        return level

    def _needs_end(self, name: str, reader: _Unit) -> bool:
        """Return True when the kernel of value `name` must end before `reader` can start."""
        writer = self._unit_of[name]
        return writer.is_library or reader.is_library or self._is_narrow(writer.nodes[0])

    def _is_narrow(self, node: GraphNode) -> bool:
        """Return True for a reduction to fewer results than the GPU has SMs."""
        return is_a(node.op, "together", "two_pass") and prod(self._values.output_shape(node)) < self._gpu.n_sms

    def _reads(self, unit: _Unit) -> list[Key]:
        return [self._roots.get(key, key) for node in unit.nodes for key in self._values.references(node)]

    def _groups(self, units: Sequence[_Unit]) -> list[_Fused]:
        """Group units that share a value."""
        groups: list[_Fused] = []
        for unit in units:
            merged = _Fused((unit,), frozenset([*self._reads(unit), *((node.name, 0) for node in unit.nodes)]))
            apart = []
            for group in groups:
                if group.touched & merged.touched:
                    merged = _Fused((*group.units, *merged.units), group.touched | merged.touched)
                else:
                    apart.append(group)
            groups = [*apart, merged]
        return groups

    def _pass(self, group: _Fused) -> EagerKernel:
        nodes = [node for unit in group.units for node in unit.nodes]
        n_bytes = self._read_bytes(nodes, group.names) + self._written_bytes(nodes, group.names)
        n_operations = sum(
            kernel.n_operations for node in nodes for kernel in node_kernels(node, self._values, self._gpu)
        )
        name = " + ".join(base_op(node.op) for node in nodes)
        return EagerKernel(name, memory_us(self._gpu, n_bytes, FUSED_EFFICIENCY), n_bytes, n_operations)

    def _read_bytes(self, nodes: Sequence[GraphNode], inside: set[str]) -> int:
        """Count each value from outside once, or the gathered part of a table, and twice for two passes over it."""
        n_bytes: dict[Key, int] = {}
        for node in nodes:
            for position, key in enumerate(self._values.references(node)):
                root = self._roots.get(key, key)
                if root[0] in inside or root not in self._values.storage:
                    continue
                n_passes = 2 if is_a(node.op, "two_pass") and position == 0 else 1
                is_table = is_a(node.op, "gather") and position == 0
                needed = self._values.output_bytes(node) if is_table else self._values.storage[key]
                n_bytes[root] = max(n_bytes.get(root, 0), needed * n_passes)
        return sum(n_bytes.values())

    def _written_bytes(self, nodes: Sequence[GraphNode], inside: set[str]) -> int:
        used = {
            self._roots.get(key, key)[0]
            for node in self._graph.nodes
            if node.name not in inside and not is_a(node.op, "view")
            for key in self._values.references(node)
        }
        used |= {
            self._roots.get((output.node, 0), (output.node, 0))[0] for output in self._graph.outputs if output.node
        }
        return sum(self._values.output_bytes(node) for node in nodes if node.name in used)

    def _library(self, unit: _Unit) -> EagerKernel:
        """Return the library call; a convolution's bias is fused with what follows."""
        if len(unit.nodes) > 1:
            return fused_attention(unit.nodes, self._values, self._gpu)
        return node_kernels(unit.nodes[0], self._values, self._gpu)[0]


def _units(graph: Graph) -> Iterator[_Unit]:
    for place, group in groupby(launching_nodes(graph), key=place_of):
        nodes = tuple(node for node in group if not is_a(node.op, "fill"))
        if nodes and place is not None and ATTENTION_CALL in place.text:
            yield _Unit(nodes, is_library=True)
            continue
        for node in nodes:
            yield _Unit((node,), is_library=is_a(node.op, "tensor_cores"))


def _roots(graph: Graph, values: GraphValues) -> dict[Key, Key]:
    """Return the value that each view is of."""
    roots: dict[Key, Key] = {}
    for node in graph.nodes:
        viewed = next(iter(values.references(node)), None) if is_a(node.op, "view") else None
        if viewed is not None:
            roots |= {(node.name, item): roots.get(viewed, viewed) for item in range(len(node.types))}
    return roots
