"""Trace the backward of a captured call, through autograd, as a graph on the same symbols."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..failure import TargetFailure
from .exported_program import RECURRENT, Program, quiet, user_outputs
from .rewrites.decomposed import FOR_AUTOGRAD, bags_as_rows

GRADIENT = "grad_"


@dataclass
class BackwardProgram:
    """`module` takes the forward's placeholders, then one gradient per floating output.

    `results` are nodes, or None for a gradient that does not exist, one for each placeholder in `of`; `outputs` are the
    positions of the floating outputs. The first `n_forward` nodes are the forward, computed again.
    """

    module: torch.fx.GraphModule
    results: list[Any]
    of: list[int]
    outputs: list[int]
    n_forward: int


def trace_backward(program: Program, wanted: Sequence[int]) -> BackwardProgram:
    """Differentiate with respect to the placeholders at `wanted`. Raises TargetFailure when nothing depends on them."""
    from torch._decomp import core_aten_decompositions
    from torch._dispatch.python import enable_python_dispatcher
    from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

    values = program.fake_inputs
    outputs = [node.meta["val"] for node in user_outputs(program.functional)]
    floating = [position for position, value in enumerate(outputs) if value.dtype.is_floating_point]
    if not floating or not wanted:
        raise TargetFailure("it has no backward: no output, or no input, is floating point")
    mode = _fake_mode(values)
    module = torch.fx.GraphModule(program.functional.graph_module, program.functional.graph)

    def differentiate(inputs: list[torch.Tensor], gradients: list[torch.Tensor]) -> list[Any]:
        leaves = [value.detach().requires_grad_(position in wanted_set) for position, value in enumerate(inputs)]
        with torch.enable_grad():
            made = _Traced(module).run_nodes(leaves)
        forward_nodes.update(node.name for node in _tracer_graph(get_proxy_mode()).nodes)
        results = [made[node.name] for node in user_outputs(program.functional)]
        reached = [(results[p], g) for p, g in zip(floating, gradients) if results[p].requires_grad]
        if not reached:
            return [None for _ in wanted]
        outputs, given = zip(*reached)
        return list(torch.autograd.grad(outputs, [leaves[p] for p in wanted], given, allow_unused=True))

    wanted_set = frozenset(wanted)
    forward_nodes: set[str] = set()
    with quiet(), mode, torch.fx.traceback.preserve_node_meta(), bags_as_rows(module.graph):
        gradients = [torch.empty(outputs[p].shape, dtype=outputs[p].dtype) for p in floating]
        tracer = make_fx(differentiate, decomposition_table=dict(core_aten_decompositions()), tracing_mode="real")
        try:
            traced = tracer(list(values), gradients)
        except RuntimeError:  # C++ that asks symbolic tensors for numbers, such as a cut of an output's own gradient
            with enable_python_dispatcher():
                traced = tracer(list(values), gradients)
    traced.graph.eliminate_dead_code()
    results = list(next(node for node in reversed(traced.graph.nodes) if node.op == "output").args[0])
    if all(result is None for result in results):
        raise TargetFailure("it has no backward: no output has a gradient with respect to an input or a parameter")
    n_forward = sum(node.name in forward_nodes for node in traced.graph.nodes)
    return BackwardProgram(traced, results, list(wanted), floating, n_forward)


def graph_leaves(program: Program, wanted: Sequence[int]) -> list[set[int]]:
    """Return, for each output, the placeholders of those at `wanted` that autograd would lead its gradient to."""
    module = torch.fx.GraphModule(program.functional.graph_module, program.functional.graph)
    with quiet(), _fake_mode(program.fake_inputs), bags_as_rows(module.graph), torch.enable_grad():
        leaves = [value.detach().requires_grad_(at in wanted) for at, value in enumerate(program.fake_inputs)]
        made = _Traced(module).run_nodes(leaves)
    led_to = [_leaves_of(made[node.name]) for node in user_outputs(program.functional)]
    return [{at for at in wanted if id(leaves[at]) in found} for found in led_to]


def _leaves_of(result: torch.Tensor) -> set[int]:
    """Return the ids of the leaves of a tensor's graph."""
    pending, seen, found = [result.grad_fn], set(), {id(result)}
    while pending:
        function = pending.pop()
        if function is not None and function not in seen:
            found.add(id(getattr(function, "variable", None)))
            seen.add(function)
            pending += [following for following, _ in function.next_functions]
    return found


