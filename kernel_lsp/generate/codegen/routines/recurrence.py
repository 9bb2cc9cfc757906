"""Kernels of recurrent layers: a cluster of blocks per sequence walks over time, each block with its hidden units.

The state stays in shared memory. Each block computes its units of the next state and writes them to all blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernel_lsp.core.expression import Constant
from kernel_lsp.core.expression_rules import binary
from kernel_lsp.generate.codegen.kernel import REGISTERS_PER_BLOCK, KernelWriter, RenderedKernel, rendered
from kernel_lsp.generate.codegen.operators import COMPUTE_TYPE
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.ir.sizes import to_expression
from kernel_lsp.generate.ir.tensor import Routine, Tensor

_NAMES = "states sums rank sequence cell step t now next part sum own unit own_unit gate"
_MORE_NAMES = "is_mine start x s h k peer r z"
LOCAL_NAMES = tuple(f"{_NAMES} {_MORE_NAMES}".split())
N_GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
"""Gates of a unit by kind of layer."""
MAX_THREADS = 1024
MAX_REGISTERS = 255
"""Registers of a thread."""
OTHER_REGISTERS = 28
"""Registers of a thread beside its weights: indices, pointers, and the gates of a unit."""
COMPUTE_WORDS = {"float": 1, "double": 2}
REVERSED = "_reversed"


@dataclass(frozen=True)
class Recurrence:
    """A recurrent layer in one direction. Operands: the inputs' share of the gates (time, batch, gates * units), the
    transposed recurrent weight (units, gates * units), the first state (batch, units), for ``lstm`` the first cell,
    and the recurrent bias if there is one. Element (t, batch, unit) of `states` is the state after time t; an LSTM's
    last cell follows the last state."""

    states: Tensor
    routine: Routine

    @property
    def kind(self) -> str:
        return self.routine.kind.removesuffix(REVERSED)

    @property
    def n_units(self) -> int:
        size = self.states.shape[-1].constant
        assert size is not None, "lowering refuses a symbolic number of units"
        return size

    def is_valid(self, blocks: int, parts: int) -> bool:
        """Return True if the units divide among so many blocks, and one block has enough threads."""
        return self.n_units % blocks == 0 and self.n_units // blocks * parts <= MAX_THREADS

    def keeps_weights(self, blocks: int, parts: int) -> bool:
        """Return True if each thread has registers for its weights, which it then reads once and not in every step."""
        words = self.n_units // parts * N_GATES[self.kind] * COMPUTE_WORDS[COMPUTE_TYPE[self.states.dtype]]
        registers = min(MAX_REGISTERS, REGISTERS_PER_BLOCK // (self.n_units // blocks * parts))
        return self.n_units % parts == 0 and words + OTHER_REGISTERS <= registers


def render_recurrence(kernel: KernelWriter, layer: Recurrence, blocks: int, parts: int) -> RenderedKernel:
    """Render the kernel with `blocks` per sequence, in which `parts` threads share the products of each unit."""
    scope = Scope(kernel)
    n, units, n_gates = layer.n_units, layer.n_units // blocks, N_GATES[layer.kind]
    type_, index = COMPUTE_TYPE[layer.states.dtype], kernel.index_type
    gates, weight, first, *rest = (kernel.pointer(operand) for operand in layer.routine.operands)
    steps = kernel.size("n_steps", layer.routine.operands[0].shape[0])
    batch = kernel.size("n_sequences", layer.states.shape[1])
    target = kernel.target(layer.states)
    time = f"{steps} - 1 - step" if layer.routine.kind.endswith(REVERSED) else "step"
    barrier = f"{kernel.use('cluster_sync')}();" if blocks > 1 else "__syncthreads();"
    cell, last = "", ""
    if layer.kind == "lstm":
        cell = f"{type_} cell = is_mine ? {rest.pop(0)}[sequence * {n} + unit] : 0;"
        last = f"if (is_mine) {target}[({steps} * {batch} + sequence) * {n} + unit] = cell;"
    bias = f"for (int gate = 0; gate < {n_gates}; ++gate) start[gate] = {rest[0]}[gate * {n} + unit];" if rest else ""
    products = _products(layer, weight, blocks, parts)
    body = f"""
    __shared__ __align__(16) {type_} states[2][{n}];
    __shared__ {type_} sums[{parts}][{n_gates}][{units}];
    const int rank = blockIdx.x % {blocks};
    const {index} sequence = blockIdx.x / {blocks};
    for (int k = threadIdx.x; k < {n}; k += {units * parts}) states[0][k] = {first}[sequence * {n} + k];
    const int part = threadIdx.x / {units}, own_unit = threadIdx.x % {units}, unit = rank * {units} + own_unit;
    const bool is_mine = part == 0;
    {type_} start[{n_gates}] = {{}};
    {bias}
    {cell}
    {products.before}
    {barrier}
    for ({index} step = 0; step < {steps}; ++step) {{
        const {index} t = {time};
        const {type_}* now = states[step % 2];
        {type_}* next = states[(step + 1) % 2];
        {type_} x[{n_gates}] = {{}}, sum[{n_gates}] = {{}}, h = 0;
        if (is_mine)
            for (int gate = 0; gate < {n_gates}; ++gate)
                x[gate] = {gates}[(t * {batch} + sequence) * {n * n_gates} + gate * {n} + unit];
        {products.each_step}
        for (int gate = 0; gate < {n_gates}; ++gate) sums[part][gate][own_unit] = sum[gate];
        __syncthreads();
        if (is_mine) {{
            {type_} s[{n_gates}];
            for (int gate = 0; gate < {n_gates}; ++gate) {{
                s[gate] = start[gate];
                for (int k = 0; k < {parts}; ++k) s[gate] += sums[k][gate][own_unit];
            }}
UPDATE
            {_shared_state(kernel, blocks)}
        }}
        {barrier}
        if (is_mine) {target}[(t * {batch} + sequence) * {n} + unit] = h;  // no barrier waits for it
    }}
    {last}
