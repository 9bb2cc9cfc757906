"""One attempt at a capture: export the call with some dims symbolic, name everything, print the graphs, find the
bounds."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Callable

import sympy
import torch

from ..failure import Failure, TargetFailure, raised_by_user, short_message, user_place
from ..host import without_cuda
from ..valid_names import NamePool
from .backward import GRADIENT, BackwardProgram, graph_leaves, trace_backward
from .call_limit import TooManyCalls
from .captured import Argument, Captured, is_lifted
from .exported_program import Dim, Program, Wrapper, depends_on_inputs, export_program, user_outputs
from .graph import GraphReader, GraphText, is_random
from .inputs import CallInputs
from .load import Callee
from .returned import returned_names
from .side_effects import StateUpdate
from .symbols import (
    Inexpressible,
    SymbolTable,
    assumptions,
    is_settled,
    name_symbols,
    names_in_code,
    ranges,
    shape_env_of,
    symbol_of,
)
from .validation import agrees_at

MAX_INLINE_CONSTANT = 32
"""Maximum elements of a constant tensor that is part of the graph: an element of it is a chain of as many selections. A
larger one is an argument, which no call of the code passes."""
MAX_UPDATES = 64
"""Maximum tensors of a module's state that a call may update: each is a result of the operator."""


class MustFix(Exception):
    """Some dims must keep their captured sizes; no dims means all."""

    def __init__(self, dims: frozenset[Dim], notes: Sequence[str]) -> None:
        super().__init__()
        self.dims, self.notes = dims, notes


class StillRandom(Exception):
    """The graph draws random numbers, as dropout in training mode does."""


