"""Convert a core ATen graph of `torch.fx` into the JSON of `kernel_lsp.core.task.Graph`."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..failure import TargetFailure
from ..files import PLAN_NAMES, plan_dtype
from ..operators import is_a
from .exported_program import OWNER
from .source_lines import SourceLines
from .symbols import Inexpressible, SymbolTable, is_settled

DROPPED_KEYWORDS = frozenset(("device", "layout", "pin_memory", "memory_format", "non_blocking", "copy"))
FULL_END = (1 << 63) - 1
"""ATen's end of a slice without one."""


@dataclass(frozen=True)
class Value:
    """The value of a `torch.fx` node: a result of a kept node, or an argument."""

    node: str
    item: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {"node": self.node} if self.item is None else {"node": self.node, "item": self.item}


@dataclass
class GraphText:
    """The JSON of a graph, and the arguments that it uses."""

    nodes: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    used: set[str] = field(default_factory=set)

    def mentions(self, symbol: str) -> bool:
        """Check whether any size in the graph depends on the symbol."""
        sizes = json.dumps([[n["arguments"], n["types"]] for n in self.nodes] + [o["type"] for o in self.outputs])
        return re.search(rf"\b{re.escape(symbol)}\b", sizes) is not None


class GraphReader:
    """Renders one graph. `arguments` maps placeholder nodes to argument names. `constants` holds values of lifted
    tensors, by placeholder, that become ``full`` nodes."""

    def __init__(
        self,
        symbols: SymbolTable,
        arguments: dict[str, str],
        constants: dict[str, torch.Tensor],
        place: tuple[str, int],
    ) -> None:
        self._symbols, self._arguments, self._constants, self._place = symbols, arguments, constants, place
        self._sources = SourceLines()
        self._values: dict[str, Value] = {}
        self._nodes: list[dict[str, Any]] = []
        self._taken = set(arguments.values())

    def read(
        self, graph: torch.fx.Graph, results: Sequence[Any], names: Sequence[str], *, n_forward: int | None = None
    ) -> GraphText:
        """Return the graph's nodes in order, and its results under the given names. The user's variables name nodes
        among the first `n_forward` (all, when None). Raises TargetFailure, Inexpressible."""
        self._taken.update(node.name for node in graph.nodes)
        made = [node for node in list(graph.nodes)[:n_forward] if node.op == "call_function"]
        user_names = self._sources.user_names([node for node in made if not self._is_skipped(node)])
        for node in graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "call_function":
                self._call(node, user_names.get(node.name))
            elif node.op == "get_attr":
                raise self._failure(node, "the code calls a higher-order operator or uses a captured object")
        outputs = [self._output(name, result) for name, result in zip(names, results)]
        return self._pruned(outputs)

    def _placeholder(self, node: Any) -> None:
        if node.name in self._constants:
            name = self._free_name(node.name)
            self._nodes.append(_constant_node(name, self._constants[node.name]))
            self._values[node.name] = Value(name)
        elif node.name in self._arguments:
            self._values[node.name] = Value(self._arguments[node.name])

    def _is_skipped(self, node: Any) -> bool:
        op = str(node.target)
        if is_a(op, "assertion") or isinstance(node.meta.get("val"), (int, float, bool, torch.SymInt, torch.SymFloat)):
            return True
        return (
            isinstance(node.meta.get("val"), torch.SymBool) or is_a(op, "identity") or node.target is operator.getitem
        )

    def _call(self, node: Any, user_name: str | None) -> None:
        op = str(node.target)
        self._refuse(node, op)
        if node.target is operator.getitem:
            source, item = node.args
            self._values[node.name] = Value(self._values[source.name].node, item)
        elif self._same_as(node, op) is not None:
            self._pass_through(node, self._same_as(node, op), user_name)
        elif not self._is_skipped(node):
            self._nodes.append(self._node(node, op, user_name))
            self._values[node.name] = Value(self._nodes[-1]["name"])

    def _free_name(self, name: str) -> str:
        """Return the name of a node, or another where an argument has it, such as `index` or `mul`."""
        free, number = name, 2
        if name in self._arguments.values():
            while free in self._taken:
                free, number = f"{name}_{number}", number + 1
        self._taken.add(free)
        return free

    def _node(self, node: Any, op: str, user_name: str | None) -> dict[str, Any]:
        if not isinstance(node.target, torch._ops.OpOverload):
            if op == "with_effects":
                message = f"{node.args[1]} has side effects, such as an error for some values: no kernel can do it"
                raise self._failure(node, message, "leave this call outside the target")
            raise self._failure(node, f"the operator {op} is not an ATen operator")
        source = self._sources.of(node)
        self._require_constants(node, op)
        op, arguments = _canonical(op, list(node.args))
        return {
            "name": self._free_name(node.name),
            "op": op,
            "arguments": [self._argument(argument) for argument in arguments],
            "keywords": {
                name: self._argument(value)
                for name, value in node.kwargs.items()
                if name not in DROPPED_KEYWORDS and value is not None
            },
            "scalars": {},
            "types": self._types(node),
            "source": source.as_json() if source else None,
            "user_name": user_name,
            "module_path": _module_path(node),
        }

    def _require_constants(self, node: Any, op: str) -> None:
        """Raise Inexpressible for a number that depends on sizes and decides what a kernel is. `bias_sizes` of a
        convolution's gradient says the shape of a result alone."""
        names = [argument.name for argument in node.target._schema.arguments]
        named = {**dict(zip(names, node.args)), **node.kwargs}
        if is_a(op, "constant_steps"):
            given = [value for name, value in named.items() if name in ("step", "offset")]
        elif is_a(op, "constants"):
            given = [value for name, value in named.items() if name != "bias_sizes"]
        else:
            return
        for value in torch.utils._pytree.tree_leaves(given):
            found = value.meta.get("val") if isinstance(value, torch.fx.Node) else value
            if isinstance(found, torch.SymInt) and not is_settled(found):
                raise Inexpressible(found.node.expr, "a kernel needs it as a constant")

    def _same_as(self, node: Any, op: str) -> Any:
        """Return the argument that a node only passes on; None when it computes something."""
        if is_a(op, "identity"):
            return node.args[0]
        if is_a(op, "cast"):
            return node.args[0] if node.meta["val"].dtype == node.args[0].meta["val"].dtype else None
        if op == "aten.as_strided.default":
            return node.args[0] if self._has_layout_of(node, node.args[0]) else None
        if is_a(op, "identity_for_equal_shapes"):
            return node.args[0] if self._has_shape_of(node, node.args[0]) else None
        if op == "aten.copy.default":
            is_same = node.args[1].meta["val"].dtype == node.meta["val"].dtype
            return node.args[1] if is_same and self._has_shape_of(node, node.args[1]) else None
        if op in ("aten.slice.Tensor", "aten.slice_scatter.default"):
            first_bound = 2 if op == "aten.slice.Tensor" else 3
            return node.args[first_bound - 2] if _is_full_slice(node.args[first_bound:]) else None
        return None

    def _has_shape_of(self, node: Any, other: Any) -> bool:
        return self._symbols.shape(node.meta["val"].shape) == self._symbols.shape(other.meta["val"].shape)

    def _has_layout_of(self, node: Any, other: Any) -> bool:
        """Check whether both have one shape, and the strides of every dim that has several positions."""
        layouts = []
        for value in (node.meta["val"], other.meta["val"]):
            shape, strides = self._symbols.shape(value.shape), self._symbols.shape(value.stride())
            layouts.append([(size, stride) for size, stride in zip(shape, strides) if size != "1"])
        return self._has_shape_of(node, other) and layouts[0] == layouts[1] and len(node.args) < 4

    def _pass_through(self, node: Any, same: Any, user_name: str | None) -> None:
        """Alias `node` to the value of `same`, which takes the user's name when it has none."""
        value = self._values[node.name] = self._values[same.name]
        made = next((entry for entry in reversed(self._nodes) if entry["name"] == value.node), None)
        if made is not None and made["user_name"] is None and value.item is None:
            made["user_name"] = user_name

    def _types(self, node: Any) -> list[dict[str, Any] | None]:
        value = node.meta["val"]
        values = value if isinstance(value, (tuple, list)) else [value]
        return [self._type(node, entry) if isinstance(entry, torch.Tensor) else None for entry in values]

    def _type(self, node: Any, tensor: torch.Tensor) -> dict[str, Any]:
        source = self._sources.of(node)
        file, line = (source.file, source.line) if source else self._place
        dtype = plan_dtype(tensor.dtype, f"the result of {node.target}", file, line)
        return {"dtype": dtype, "shape": self._symbols.shape(tensor.shape)}

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            known = self._values.get(value.name)
            return known.as_json() if known is not None else {"expression": self._symbols.text(value.meta["val"])}
        if isinstance(value, (list, tuple)):
            return [self._argument(entry) for entry in value]
        if isinstance(value, torch.dtype):
            return {"dtype": plan_dtype(value, "a cast", *self._place)}
        if isinstance(value, float):
            return _as_json(value)
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return {"expression": self._symbols.text(value)}
        return str(value)

    def _output(self, name: str, result: Any) -> dict[str, Any]:
        if result is None:
            return {"name": name, "node": None, "item": None, "type": None}
        value = self._values[result.name]
        tensor_type = self._type(result, result.meta["val"])
        return {"name": name, "node": value.node, "item": value.item, "type": tensor_type}

    def _pruned(self, outputs: list[dict[str, Any]]) -> GraphText:
        """Return only what the outputs need."""
        needed = {output["node"] for output in outputs}
        kept = []
        for node in reversed(self._nodes):
            if node["name"] in needed:
                kept.append(node)
                needed |= _references([node["arguments"], list(node["keywords"].values())])
        return GraphText(kept[::-1], outputs, needed & set(self._arguments.values()))

    def _refuse(self, node: Any, op: str) -> None:
        if is_a(op, "data_dependent") or _has_unbacked_size(node):
            raise self._failure(
                node,
                f"the code depends on values of tensors ({op}): its shapes or its course are known only when it runs",
                "keep the value in a tensor (torch.where, a mask) or move this step out of the target",
            )
        if is_a(op, "random") and not _is_inactive_dropout(node):
            raise self._failure(
                node,
                f"the code is random ({op}), so no reference can say what is right",
                "pass the random tensor as an input, or call .eval() on the module",
            )

    def _failure(self, node: Any, message: str, next_step: str = "") -> TargetFailure:
        source = self._sources.of(node)
        file, line = (source.file, source.line) if source else self._place
        return TargetFailure(
            message, file=file, line=line, next_step=next_step or "use plain tensor operations in the target"
        )


