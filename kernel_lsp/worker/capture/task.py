"""Convert a capture into the JSON of `kernel_lsp.core.task.Task`, after testing its claims on small sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch

from ..failure import short_message
from ..files import PLAN_NAMES
from ..operators import is_a, number
from ..shipped.operator_settings import UNCOMPARABLE, attribute, code_digest
from ..valid_names import snake_case
from .attribute_reads import named_parts, owner_of
from .captured import Argument, Captured, ModuleNumber, is_lifted
from .exported_program import user_outputs
from .inputs import ScalarLeaf, TensorLeaf
from .modes import method_of, mode_settings, module_code, module_settings, module_ties
from .reference import ReferenceArgument, ReferencePrinter, compile_reference
from .side_effects import is_set_first
from .structures import call_structures
from .symbols import symbol_of
from .validation import agrees_at, largest_size_that_holds, smallest_size_that_agrees

SCHEMA_VERSION = 1
DEFAULT_INTEGER_RANGE = (0, 2)
NOT_COMPARED = "the operator would leave the module to PyTorch, since a setting cannot be compared"


def task_of(captured: Captured) -> dict[str, Any]:
    """Return the task. Adds notes to the capture's."""
    name = task_name(captured.source)
    symbols = [_symbol(captured, symbol) for symbol in captured.symbols.names if symbol in _symbols_kept(captured)]
    reference = reference_source(captured, name)
    return {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "target": captured.source["target"],
        "kind": captured.source["kind"],
        "source_file": captured.source["file"],
        "source_line": captured.source["line"],
        "symbols": symbols,
        "arguments": _arguments(captured),
        "forward": _graph(captured, [a.name for a in captured.arguments], captured.forward_text),
        "backward": _backward(captured),
        "reference_source": reference,
        "configuration": captured.configuration,
        **_configurations(captured),
        "module_settings": _module_settings(captured),
        "module_code": _module_code(captured),
        "module_ties": module_ties(owner_of(captured.callee)),
        "returns": captured.wrapper.record.returns,
        "state_updates": _state_updates(captured),
        "state_graphs": captured.wrapper.record.graphs,
        "call_constants": captured.inputs.constants,
        "call_structures": call_structures(captured),
        "draws": [leaf.name for leaf in captured.inputs.leaves[::-1][: captured.callee.draws]][::-1],
        "counters": {path: n for path, n in captured.program.mutations.items() if n is not None},
        "code_digest": _code_digest(captured),
        "has_no_grad_region": captured.program.has_no_grad_region,
        "torch_version": torch.__version__,
        "notes": list(dict.fromkeys(captured.notes)),
    }


def _code_digest(captured: Captured) -> str:
    owner, method = owner_of(captured.callee), method_of(captured.source)
    if captured.source["kind"] == "robust_kbench" or not (owner is None or hasattr(type(owner), method)):
        return ""
    entry = captured.callee.call if owner is None else getattr(type(owner), method)
    return code_digest(entry, frozenset([type(part) for _, part in named_parts(owner)]))


def task_name(source: dict[str, Any]) -> str:
    """Return the name in snake_case, after the symbol; after the file or folder where there is no symbol."""
    if source["kind"] == "robust_kbench":
        return snake_case(os.path.basename(os.path.dirname(os.path.abspath(source["file"]))))
    if source["kind"] == "kernelbench" or not source["symbol"]:
        return snake_case(os.path.splitext(os.path.basename(source["file"]))[0])
    return snake_case(source["symbol"].replace(".", "_"))


def reference_source(captured: Captured, name: str) -> str:
    """Return the readable text where it runs and agrees with the user's code, else the plain one."""
    raised: list[str] = []
    for plain in (False, True):
        text = _print_reference(captured, name, plain)
        if agrees_at(captured, {}, _recording(compile_reference(text, name), raised)):
            return text
    captured.notes.append(
        f"the printed reference does not run, so PyTorch's time will be missing: {raised[-1]}"
        if raised
        else "the printed reference could not be compared with the code at a small size"
    )
    return text


def _recording(reference: Callable[..., Any], raised: list[str]) -> Callable[..., Any]:
    """Return the function, which also notes what it raises."""

    def call(**arguments: Any) -> Any:
        try:
            return reference(**arguments)
        except Exception as error:  # any operator may raise any exception
            raised.append(f"{type(error).__name__}: {short_message(error)}")
            raise

    return call


def _symbol(captured: Captured, symbol: sympy.Symbol) -> dict[str, Any]:
    return {
        "name": captured.symbols.names[symbol],
        "captured": captured.captured_sizes[symbol],
        "minimum": smallest_size_that_agrees(captured, symbol),
        "maximum": largest_size_that_holds(captured, symbol),
    }