class Attempt:
    """One export with the given dims symbolic, its names, graphs and bounds."""

    def __init__(
        self,
        source: dict[str, Any],
        callee: Callee,
        inputs: CallInputs,
        wrapper: Wrapper,
        dynamic: frozenset[Dim],
        notes: list[str],
    ) -> None:
        self._source, self._callee, self._inputs = source, callee, inputs
        self._wrapper, self._dynamic, self._notes = wrapper, dynamic, notes
        self._place = (source["file"], source["line"])
        self._dims_of: dict[sympy.Symbol, set[Dim]] = {}

    def run(self, with_backward: bool) -> Captured:
        """Return the capture. Raises MustFix, StillRandom, Failure."""
        program = self._export()
        if is_random(program.functional.graph) and not self._callee.draws:
            raise StillRandom
        constants = self._constants(program)
        self._dims_of.clear()
        pool = NamePool()
        arguments = self._arguments(program, constants, pool)
        symbols, sizes = self._symbols(program, arguments, pool)
        output_names = [pool.take(name) for name in self._output_names()]
        try:
            by_node = {argument.placeholder.node: argument.name for argument in arguments}
            reader = GraphReader(symbols, by_node, constants, self._place)
            forward = reader.read(program.core.graph, user_outputs(program.core), output_names)
            backward, backward_text = None, None
            if with_backward:
                backward = self._backward(program, arguments, forward)
                backward_text = self._backward_text(backward, symbols, arguments, constants, output_names, program)
            else:  # its gradients are the reference's
                with contextlib.suppress(Exception):  # an operator without a derivative
                    self._find_graphs(program, arguments, self._wanted(program, arguments, forward))
        except Inexpressible as problem:
            raise self._must_fix(problem.symbols, str(problem)) from None
        used = forward.used | (backward_text.used if backward_text else set())
        texts = [forward, backward_text] if backward_text else [forward]
        kept = _kept(arguments, used, program, symbols, texts)
        if not kept:
            raise TargetFailure(
                "the result depends on no input and no parameter: it is a constant",
                file=self._place[0],
                line=self._place[1],
                next_step="compute it once, when the module is constructed",
            )
        dropped = [a.name for a in arguments if self._is_users(a) and a not in kept]
        unused = [f"input '{name}' is not used, so it is not an argument" for name in dropped]
        captured = Captured(
            source=self._source,
            callee=self._callee,
            inputs=self._inputs,
            wrapper=self._wrapper,
            program=program,
            backward=backward,
            symbols=symbols,
            captured_sizes=sizes,
            bounds={},
            arguments=kept,
            output_names=output_names,
            forward_text=forward,
            backward_text=backward_text,
            constants=constants,
            notes=[*self._notes, *unused, *_lifted_notes(kept)],
        )
        self._settle_bounds(captured)
        return captured

    def _export(self) -> Program:
        """Export the call, and again where it updates state that was not known."""
        record = self._wrapper.record
        updates = record.updates
        while True:
            try:
                program = self._exported()
                found = [path for path, increment in program.mutations.items() if increment is None]
            except StateUpdate as update:
                found = update.paths
            else:
                new = zip(updates, user_outputs(program.functional)[-len(updates) :]) if updates else ()
                caches = [path for path, node in new if path in record.absent and not depends_on_inputs(node)]
                record.caches.update(caches)
                for path in caches:
                    del updates[path]
                if not caches and updates.keys() >= set(found):
                    return program
            updates.update(dict.fromkeys([path for path in found if path not in updates], True))
            if len(updates) > MAX_UPDATES:
                raise TargetFailure(
                    f"each call updates more than {MAX_UPDATES} tensors of the module, {found[0]} among them",
                    file=self._place[0],
                    line=self._place[1],
                    next_step="optimize a smaller part, or leave the updates outside of the target",
                )

    def _exported(self) -> Program:
        self._wrapper.record.problem = None
        try:
            with without_cuda():
                return export_program(self._wrapper, self._inputs, self._dynamic)
        except (Failure, StateUpdate):
            raise
        except TooManyCalls as problem:
            raise MustFix(problem.to_fix, [problem.note]) from None
        except BaseException as error:  # torch and the user's code may raise anything here; each becomes an answer
            if self._wrapper.record.problem is not None:
                raise self._wrapper.record.problem from None
            if self._dynamic and not is_data_dependent(error):
                note = f"shapes are fixed at those of the capture: {short_message(error)}"
                raise MustFix(frozenset(), [note]) from None
            raise self._export_failure(error) from None

    def _export_failure(self, error: BaseException) -> TargetFailure:
        file, line = self._source["file"], self._source["line"]
        if is_data_dependent(error):
            where, at = user_place(error, file)
            return TargetFailure(
                "the code's course depends on the values of tensors, so no single kernel does it",
                file=where,
                line=at or line,
                next_step="use torch.where or a mask, or name a smaller target without this branch",
            )
        if ".numpy() is not supported" in str(error):
            where, at = user_place(error, file)
            return TargetFailure(
                "the code converts a tensor to NumPy, which no kernel can compute with",
                file=where,
                line=at or line,
                next_step="use PyTorch's operators instead, or leave this step outside the target",
            )
        return raised_by_user(
            error,
            "running the target on its inputs",
            file,
            line=line,
            next_step="check that the target runs under plain PyTorch with these inputs",
        )

    def _constants(self, program: Program) -> dict[str, torch.Tensor]:
        return {
            p.node: p.value
            for p in program.placeholders
            if p.role == "constant" and p.value.numel() <= MAX_INLINE_CONSTANT
        }

    def _arguments(self, program: Program, constants: dict[str, torch.Tensor], pool: NamePool) -> list[Argument]:
        """Return inputs, then parameters, then buffers. Scalars take their names between the inputs."""
        names = {}
        for leaf in self._inputs.leaves:
            names[id(leaf)] = pool.take(leaf.name)
        tensors = [names[id(leaf)] for leaf in self._inputs.tensors]
        found = []
        for role in ("input", "parameter", "buffer", "constant"):
            for position, placeholder in enumerate(program.placeholders):
                if placeholder.role != role or placeholder.node in constants:
                    continue
                name = tensors[placeholder.index] if role == "input" else pool.take(placeholder.qualified_name)
                found.append(Argument(name, placeholder, position))
        return found

    def _symbols(
        self, program: Program, arguments: list[Argument], pool: NamePool
    ) -> tuple[SymbolTable, dict[sympy.Symbol, int]]:
        fakes = program.fake_inputs
        shape_env = shape_env_of(fakes)
        shapes = [(a.name, fakes[a.position].shape) for a in arguments if a.placeholder.role == "input"]
        state = frozenset(a.name for a in arguments if a.placeholder.role == "input" and not self._is_users(a))
        names = name_symbols(shapes, self._preferred_names(arguments), pool, state)
        table = SymbolTable(names, shape_env)
        sizes: dict[sympy.Symbol, int] = {}
        compound: set[Dim] = set()
        leaves = self._inputs.tensors
        for argument in arguments:
            for dim, size in enumerate(fakes[argument.position].shape):
                if isinstance(size, torch.SymInt) and not is_settled(size):
                    symbol = symbol_of(size)
                    if symbol is None:
                        compound.add((argument.placeholder.index, dim))
                    else:
                        sizes.setdefault(symbol, leaves[argument.placeholder.index].shape[dim])
                        self._dims_of.setdefault(symbol, set()).add((argument.placeholder.index, dim))
        if compound:
            raise MustFix(frozenset(compound), [])
        return table, sizes

    def _preferred_names(self, arguments: list[Argument]) -> dict[tuple[str, int], str]:
        preferred = dict(names_in_code(_user_function(self._callee)))
        for argument in arguments:
            if argument.placeholder.role == "input":
                leaf = self._inputs.tensors[argument.placeholder.index]
                preferred.update({(argument.name, d): n for d, n in enumerate(leaf.dim_names) if n})
        return preferred

    def _output_names(self) -> list[str]:
        record = self._wrapper.record
        names, returned = record.output_names, returned_names(_user_function(self._callee))
        if len(returned) == len(names) - len(record.updates):
            names = [variable or name for variable, name in zip_longest(returned, names)]
        return [*names]

    def _is_users(self, argument: Argument) -> bool:
        """Check whether the argument is an input that the user passes."""
        placeholder = argument.placeholder
        return placeholder.role == "input" and self._inputs.tensors[placeholder.index].state is None

    def _takes_gradient(self, argument: Argument, program: Program) -> bool:
        placeholder = argument.placeholder
        if not program.fake_inputs[argument.position].dtype.is_floating_point:
            return False
        if placeholder.role == "input":
            state = self._inputs.tensors[placeholder.index].state
            return state is None or state.requires_grad
        if placeholder.role == "buffer":  # a state that the code assigns may have its graph
            return self._wrapper.record.updates.get(placeholder.qualified_name, False)
        return placeholder.role == "parameter" and bool(placeholder.value.requires_grad)

    def _backward(self, program: Program, arguments: list[Argument], forward: GraphText) -> BackwardProgram:
        if program.has_no_grad_region:
            raise TargetFailure(
                "a part of the target runs under torch.no_grad(), or changes tensor.data: a backward cannot tell",
                file=self._place[0],
                line=self._place[1],
                next_step="use .detach() there instead, or run it without --backward",
            )
        wanted = self._wanted(program, arguments, forward)
        try:
            with without_cuda():
                return trace_backward(program, self._find_graphs(program, arguments, wanted))
        except TargetFailure as failure:
            failure.file, failure.line = failure.file or self._place[0], failure.line or self._place[1]
            failure.next_step = failure.next_step or "run it without --backward"
            raise
        except BaseException as error:  # autograd may raise anything for an operator without a derivative
            raise raised_by_user(
                error,
                "differentiating the target",
                self._place[0],
                line=self._place[1],
                next_step="run it without --backward",
            ) from None

    def _wanted(self, program: Program, arguments: list[Argument], forward: GraphText) -> list[int]:
        return [a.position for a in arguments if a.name in forward.used and self._takes_gradient(a, program)]

    def _find_graphs(self, program: Program, arguments: list[Argument], wanted: list[int]) -> list[int]:
        """Note, for each assigned state without a parameter in its graph, the inputs and states that autograd reaches
        from it (`Record.graphs`). Return the positions at `wanted` without states that never require a gradient."""
        record = self._wrapper.record
        if not any(record.updates.values()):
            return wanted
        by_position = {a.position: a for a in arguments if a.position in wanted}
        found = dict(zip(record.updates, graph_leaves(program, wanted)[-len(record.updates) :]))
        leaves = {path: [by_position[at] for at in sorted(found[path])] for path, new in record.updates.items() if new}
        recorded: set[str] = set()
        for _ in leaves:  # each round finds one more, or none
            recorded = {path for path, of in leaves.items() if any(_gives_graph(a, recorded) for a in of)}
        for path, of in leaves.items():
            if all(a.placeholder.role == "buffer" or self._is_users(a) for a in of):
                record.graphs[path] = [_name_of(a) for a in of] if path in recorded else []
        return [at for at, a in by_position.items() if _gives_graph(a, recorded)]

    def _backward_text(
        self,
        backward: BackwardProgram,
        symbols: SymbolTable,
        arguments: list[Argument],
        constants: dict[str, torch.Tensor],
        output_names: list[str],
        program: Program,
    ) -> GraphText:
        nodes = [node for node in backward.module.graph.nodes if node.op == "placeholder"]
        n_forward = len(program.placeholders)
        by_node = {nodes[a.position].name: a.name for a in arguments}
        for node, position in zip(nodes[n_forward:], backward.outputs):
            by_node[node.name] = f"{GRADIENT}{output_names[position]}"
        values = {
            nodes[position].name: constants[p.node]
            for position, p in enumerate(program.placeholders)
            if p.node in constants
        }
        by_position = {a.position: a.name for a in arguments}
        reader = GraphReader(symbols, by_node, values, self._place)
        names = [f"{GRADIENT}{by_position[position]}" for position in backward.of]
        return reader.read(backward.module.graph, backward.results, names, n_forward=backward.n_forward)

    def _settle_bounds(self, captured: Captured) -> None:
        """Find the bounds of the symbols. Raises MustFix for those that cannot stay symbolic."""
        shape_env, sizes = shape_env_of(captured.program.fake_inputs), captured.captured_sizes
        if shape_env is None or not sizes:
            return
        # Differentiation can fix a size, or equate two, that the forward left free.
        bound = frozenset(symbol for symbol in sizes if shape_env.replace(symbol) != symbol)
        if bound:
            raise self._must_fix(bound, "its backward needs the size")
        captured.bounds = ranges(shape_env, sizes)
        found = assumptions(shape_env, captured.symbols, sizes, lambda tried: agrees_at(captured, tried, None))
        if found.fixed:
            reason = "; ".join(dict.fromkeys(found.fixed.values()))
            raise self._must_fix(frozenset(found.fixed), f"the code needs {reason}")
        captured.bounds = found.bounds

    def _must_fix(self, fixed: frozenset[sympy.Symbol], reason: str) -> MustFix:
        dims: set[Dim] = set().union(*(self._dims_of.get(symbol, set()) for symbol in fixed))
        leaves = self._inputs.tensors
        where = ", ".join(f"{leaves[i].name}.shape[{d}] = {leaves[i].shape[d]}" for i, d in sorted(dims))
        return MustFix(frozenset(dims), [f"fixed at the captured size: {where or 'every dim'} ({reason})"])


