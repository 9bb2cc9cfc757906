"""Print a captured graph as a readable PyTorch function, the operator's fallback."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ..operators import is_a
from ..valid_names import NamePool
from .graph import FULL_END
from .source_lines import SourceLines
from .symbols import SymbolTable

INFIX = {"add": ("+", 1), "sub": ("-", 1), "mul": ("*", 2), "div": ("/", 2), "matmul": ("@", 2)}
"""Operator and precedence; `ATOM` binds tightest."""
COMPARE = {"gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!="}
ATOM = 3
VIEWS = dict.fromkeys(("aten.view.default", "aten._unsafe_view.default"), torch.ops.aten.reshape.default)
"""Operators of the graph that are printed as others: a GPU's attention gives its result in another memory order than
the captured one, and calls of `contiguous`, as before each `_unsafe_view`, are left out."""
INDEXING = frozenset(("slice", "select", "index"))
FULL_END_TEXT = str(FULL_END)
MAX_INLINE_CHARACTERS = 70
INDENT = "    "


@dataclass(frozen=True)
class Text:
    """Printed code and its precedence."""

    code: str
    precedence: int = ATOM

    def within(self, precedence: int) -> str:
        return self.code if self.precedence >= precedence else f"({self.code})"


@dataclass(frozen=True)
class ReferenceArgument:
    """An argument of the printed function. `placeholder` is its node, None for a scalar."""

    name: str
    placeholder: str | None


class ReferencePrinter:
    """Prints one function. `plain` prints every call as ``torch.ops.aten...``: less readable, but always faithful."""

    def __init__(
        self,
        symbols: SymbolTable,
        shapes: dict[str, list[str]],
        numbers: dict[tuple[str, int | str], str],
        *,
        plain: bool,
    ) -> None:
        self._symbols, self._shapes, self._numbers, self._plain = symbols, shapes, numbers, plain
        self._pool = NamePool()
        self._texts: dict[str, Text] = {}
        self._lines: list[str] = []
        self._sources = SourceLines()
        self._input_of_dtype: dict[torch.dtype, str] = {}

    def print(
        self,
        name: str,
        graph: torch.fx.Graph,
        arguments: Sequence[ReferenceArgument],
        constants: dict[str, torch.Tensor],
        results: dict[str, Any],
    ) -> str:
        """Return the text of ``def <name>_reference(...)``."""
        self._take_arguments(graph, arguments, constants)
        needed = _needed(results.values())
        called = [node for node in graph.nodes if node.op == "call_function" and node in needed]
        nodes = [node for node in called if not self._is_size(node)]
        result_names = {result.name: result_name for result_name, result in results.items()}
        user_names = self._sources.user_names([n for n in nodes if not is_a(n.target, "assertion")])
        for node in nodes:
            self._statement(node, user_names.get(node.name), result_names.get(node.name))
        returned = ", ".join(self._texts[result.name].code for result in results.values())
        return "\n".join(
            [
                f"def {name}_reference({', '.join(argument.name for argument in arguments)}):",
                *self._size_lines(returned),
                *self._lines,
                f"{INDENT}return {returned}",
                "",
            ]
        )

    def _take_arguments(
        self, graph: torch.fx.Graph, arguments: Sequence[ReferenceArgument], constants: dict[str, torch.Tensor]
    ) -> None:
        for symbol_name in self._symbols.names.values():
            self._pool.take(symbol_name)
        for argument in arguments:
            self._pool.take(argument.name)
        by_node = {argument.placeholder: argument.name for argument in arguments if argument.placeholder}
        first = next((argument.name for argument in arguments if argument.placeholder), None)
        for node in graph.nodes:
            if node.op != "placeholder":
                continue
            if node.name in constants:
                self._texts[node.name] = Text(_tensor_literal(constants[node.name], first))
            elif node.name in by_node:
                self._texts[node.name] = Text(by_node[node.name])
                dtype = node.meta["val"].dtype
                if dtype.is_floating_point:
                    self._input_of_dtype.setdefault(dtype, by_node[node.name])

    def _size_lines(self, returned: str) -> list[str]:
        """Return lines such as ``B = x.shape[0]`` for each symbol that the body mentions."""
        body = "\n".join([*self._lines, returned])
        lines = []
        for symbol in self._symbols.names.values():
            if re.search(rf"\b{re.escape(symbol)}\b", body):
                lines.append(f"{INDENT}{symbol} = {self._where_is(symbol)}")
        return lines

    def _where_is(self, symbol: str) -> str:
        for tensor, shape in self._shapes.items():
            if symbol in shape:
                return f"{tensor}.shape[{shape.index(symbol)}]"
        raise AssertionError(f"no argument has the dim {symbol}")

    def _is_size(self, node: Any) -> bool:
        value = node.meta.get("val")
        return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)) and not isinstance(
            value, torch.Tensor
        )

    def _statement(self, node: Any, user_name: str | None, result_name: str | None) -> None:
        if is_a(node.target, "assertion"):
            return
        text = self._expression(node)
        multiple = isinstance(node.meta.get("val"), (tuple, list))
        once = len([user for user in node.users if not self._is_size(user)]) <= 1
        short = len(text.code) <= MAX_INLINE_CHARACTERS
        named = user_name is not None and not multiple
        is_access = node.target is operator.getitem
        if is_access or (once and short and not named and result_name is None and not multiple):
            self._texts[node.name] = text
            return
        if text.code.isidentifier():
            self._texts[node.name] = text
            return
        variable = self._pool.take((user_name if named else result_name) or result_name or node.name)
        self._lines.append(f"{INDENT}{variable} = {text.code}")
        self._texts[node.name] = Text(variable)

    def _expression(self, node: Any) -> Text:
        if node.target is operator.getitem:
            return Text(f"{self._texts[node.args[0].name].code}[{node.args[1]}]")
        op = str(node.target)
        if is_a(op, "identity") and op != "aten.detach.default":
            return self._texts[node.args[0].name]
        if is_a(op, "cast"):
            return self._cast(node)
        target = VIEWS.get(op, node.target)
        op = str(target)
        base = op.split(".")[1] if op.startswith("aten.") else ""
        args, kwargs = self._given(node)
        pretty = None if self._plain or not base else self._pretty(target, base, args, kwargs)
        return pretty or Text(f"torch.ops.{op}({self._arguments(args, kwargs)})")

    def _given(self, node: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return a call's arguments, numbers of the caller as the text that computes them."""
        args, kwargs = list(node.args), dict(node.kwargs)
        for (name, key), text in self._numbers.items():
            if name == node.name:
                found = Text(text, 1 if text.startswith("-") else ATOM)
                if isinstance(key, int):
                    args[key] = found
                else:
                    kwargs[key] = found
        return args, kwargs

    def _pretty(self, op: Any, base: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Text | None:
        """Return the call in its common form; None where no such form is known."""
        arguments = [self._argument(argument) for argument in args]
        if base in COMPARE and len(arguments) == 2 and not kwargs:
            return Text(f"{arguments[0].within(1)} {COMPARE[base]} {arguments[1].within(1)}", 0)
        if base in INFIX and len(arguments) == 2 and not kwargs:
            sign, precedence = INFIX[base]
            return Text(f"{arguments[0].within(precedence)} {sign} {arguments[1].within(precedence + 1)}", precedence)
        if base == "neg":
            return Text(f"-{arguments[0].within(ATOM)}", 2)
        if base in INDEXING:
            return _indexed(base, arguments, args)
        if base == "cross_entropy_loss" and len(arguments) == 2 and not kwargs:
            return Text(f"F.cross_entropy({arguments[0].code}, {arguments[1].code})")
        if is_a(op, "reduction") and is_a(op, "method") and len(arguments) > 1 and not kwargs:
            return Text(f"{arguments[0].within(ATOM)}.{base}({_reduced_dims(args[1:])})")
        if is_a(op, "method") and args and isinstance(args[0], torch.fx.Node):
            rest = self._arguments(args[1:], kwargs)
            return Text(f"{arguments[0].within(ATOM)}.{base}({rest})")
        if is_a(op, "functional") and hasattr(F, base):
            return Text(f"F.{base}({self._arguments(args, kwargs)})")
        if hasattr(torch._C._VariableFunctions, base) and not base.startswith("_"):
            return Text(f"torch.{base}({self._arguments(args, kwargs)})")
        return None

    def _cast(self, node: Any) -> Text:
        """Print a cast; to the dtype of an input where the user's line does not name one."""
        value = self._argument(node.args[0])
        dtype = node.meta["val"].dtype
        name = self._input_of_dtype.get(dtype)
        if name is not None and _casts_to_variable_dtype(self._sources, node):
            return Text(f"{value.within(ATOM)}.to({name}.dtype)")
        return Text(f"{value.within(ATOM)}.to({dtype})")

    def _arguments(self, positional: Sequence[Any], keywords: dict[str, Any]) -> str:
        parts = [self._argument(argument).code for argument in positional]
        for name, value in keywords.items():
            if value is None or name in ("pin_memory", "layout"):
                continue
            parts.append(f"{name}={self._device() if name == 'device' else self._argument(value).code}")
        return ", ".join(parts)

    def _device(self) -> str:
        """Return the device of the first argument, for new tensors."""
        return f"{next(iter(self._shapes))}.device"

    def _argument(self, value: Any) -> Text:
        if isinstance(value, Text):
            return value
        if isinstance(value, torch.fx.Node):
            if value.name in self._texts:
                return self._texts[value.name]
            size = self._symbols.text(value.meta["val"])
            return Text(size) if size.isidentifier() or size.isdigit() else Text(f"({size})")
        if isinstance(value, (list, tuple)):
            inner = ", ".join(self._argument(entry).code for entry in value)
            return Text(f"[{inner}]")
        if isinstance(value, float) and not math.isfinite(value):
            return Text("float('nan')" if math.isnan(value) else f"float('{value}')")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0:
            return Text(repr(value), 1)
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return Text(f"({self._symbols.text(value)})")
        if isinstance(value, (torch.dtype, torch.memory_format)):
            return Text(str(value))
        return Text(repr(value))


def _needed(results: Iterable[Any]) -> set[Any]:
    """Return the nodes that the results depend on. Others update buffers, or compute what the code does not return."""
    found: set[Any] = set()
    pending = list(results)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(node.all_input_nodes)
    return found


def _reduced_dims(arguments: Sequence[Any]) -> str:
    """Print the reduced dims: ``-1, keepdim=True`` for ``[-1], True``."""
    dims = list(arguments[0])
    text = repr(dims[0] if len(dims) == 1 else dims)
    return f"{text}, keepdim=True" if len(arguments) > 1 and arguments[1] else text


def _indexed(base: str, texts: Sequence[Text], arguments: Sequence[Any]) -> Text | None:
    """Print an index: ``x[:, 1:-1]``, ``x[:, 0]`` and ``x[indices]``."""
    value = texts[0].within(ATOM)
    if base == "index":
        entry = texts[1].code[1:-1] if len(arguments[1]) == 1 else "None"
        return Text(f"{value}[{entry}]") if entry != "None" else None
    dim = arguments[1] if len(arguments) > 1 else 0
    if not isinstance(dim, int) or dim < 0:
        return None
    if base == "slice" and _slice_text(texts[2:]) == ":":
        return texts[0]
    return Text(f"{value}[{':, ' * dim}{_slice_text(texts[2:]) if base == 'slice' else texts[2].code}]")


def _slice_text(bounds: Sequence[Text]) -> str:
    start, end, step = (*(bound.code for bound in bounds), *("0", FULL_END_TEXT, "1")[len(bounds) :])
    text = f"{'' if start in ('0', 'None') else start}:{'' if end == FULL_END_TEXT else end}"
    return text if step == "1" else f"{text}:{step}"


def _casts_to_variable_dtype(sources: SourceLines, node: Any) -> bool:
    """Check whether the user's line casts with ``.to(some_dtype)`` or ``.type_as(...)`` rather than with a dtype's
    name."""
    place = sources.of(node)
    if place is None:
        return False
    text = place.text
    if ".type_as(" in text:
        return True
    for match in re.finditer(r"\.(?:to|type)\(\s*(?:dtype\s*=\s*)?([\w.]+)", text):
        if not match[1].startswith("torch.") and not match[1].startswith("device"):
            return True
    return False


def _tensor_literal(value: torch.Tensor, first: str | None) -> str:
    """Print a constant. A single number is filled in: CUDA graphs cannot capture the copy that `torch.tensor` makes."""
    device = f", device={first}.device" if first else ""
    if not value.ndim:
        return f"torch.full([], {_finite_literal(value.item())}, dtype={value.dtype}{device})"
    numbers = _finite_literal(value.tolist())
    return f"torch.tensor({numbers}, dtype={value.dtype}{device})"


def _finite_literal(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_finite_literal(entry) for entry in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return repr(value)


def compile_reference(text: str, name: str) -> Any:
    """Compile the printed function. The text is ours, printed from the graph."""
    ast.parse(text)
    namespace: dict[str, Any] = {"torch": torch, "F": F}
    exec(compile(text, "<reference>", "exec"), namespace)
    return namespace[f"{name}_reference"]