def is_random(graph: torch.fx.Graph) -> bool:
    """Check whether any node draws random numbers."""
    return any(is_a(node.target, "random") and not _is_inactive_dropout(node) for node in graph.nodes)


def _canonical(op: str, arguments: list[Any]) -> tuple[str, list[Any]]:
    """Rename the batch norm of the backward's trace, an older variant, to the forward's."""
    if op != "aten.native_batch_norm.default":
        return op, arguments
    value, weight, bias, mean, variance, is_training, momentum, eps = arguments
    if not is_training:
        return (
            "aten._native_batch_norm_legit_no_training.default",
            [value, weight, bias, mean, variance, momentum, eps],
        )
    if mean is None and variance is None:
        return "aten._native_batch_norm_legit.no_stats", [value, weight, bias, is_training, momentum, eps]
    return op, arguments


def _is_inactive_dropout(node: Any) -> bool:
    base = str(node.target).split(".")[1].rstrip("_")
    if base not in ("dropout", "native_dropout", "alpha_dropout", "feature_dropout") or len(node.args) < 3:
        return False
    is_kept_whole = base in ("dropout", "native_dropout") and node.args[1] == 0
    return is_kept_whole or node.args[2] is False


def _has_unbacked_size(node: Any) -> bool:
    value: Any = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else [value]
    sizes: list[Any] = [size for entry in values if isinstance(entry, torch.Tensor) for size in entry.shape]
    expressions = [size.node.expr for size in sizes if isinstance(size, torch.SymInt)]
    return any(str(symbol).startswith(("u", "zu")) for e in expressions for symbol in e.free_symbols)