def _gives_graph(argument: Argument, recorded: set[str]) -> bool:
    placeholder = argument.placeholder
    return placeholder.role != "buffer" or placeholder.qualified_name in recorded


def _name_of(argument: Argument) -> str:
    placeholder = argument.placeholder
    return argument.name if placeholder.role == "input" else placeholder.qualified_name


def _user_function(callee: Callee) -> Callable[..., Any]:
    """Return the function whose code is the target's."""
    if callee.lifted is not None:
        return callee.lifted.forward
    return callee.call.forward if isinstance(callee.call, torch.nn.Module) else callee.call


def _kept(
    arguments: Sequence[Argument], used: set[str], program: Program, symbols: SymbolTable, texts: Sequence[GraphText]
) -> list[Argument]:
    """Return the arguments whose values are used, and those that alone determine the size of a used symbol."""
    shapes = {a.name: {symbol_of(size) for size in program.fake_inputs[a.position].shape} - {None} for a in arguments}
    unknown = {symbol for symbol, name in symbols.names.items() if any(text.mentions(name) for text in texts)}
    unknown -= {symbol for name in used for symbol in shapes.get(name, ())}
    kept = []
    for argument in arguments:
        if argument.name in used or shapes[argument.name] & unknown:
            kept.append(argument)
            unknown -= shapes[argument.name]
    return kept


def _lifted_notes(arguments: Sequence[Argument]) -> list[str]:
    return [
        f"the code makes a constant tensor of shape {list(a.placeholder.value.shape)}: it is the argument '{a.name}'"
        for a in arguments
        if is_lifted(a)
    ]


def is_data_dependent(error: BaseException) -> bool:
    text = f"{type(error).__name__} {error}"
    return any(mark in text for mark in ("DataDependent", "data-dependent", "Eq(u0", "data dependent"))