def _symbols_kept(captured: Captured) -> set[sympy.Symbol]:
    """Return the symbols whose size an argument determines."""
    shapes = [_fake(captured, argument).shape for argument in captured.arguments]
    return {symbol for shape in shapes for symbol in map(symbol_of, shape) if symbol is not None}


def _arguments(captured: Captured) -> list[dict[str, Any]]:
    """Return inputs in the user's order with the scalars between them, then parameters and buffers."""
    limits = index_limits(captured)
    return [
        _scalar(given) if argument is None else _tensor(captured, argument, given, limits)
        for given, argument in _in_order(captured)
    ] + [{**_scalar(number), "qualified_name": number.path} for number in captured.module_numbers]


def _in_order(captured: Captured) -> Iterator[tuple[Any, Argument | None]]:
    """Yield each of the user's inputs with its argument, None for a scalar, then other arguments with None."""
    # Lifted inputs follow the user's own, parameters first.
    by_index = {a.placeholder.index: a for a in captured.arguments if a.placeholder.role == "input"}
    index = -1
    for leaf in captured.inputs.leaves:
        if isinstance(leaf, ScalarLeaf):
            yield leaf, None
            continue
        index += 1
        if index in by_index:
            yield leaf, by_index[index]
    yield from ((None, argument) for argument in captured.arguments if argument.placeholder.role != "input")


def _scalar(number: ScalarLeaf | ModuleNumber) -> dict[str, Any]:
    return {"kind": "scalar", "name": number.name, "type": type(number.value).__name__, "value": number.value}


def _tensor(captured: Captured, argument: Argument, leaf: TensorLeaf | None, limits: dict[str, str]) -> dict[str, Any]:
    role = captured.role(argument)
    requires_grad = role in ("input", "parameter") and _fake(captured, argument).dtype.is_floating_point
    if role == "parameter":
        requires_grad = requires_grad and captured.requires_grad(argument)
    elif captured.backward is not None and argument.position in captured.backward.of:
        requires_grad = True
    return {
        "kind": "tensor",
        "name": argument.name,
        "type": tensor_type(captured, argument),
        "role": "buffer" if role == "constant" else role,
        "qualified_name": None if is_lifted(argument) else captured.state_name(argument),
        "requires_grad": requires_grad,
        "integer_range": integer_range(captured, argument, leaf, limits),
    }


def integer_range(
    captured: Captured, argument: Argument, leaf: TensorLeaf | None, limits: dict[str, str]
) -> tuple[int, int] | None:
    """Return [low, high) of an integer input: as given, as made by `randint`, or as the indexed dim allows."""
    dtype = _fake(captured, argument).dtype
    if leaf is None or leaf.state is not None or dtype.is_floating_point or dtype == torch.bool:
        return None
    if leaf.integer_range is not None:
        return leaf.integer_range
    if argument.name in limits:
        sizes = {captured.symbols.names[s]: size for s, size in captured.captured_sizes.items()}
        return 0, max(1, evaluate_size(limits[argument.name], sizes))
    return DEFAULT_INTEGER_RANGE


def evaluate_size(text: str, sizes: dict[str, int]) -> int:
    """Evaluate an expression text of our own printer."""
    return int(eval(text, {"__builtins__": {}, "min": min, "max": max}, sizes))


def tensor_type(captured: Captured, argument: Argument) -> dict[str, Any]:
    """Return dtype and symbolic shape."""
    fake = _fake(captured, argument)
    return {"dtype": PLAN_NAMES[fake.dtype], "shape": captured.symbols.shape(fake.shape)}


def _graph(captured: Captured, names: Sequence[str], text: Any) -> dict[str, Any]:
    by_name = {a.name: tensor_type(captured, a) for a in captured.arguments}
    types = [by_name[name] for name in names]
    return {"inputs": list(names), "input_types": types, "nodes": text.nodes, "outputs": text.outputs}


def _backward(captured: Captured) -> dict[str, Any] | None:
    if captured.backward is None or captured.backward_text is None:
        return None
    outputs = captured.forward_text.outputs
    gradients = [outputs[position] for position in captured.backward.outputs]
    graph = _graph(captured, [a.name for a in captured.arguments], captured.backward_text)
    graph["inputs"] = [f"grad_{output['name']}" for output in gradients] + graph["inputs"]
    graph["input_types"] = [output["type"] for output in gradients] + graph["input_types"]
    return graph