class _Traced(torch.fx.Interpreter):
    """Runs the forward. Nodes that autograd adds later carry the line of the forward node that they differentiate."""

    def run_nodes(self, inputs: Sequence[torch.Tensor]) -> dict[str, Any]:
        """Return every node's value by name."""
        self._seen: set[Any] = set()
        self._made: dict[str, Any] = {}
        self.run(*inputs, enable_io_processing=False)
        return self._made

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run recurrent layers as PyTorch's decompositions, and circular padding as a concatenation: PyTorch's own code
        changes tensors in place, which a trace loses. Others are written for autograd, too."""
        from torch._decomp import decomposition_table

        table = decomposition_table if target in RECURRENT else FOR_AUTOGRAD
        function = table.get(target, target)
        if target is torch.ops.aten.pad.default:
            function = PADDED.get(args[2] if len(args) > 2 else kwargs.get("mode"), function)
        return super().call_function(function, args, kwargs)

    def run_node(self, node: Any) -> Any:
        value = super().run_node(node)
        self._made[node.name] = value
        for entry in value if isinstance(value, (tuple, list)) else [value]:
            if isinstance(entry, torch.Tensor) and entry.grad_fn is not None:
                self._mark(entry.grad_fn, node)
        return value

    def _mark(self, function: Any, node: Any) -> None:
        pending = [function]
        while pending:
            current = pending.pop()
            if current is None or current in self._seen:
                continue
            self._seen.add(current)
            trace, modules = node.meta.get("stack_trace"), node.meta.get("nn_module_stack")
            current.register_prehook(lambda _, trace=trace, modules=modules: _enter(trace, modules))
            pending += [following for following, _ in current.next_functions]


def _padded(repeats: bool, value: torch.Tensor, pad: Sequence[int], *_: Any, **__: Any) -> torch.Tensor:
    """Return the value with its last dims extended by what is on their other side, or, with `repeats`, by their first
    and last elements. Negative numbers cut off first."""
    for place in range(len(pad) // 2):
        dim, before, after = value.dim() - 1 - place, pad[2 * place], pad[2 * place + 1]
        size = value.shape[dim] + min(before, 0) + min(after, 0)
        kept = value.narrow(dim, max(-before, 0), size)
        n_before, n_after = max(before, 0), max(after, 0)
        if repeats:
            ends = [(kept.narrow(dim, 0, 1), n_before), (kept.narrow(dim, size - 1, 1), n_after)]
            left, right = (end.expand([n if axis == dim else -1 for axis in range(end.dim())]) for end, n in ends)
        else:
            left, right = kept.narrow(dim, size - n_before, n_before), kept.narrow(dim, 0, n_after)
        value = torch.cat((left, kept, right), dim)
    return value


PADDED = {"circular": functools.partial(_padded, False), "replicate": functools.partial(_padded, True)}
"""Paddings by mode whose gradients PyTorch does not trace, or traces as an operator without a rule."""


def _enter(trace: Any, modules: Any) -> None:
    meta = torch.fx.traceback.current_meta
    meta.pop("stack_trace", None)
    meta.pop("nn_module_stack", None)
    if trace:
        meta["stack_trace"] = trace
    if modules:
        meta["nn_module_stack"] = modules


def _tracer_graph(mode: Any) -> torch.fx.Graph:
    return mode.tracer.graph


def _fake_mode(values: Sequence[Any]) -> Any:
    modes = [value.fake_mode for value in values if hasattr(value, "fake_mode")]
    return modes[0]