def _module_path(node: Any) -> str | None:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values() if isinstance(entry, tuple) and isinstance(entry[0], str)]
    prefix = f"{OWNER}."
    inner = [path[len(prefix) :] for path in paths if path.startswith(prefix)]
    return inner[-1] if inner else None


def _is_full_slice(bounds: Sequence[Any]) -> bool:
    """Check whether (start, end, step) takes the whole dim."""
    given = list(bounds)
    start, end, step = given + [0, FULL_END, 1][len(given) :]
    return start in (0, None) and end == FULL_END and step == 1


def _as_json(number: float) -> Any:
    """Return a number as JSON can hold it: infinities and NaN by name."""
    return number if math.isfinite(number) else {"float": str(number)}


def _constant_node(name: str, value: torch.Tensor) -> dict[str, Any]:
    """Return the node of a constant tensor: `full` where its elements are equal, else `tensor` of all of them in
    order."""
    dtype = PLAN_NAMES[value.dtype]
    shape = [str(size) for size in value.shape]
    numbers = [_as_json(number) for number in value.reshape(-1).tolist()]
    is_full = all(number == numbers[0] for number in numbers)
    return {
        "name": name,
        "op": "aten.full.default" if is_full else "aten.tensor.default",
        "arguments": [list(value.shape), numbers[0]] if is_full else [numbers],
        "keywords": {"dtype": {"dtype": dtype}},
        "scalars": {},
        "types": [{"dtype": dtype, "shape": shape}],
        "source": None,
        "user_name": None,
        "module_path": None,
    }


def _references(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {value["node"]} if "node" in value else set()
    if isinstance(value, list):
        return set().union(*(_references(entry) for entry in value)) if value else set()
    return set()