def _configurations(captured: Captured) -> dict[str, Any]:
    if captured.coverage is not None:
        uncovered = captured.coverage.uncovered
        captured.notes += [f"not covered by this capture: {other['name']}: {other['reason']}" for other in uncovered]
        return {"configurations": captured.coverage.covered, "uncovered": uncovered}
    return {"configurations": [{"name": "captured", "shapes": captured_shapes(captured), "settings": {}}]}


def _module_settings(captured: Captured) -> dict[str, Any]:
    """Return the settings that are the same in every covered configuration, as the others follow the sizes, without
    numbers that are arguments. The mode is included only where the other one computes something else."""
    differing = set(captured.coverage.differing_settings) if captured.coverage is not None else set()
    differing |= captured.free_settings | _set_first(captured)
    method = method_of(captured.source)
    is_eval = captured.mode is False
    settings = module_settings(owner_of(captured.callee), method, is_eval=is_eval, watch=captured.attributes)
    mode = {} if captured.mode is None else mode_settings(captured.callee.owner, captured.mode)
    unknown = [name for name, value in settings.items() if isinstance(value, str) and UNCOMPARABLE in value]
    captured.notes += [f"{NOT_COMPARED}: {name} is {settings[name]}" for name in unknown]
    return {**{name: value for name, value in settings.items() if name not in differing}, **mode}


def _state_updates(captured: Captured) -> dict[str, str]:
    updates = captured.wrapper.record.updates
    return {path: "assigned" if is_assigned else "in place" for path, is_assigned in updates.items()}


def _set_first(captured: Captured) -> set[str]:
    """Return the attributes that a call sets before it reads them, so that their values before say nothing."""
    owner = owner_of(captured.callee)
    split = {path: path.rpartition(".") for path in captured.wrapper.record.updates}
    return {
        path
        for path, (prefix, _, name) in split.items()
        if is_set_first(attribute(owner, prefix) if prefix else owner, name)
    }


def _module_code(captured: Captured) -> dict[str, str]:
    if captured.source["kind"] == "function":
        return {}
    return module_code(owner_of(captured.callee), method_of(captured.source), is_eval=captured.mode is False)


def captured_shapes(captured: Captured) -> dict[str, list[int]]:
    """Return the shape of every tensor argument in the capture."""
    leaves = captured.inputs.tensors
    return {
        a.name: list(leaves[a.placeholder.index].shape if a.placeholder.role == "input" else a.placeholder.value.shape)
        for a in captured.arguments
    }


def _print_reference(captured: Captured, name: str, plain: bool) -> str:
    arguments = [
        ReferenceArgument(given.name, None) if a is None else ReferenceArgument(a.name, a.placeholder.node)
        for given, a in _in_order(captured)
    ]
    arguments += [ReferenceArgument(number.name, None) for number in captured.module_numbers]
    shapes = {a.name: captured.symbols.shape(_fake(captured, a).shape) for a in captured.arguments}
    printer = ReferencePrinter(captured.symbols, shapes, captured.number_texts, plain=plain)
    functional = captured.program.functional
    results = dict(zip(captured.output_names, user_outputs(functional)))
    return printer.print(name, functional.graph, arguments, captured.constants, results)


def _fake(captured: Captured, argument: Argument) -> Any:
    return captured.program.fake_inputs[argument.position]


def index_limits(captured: Captured) -> dict[str, str]:
    """Map argument names to the expression of the size that their values must stay below."""
    by_node = {a.placeholder.node: a.name for a in captured.arguments}
    limits: dict[str, str] = {}
    for node in captured.program.core.graph.nodes:
        for index, size in _indexed(node) if node.op == "call_function" else ():
            name = by_node.get(_origin(index))
            if name is not None:
                limits.setdefault(name, captured.symbols.text(size))
    return limits


def _indexed(node: Any) -> list[tuple[Any, Any]]:
    """Return the (index node, size of the dim it indexes) of an indexing operator. A loss indexes its classes."""
    at, dim_at = number(node.target, "index"), number(node.target, "dim")
    if is_a(node.target, "index_list"):
        shape = node.args[0].meta["val"].shape
        return [(index, shape[dim]) for dim, index in enumerate(node.args[1]) if index is not None]
    if at is None:
        return []
    shape = node.args[0].meta["val"].shape
    dim = int(is_a(node.target, "loss") and len(shape) > 1) if dim_at is None else node.args[dim_at]
    return [(node.args[at], shape[dim])] if shape else []


def _origin(node: Any) -> str:
    """Return the placeholder that an index comes from, through views and masks."""
    while getattr(node, "op", "") == "call_function" and is_a(node.target, "passes_values"):
        position = 1 if str(node.target) == "aten.where.self" else 0
        node = node.args[position]
    return str(getattr(node, "name", ""))