"""
    text = body.replace("UPDATE", _update(kernel, layer))
    scope.lines += [line for line in text.split("\n") if line.strip()]
    return _launched(kernel, layer, scope.lines, blocks, parts, products.comment)


def _launched(
    kernel: KernelWriter, layer: Recurrence, lines: list[str], blocks: int, parts: int, note: str
) -> RenderedKernel:
    """Return the kernel with its comment and its launch."""
    grid = binary("*", to_expression(layer.states.shape[1]), Constant(blocks))
    comment = (
        f"A cluster of {blocks} blocks per sequence keeps the state in shared memory{note}; each block computes "
        f"{layer.n_units // blocks} units of each step, with {parts} threads per unit."
    )
    found = rendered(kernel, comment, lines, (grid,), (layer.n_units // blocks * parts,))
    return replace(found, attributes=(("cluster", blocks),)) if blocks > 1 else found


@dataclass(frozen=True)
class _Products:
    """The statements that multiply the state by a thread's weights."""

    before: str
    each_step: str
    comment: str = ""


def _products(layer: Recurrence, weight: str, blocks: int, parts: int) -> _Products:
    """Return the products of all gates of a unit: each value of the state is read from shared memory once for them."""
    n, n_gates, type_ = layer.n_units, N_GATES[layer.kind], COMPUTE_TYPE[layer.states.dtype]
    element, n_own = f"* {n * n_gates} + gate * {n} + unit", n // parts
    if not layer.keeps_weights(blocks, parts):
        each_step = f"""for (int k = part; k < {n}; k += {parts})
            for (int gate = 0; gate < {n_gates}; ++gate) sum[gate] += now[k] * {weight}[k {element}];"""
        return _Products("", each_step)
    before = f"""{type_} own[{n_gates}][{n_own}];
    #pragma unroll
    for (int gate = 0; gate < {n_gates}; ++gate)
        #pragma unroll
        for (int k = 0; k < {n_own}; ++k) own[gate][k] = {weight}[(part * {n_own} + k) {element}];"""
    each_step = f"""#pragma unroll
        for (int k = 0; k < {n_own}; ++k)
            #pragma unroll
            for (int gate = 0; gate < {n_gates}; ++gate) sum[gate] += now[part * {n_own} + k] * own[gate][k];"""
    return _Products(before, each_step, ", and the weights in registers")


def _shared_state(kernel: KernelWriter, blocks: int) -> str:
    if blocks == 1:
        return "next[unit] = h;"
    return f"for (int peer = 0; peer < {blocks}; ++peer) *{kernel.use('in_block')}(&next[unit], peer) = h;"


def _update(kernel: KernelWriter, layer: Recurrence) -> str:
    """Return the statements of the new state `h`, from the inputs' share `x` and the state's share `s` of the gates."""
    type_ = COMPUTE_TYPE[layer.states.dtype]
    tanh = "tanhf" if type_ == "float" else "tanh"

    def total(gate: int) -> str:
        return f"x[{gate}] + s[{gate}]"

    if layer.kind in ("tanh", "relu"):
        lines = [f"h = {tanh if layer.kind == 'tanh' else kernel.use('relu', layer.states.dtype)}({total(0)});"]
    elif layer.kind == "gru":
        sigmoid = kernel.use("sigmoid", layer.states.dtype)
        lines = [
            f"const {type_} r = {sigmoid}({total(0)}), z = {sigmoid}({total(1)});",
            f"const {type_} candidate = {tanh}(x[2] + r * s[2]);",
            "h = candidate + z * (now[unit] - candidate);",
        ]
    else:
        sigmoid = kernel.use("sigmoid", layer.states.dtype)
        lines = [
            f"cell = {sigmoid}({total(1)}) * cell + {sigmoid}({total(0)}) * {tanh}({total(2)});",
            f"h = {sigmoid}({total(3)}) * {tanh}(cell);",
        ]
    return "\n".join(f"            {line}" for line in lines)
