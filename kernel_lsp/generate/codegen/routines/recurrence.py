"""Kernels of recurrent layers: a cluster of blocks per sequence walks over time, each block with its hidden units.

The state stays in shared memory. Each block computes its units of the next state and writes them to all blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernel_lsp.core.expression import Constant
from kernel_lsp.core.expression_rules import binary
from kernel_lsp.generate.codegen.kernel import RenderedKernel, rendered
from kernel_lsp.generate.codegen.kernel_writer import KernelWriter
from kernel_lsp.generate.codegen.operators import COMPUTE_TYPE
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.ir.sizes import to_expression
from kernel_lsp.generate.ir.tensor import Routine, Tensor

_NAMES = "states sums rank sequence cell step t now next pair part column sum unit x s h old k peer r z"
LOCAL_NAMES = tuple(_NAMES.split())
N_GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
"""Gates of a unit by kind of layer."""
MAX_THREADS = 1024
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
        return self.n_units % blocks == 0 and self.n_pairs(blocks) * parts <= MAX_THREADS

    def n_pairs(self, blocks: int) -> int:
        """Return the gates that a block computes."""
        return self.n_units // blocks * N_GATES[self.kind]


def render_recurrence(kernel: KernelWriter, layer: Recurrence, blocks: int, parts: int) -> RenderedKernel:
    """Render the kernel with `blocks` per sequence, in which `parts` threads share each gate's products."""
    scope = Scope(kernel)
    n, n_pairs, units = layer.n_units, layer.n_pairs(blocks), layer.n_units // blocks
    width, threads, type_ = n * N_GATES[layer.kind], n_pairs * parts, COMPUTE_TYPE[layer.states.dtype]
    gates, weight, first, *rest = (kernel.pointer(operand) for operand in layer.routine.operands)
    steps = kernel.size("n_steps", layer.routine.operands[0].shape[0])
    batch = kernel.size("n_sequences", layer.states.shape[1])
    target = kernel.target(layer.states)
    time = f"{steps} - 1 - step" if layer.routine.kind.endswith(REVERSED) else "step"
    barrier = f"{kernel.use('cluster_sync')}();" if blocks > 1 else "__syncthreads();"
    index = kernel.index_type
    mine = f"rank * {units} + threadIdx.x"
    cell, last = "", ""
    if layer.kind == "lstm":
        cell = f"{type_} cell = threadIdx.x < {units} ? {rest.pop(0)}[sequence * {n} + {mine}] : 0;"
        last = f"if (threadIdx.x < {units}) {target}[({steps} * {batch} + sequence) * {n} + {mine}] = cell;"
    start = f"part == 0 ? {rest[0]}[column] : 0" if rest else "0"
    body = f"""
    __shared__ {type_} states[2][{n}];
    __shared__ {type_} sums[{threads}];
    const int rank = blockIdx.x % {blocks};
    const {index} sequence = blockIdx.x / {blocks};
    for (int k = threadIdx.x; k < {n}; k += {threads}) states[0][k] = {first}[sequence * {n} + k];
    const int pair = threadIdx.x % {n_pairs}, part = threadIdx.x / {n_pairs};
    const int column = pair / {units} * {n} + rank * {units} + pair % {units};
    {cell}
    {barrier}
    for ({index} step = 0; step < {steps}; ++step) {{
        const {index} t = {time};
        const {type_}* now = states[step % 2];
        {type_}* next = states[(step + 1) % 2];
        {type_} sum = {start};
        for (int k = part; k < {n}; k += {parts}) sum += now[k] * {weight}[k * {width} + column];
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.x < {units}) {{
            const int unit = rank * {units} + threadIdx.x;
            const {type_}* x = {gates} + (t * {batch} + sequence) * {width} + unit;
            {type_} s[{N_GATES[layer.kind]}] = {{}};
            for (int gate = 0; gate < {N_GATES[layer.kind]}; ++gate)
                for (int k = 0; k < {parts}; ++k) s[gate] += sums[k * {n_pairs} + gate * {units} + threadIdx.x];
UPDATE
            {target}[(t * {batch} + sequence) * {n} + unit] = h;
            {_shared_state(kernel, blocks)}
        }}
        {barrier}
    }}
    {last}
"""
    text = body.replace("UPDATE", _update(kernel, layer))
    scope.lines += [line for line in text.split("\n") if line.strip()]
    grid = binary("*", to_expression(layer.states.shape[1]), Constant(blocks))
    comment = (
        f"A cluster of {blocks} blocks per sequence keeps the state in shared memory; each block computes {units} units"
        f" of each step, with {parts} threads per gate."
    )
    found = rendered(kernel, comment, scope.lines, (grid,), (threads,))
    return replace(found, attributes=(("cluster", blocks),)) if blocks > 1 else found


# --- parts of the kernel


def _shared_state(kernel: KernelWriter, blocks: int) -> str:
    if blocks == 1:
        return "next[unit] = h;"
    return f"for (int peer = 0; peer < {blocks}; ++peer) *{kernel.use('in_block')}(&next[unit], peer) = h;"


def _update(kernel: KernelWriter, layer: Recurrence) -> str:
    """Return the statements of the new state `h`, from the inputs' share `x` and the state's share `s` of the gates."""
    type_, n = COMPUTE_TYPE[layer.states.dtype], layer.n_units
    tanh = "tanhf" if type_ == "float" else "tanh"

    def total(gate: int) -> str:
        return f"x[{gate * n}] + s[{gate}]"

    if layer.kind in ("tanh", "relu"):
        lines = [
            f"const {type_} h = {tanh if layer.kind == 'tanh' else kernel.use('relu', layer.states.dtype)}({total(0)});"
        ]
    elif layer.kind == "gru":
        sigmoid = kernel.use("sigmoid", layer.states.dtype)
        lines = [
            f"const {type_} r = {sigmoid}({total(0)}), z = {sigmoid}({total(1)});",
            f"const {type_} candidate = {tanh}(x[{2 * n}] + r * s[2]);",
            f"const {type_} h = candidate + z * (now[unit] - candidate);",
        ]
    else:
        sigmoid = kernel.use("sigmoid", layer.states.dtype)
        lines = [
            f"cell = {sigmoid}({total(1)}) * cell + {sigmoid}({total(0)}) * {tanh}({total(2)});",
            f"const {type_} h = {sigmoid}({total(3)}) * {tanh}(cell);",
        ]
    return "\n".join(f"            {line}" for line in lines)
