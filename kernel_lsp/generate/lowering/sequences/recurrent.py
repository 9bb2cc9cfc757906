"""Recurrent layers: the inputs' share of all gates as one product, then a kernel that walks over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.index import ZERO, Index, as_index
from kernel_lsp.generate.ir.scalar import Access, Scalar, cast, compare, guarded, index_value
from kernel_lsp.generate.ir.tensor import Routine, Tensor
from kernel_lsp.generate.lowering.arithmetic import op
from kernel_lsp.generate.lowering.builder import Call, accumulation_dtype, lowers
from kernel_lsp.generate.lowering.views import choose_part


@dataclass(frozen=True)
class _Layers:
    """The arguments of a call that follow its states and parameters, and the states and parameters."""

    kind: str
    states: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...]
    has_biases: bool
    n_layers: int
    n_directions: int
    is_batch_first: bool

    def weights(self, position: int) -> tuple[Tensor, ...]:
        """Return (input weight, recurrent weight, input bias, recurrent bias) of one layer in one direction."""
        n = 4 if self.has_biases else 2
        return self.parameters[n * position : n * position + n]


def _layers(call: Call, kind: str) -> _Layers:
    states = call.tensors(1, "hx") if kind == "lstm" else [call.tensor(1, "hx")]
    if call.number(5, "dropout") and call.raw(6, "train"):
        call.fail("its dropout is random")
    return _Layers(
        kind,
        tuple(state for state in states if state is not None),
        tuple(parameter for parameter in call.tensors(2, "params") if parameter is not None),
        bool(call.raw(3, "has_biases")),
        call.integer(4, "num_layers"),
        2 if call.raw(7, "bidirectional") else 1,
        bool(call.raw(8, "batch_first")),
    )


def _recurrent(kind: str) -> Callable[[Call], tuple[Tensor, ...]]:
    def rule(call: Call) -> tuple[Tensor, ...]:
        layers = _layers(call, kind)
        x = call.tensor(0, "input")
        if layers.is_batch_first:
            x = _swapped(call, x)
        finals: list[list[Tensor]] = [[] for _ in layers.states]
        for layer in range(layers.n_layers):
            outputs = []
            for direction in range(layers.n_directions):
                found = _direction(call, layers, x, layer * layers.n_directions + direction, is_reversed=direction == 1)
                outputs.append(found)
                end = ZERO if direction else x.shape[0] - 1
                for state, place in zip(finals, (end, x.shape[0]), strict=False):
                    state.append(_at_time(call, found, place))
            x = _side_by_side(call, outputs, x.shape[0])
        output = _swapped(call, x) if layers.is_batch_first else x
        return (_as_result(call, output, 0), *(_stacked(call, entries, 1 + n) for n, entries in enumerate(finals)))

    return rule


for _name, _kind in (("lstm", "lstm"), ("gru", "gru"), ("rnn_tanh", "tanh"), ("rnn_relu", "relu")):
    lowers(f"{_name}.input")(_recurrent(_kind))


def _direction(call: Call, layers: _Layers, x: Tensor, position: int, *, is_reversed: bool) -> Tensor:
    """Return the states of all times; an LSTM's last cell follows them."""
    weight, recurrent, *biases = layers.weights(position)
    dtype = accumulation_dtype(x.dtype)
    n_units = recurrent.shape[-1]
    if n_units.constant is None:
        call.fail("its number of hidden units is no constant")
    first = [_part(call, state, position, dtype) for state in layers.states]
    transposed = call.builder.pointwise(
        dtype,
        (recurrent.shape[1], recurrent.shape[0]),
        lambda index: Access(recurrent, (index[1], index[0])),
        name="recurrent",
    )
    bias = [_as_dtype(call, biases[1], dtype)] if biases else []
    operands = (_gates(call, x, weight, biases[0] if biases else None), transposed, *first, *bias)
    n_rows = x.shape[0] + (1 if layers.kind == "lstm" else 0)
    routine = Routine(layers.kind + ("_reversed" if is_reversed else ""), operands)
    return call.builder.tensor(f"states_{position}", dtype, (n_rows, x.shape[1], n_units), routine)


def _gates(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the inputs' share of the gates of all times: (time, batch, gates * units)."""
    dtype = accumulation_dtype(x.dtype)
    shape = (x.shape[0], x.shape[1], weight.shape[0])

    def factors(index: tuple[Index, ...], k: tuple[Index, ...]) -> tuple[Scalar, Scalar]:
        return Access(x, (index[0], index[1], k[0])), Access(weight, (index[2], k[0]))

    total = call.builder.contraction(dtype, shape, (x.shape[-1],), factors, ((), (0, 1), (2,)), name="gates")

    def with_bias(index: tuple[Index, ...]) -> Scalar:
        own = Access(total, index)
        return own if bias is None else op("add", own, cast(Access(bias, (index[2],)), dtype))

    return call.builder.pointwise(dtype, shape, with_bias, name="gates")


def _as_dtype(call: Call, tensor: Tensor, dtype: DType) -> Tensor:
    """Return the tensor itself where it has the type, so that no kernel copies it."""
    if tensor.dtype is dtype:
        return tensor
    return call.builder.pointwise(dtype, tensor.shape, lambda index: Access(tensor, index))


def _part(call: Call, state: Tensor, position: int, dtype: DType) -> Tensor:
    return call.builder.pointwise(
        dtype, state.shape[1:], lambda index: Access(state, (as_index(position), *index)), name="first_state"
    )


def _swapped(call: Call, tensor: Tensor) -> Tensor:
    shape = (tensor.shape[1], tensor.shape[0], *tensor.shape[2:])
    return call.builder.view(tensor, shape, lambda index: (index[1], index[0], *index[2:]))


def _at_time(call: Call, states: Tensor, time: Index) -> Tensor:
    return call.builder.view(states, states.shape[1:], lambda index: (time, *index))


def _side_by_side(call: Call, outputs: Sequence[Tensor], n_steps: Index) -> Tensor:
    """Return the states of all times, of both directions side by side."""
    n_units = outputs[0].shape[-1]
    shape = (n_steps, outputs[0].shape[1], n_units * len(outputs))
    if len(outputs) == 1:
        return call.builder.view(outputs[0], shape, lambda index: index)

    def element(index: tuple[Index, ...]) -> Scalar:
        return choose_part(outputs, 2, index, outputs[0].dtype)

    return call.builder.pointwise(outputs[0].dtype, shape, element, name="both_directions")


def _stacked(call: Call, entries: Sequence[Tensor], item: int) -> Tensor:
    def element(index: tuple[Index, ...]) -> Scalar:
        chosen: Scalar = Access(entries[-1], index[1:])
        for place in range(len(entries) - 2, -1, -1):
            is_here = compare("eq", index_value(index[0]), index_value(as_index(place)))
            chosen = guarded(is_here, Access(entries[place], index[1:]), chosen)
        return chosen

    return call.builder.pointwise(call.dtype(item), call.shape(item), element)


def _as_result(call: Call, tensor: Tensor, item: int) -> Tensor:
    return call.builder.pointwise(call.dtype(item), call.shape(item), lambda index: Access(tensor, index))
