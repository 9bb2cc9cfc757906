"""The command `trace_task`: a task's normalized graph as a hash, and the n-grams of its operators.

The graph is traced on fake tensors, so that held-out tasks of any size take no memory. Numbers, sizes and names are
left out: two tasks that differ in those alone have one hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ..capture.inputs import generated
from ..capture.load import load_file, resolve
from ..capture.robust_kbench import build, read_settings
from ..failure import Failure, TargetFailure, short_message

TRANSPARENT = frozenset(
    ("aten.detach", "aten.alias", "aten.clone", "aten.lift_fresh_copy", "aten.view", "aten._unsafe_view")
)
"""Operators that pass values on: they are neither nodes nor grams."""
COMMUTATIVE = frozenset(("aten.add", "aten.mul", "aten.maximum", "aten.minimum"))
GRAM_LENGTHS = (2, 3)
START, END = "^", "$"


def trace_task(request: dict[str, Any]) -> dict[str, Any]:
    """Return ``{"graph_hash", "grams", "ops", "shapes", "largest"}`` of ``{"source"}``: `shapes` of the inputs,
    `largest` in elements of a tensor. Raises Failure where it cannot be traced."""
    source = request["source"]
    loaded = load_file(source["file"])
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            if source["kind"] == "robust_kbench":
                callee, inputs = build(loaded, source, read_settings(source["file"])[0])
            else:
                callee = resolve(loaded, source)
                inputs = generated(loaded, source, callee.call, {})
            tensors = [torch.empty(leaf.shape, dtype=leaf.dtype) for leaf in inputs.tensors]

            def call(*given: torch.Tensor) -> Any:
                positional, keywords = inputs.rebuild(given)
                return callee.call(*positional, **keywords)

            traced = make_fx(call, tracing_mode="real", _allow_non_fake_inputs=True)(*tensors)
    except Failure:
        raise
    except Exception as error:  # whatever stops the trace of the user's code is the answer about it
        raise TargetFailure(f"it cannot be traced: {short_message(error)}", file=source["file"]) from None
    own = [*traced.parameters(), *traced.buffers()]
    values = [node.meta.get("val") for node in traced.graph.nodes]
    sizes = [each.numel() for each in (*tensors, *own, *values) if isinstance(each, torch.Tensor)]
    shapes = [list(tensor.shape) for tensor in tensors]
    return {**describe_graph(traced.graph), "shapes": shapes, "largest": max(sizes, default=0)}


def describe_graph(graph: torch.fx.Graph) -> dict[str, Any]:
    """Return the hash, the n-grams and the operators of a traced graph."""
    view = _View(graph)
    return {"graph_hash": view.hash(), "grams": sorted(view.grams()), "ops": view.ops}


class _View:
    """A graph without transparent nodes, and without what no output needs."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._outputs = next(node for node in graph.nodes if node.op == "output").all_input_nodes
        self._anonymous: dict[torch.fx.Node, str] = {}
        self._numbers: dict[torch.fx.Node, int] = {}
        self._named: dict[torch.fx.Node, str] = {}
        for node in graph.nodes:
            if node.op != "output":
                self._anonymous[node] = self._digest(node, self._anonymous, numbered=False)
        self.ops = [_name(node) for node in graph.nodes if node.op == "call_function" and not _is_transparent(node)]

    def hash(self) -> str:
        """Return a hash that does not depend on the order of independent nodes, or of a sum's terms."""
        found = [self._final(node) for node in self._outputs]
        return hashlib.sha256(" ".join(found).encode()).hexdigest()[:32]

    def grams(self) -> set[str]:
        """Return the paths of operators along the data, from inputs to outputs."""
        found: set[str] = set()
        for node in self._needed():
            for path in _paths(node, max(GRAM_LENGTHS)):
                found |= {" ".join(path[-length:]) for length in GRAM_LENGTHS if len(path) >= length}
        for output in self._outputs:
            for path in _paths(output, max(GRAM_LENGTHS) - 1):
                found |= {" ".join((*path[1 - length :], END)) for length in GRAM_LENGTHS if len(path) >= length - 1}
        return found

    def _needed(self) -> list[torch.fx.Node]:
        seen: dict[torch.fx.Node, None] = {}
        waiting = list(self._outputs)
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen[node] = None
                waiting.extend(node.all_input_nodes)
        return list(seen)

    def _final(self, node: torch.fx.Node) -> str:
        if node not in self._named:
            self._named[node] = self._digest(node, self._named, numbered=True)
        return self._named[node]

    def _digest(self, node: torch.fx.Node, known: dict[torch.fx.Node, str], *, numbered: bool) -> str:
        if node.op != "call_function":
            number = self._numbers.setdefault(node, len(self._numbers)) if numbered else 0
            return f"tensor {_kind(node)} {number}"
        operands = list(node.all_input_nodes)
        if _is_transparent(node):
            return self._final(operands[0]) if numbered else known[operands[0]]
        if _name(node) in COMMUTATIVE:
            operands.sort(key=self._anonymous.__getitem__)
        inner = [self._final(each) if numbered else known[each] for each in operands]
        text = f"{_name(node)} {_kind(node)} ({', '.join(inner)})"
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _paths(node: torch.fx.Node, length: int) -> Iterator[tuple[str, ...]]:
    """Yield the paths of at most `length` operators that end at a node."""
    if node.op != "call_function":
        yield (START,)
    elif _is_transparent(node):
        yield from _paths(node.all_input_nodes[0], length)
    elif length == 1 or not node.all_input_nodes:
        yield (_name(node),)
    else:
        for operand in dict.fromkeys(node.all_input_nodes):
            for path in _paths(operand, length - 1):
                yield (*path, _name(node))


def _name(node: torch.fx.Node) -> str:
    """Return the operator without its overload, e.g. ``aten.add``; the item of a tuple by its index."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target.overloadpacket)
    return f"{getattr(node.target, '__name__', node.target)}"


def _is_transparent(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and _name(node) in TRANSPARENT and len(node.all_input_nodes) == 1


def _kind(node: torch.fx.Node) -> str:
    """Return dtype and rank of a node's value."""
    value = node.meta.get("val")
    return f"{value.dtype}/{value.dim()}" if isinstance(value, torch.Tensor) else ""
