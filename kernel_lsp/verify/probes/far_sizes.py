"""Check far larger problems than the cases: blocks of a launch on zeros, each with a part of its own, and values at one
very large dim at a time, on the executor.

A fixed grid, a fixed number of steps, or a 16-bit row index suffices only up to some size, which may be too large to
compute. So a few blocks run there on zeros. Their written share is compared with that of blocks at sizes that were
computed. Missing reads show in values alone: a sum of a fixed number of terms is written as completely as any other.
Values are compared at more rows than 16 bits count, and at rows of a million elements.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from kernel_lsp.core.expression import ExpressionError
from kernel_lsp.core.plan import BoundLaunch, BoundOperation
from kernel_lsp.core.task import Graph, Symbol
from kernel_lsp.core.verdict import Crashed, Mismatch
from kernel_lsp.gpu.eager import eager_run
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.ptx.executor import BlockSample
from kernel_lsp.toolchain.integrity.ptx_text import PtxText, Statement, read_ptx
from kernel_lsp.verify.cpu.cpu_device import Limits, LoadedKernel
from kernel_lsp.verify.devices.device import CaseRun
from kernel_lsp.verify.model.cases import (
    LATE_EXTREMES,
    Case,
    Plan,
    Sizes,
    n_largest,
    seeded,
    unjudged,
)
from kernel_lsp.verify.probes.finder import Budget, PlanFinder
from kernel_lsp.verify.probes.sizes import farthest_operations

N_BLOCKS = 12
N_CONFIRMING_BLOCKS = 48
"""Blocks that confirm a shortfall of a few: enough to exclude chance."""
LEAST_SHARE = 0.6
"""Minimum share of an output that all blocks write, extrapolated from those that ran."""
LEAST_KNOWN_SHARE = 0.8
"""Minimum share at sizes that were computed: below it, shares are inconclusive."""
MAX_STORES_PER_THREAD = 16
"""Maximum elements of an output that a thread is assumed to write, where no block of a sample writes any."""
N_COMPLETE = 3
N_SAMPLED = 3
"""Sizes at which all blocks run, and at which a few do, to see that stores cover all of an output."""
MAX_COMPLETE_ELEMENTS = 1 << 16
FIRST_BIT, LAST_BIT = 15, 31
"""Distances of blocks, as exponents of two, at which a truncated index aliases another block. All blocks at smaller
distances run elsewhere."""
MAX_SCRATCH_BYTES = 4 << 30
"""Maximum bytes of scratch; the task's tensors are no larger."""
MAX_INSTRUCTIONS = 8_000_000
"""Maximum instructions of a few blocks: less than 0.1 s."""
MAX_CONFIRMING_INSTRUCTIONS = 8 * MAX_INSTRUCTIONS
N_FIRST_BLOCKS = 1 << 14
"""Maximum blocks of a small size: a grid may exceed its work by far."""
MAX_COMPLETE_INSTRUCTIONS = 50_000_000
"""Maximum instructions of all of these."""
MAX_THREADS = 1 << 31
"""Maximum threads of a grid with `int` thread numbers."""
PRODUCTS, SHIFT = ("mul.lo.", "mad.lo."), "shl.b32"
BLOCK, BLOCK_SIZE = "%ctaid.", "%ntid."
CPU_S = 60.0
"""Maximum CPU seconds of a run; the instructions are the bound."""


async def left_undone(kernel: LoadedKernel) -> Mismatch | None:
    """Return a mismatch when blocks at far sizes write less than their share, or another block's elements. None where
    that is inconclusive: blocks depend on each other, or stores depend on data."""
    look = FarLook(kernel)
    names = await look.written_completely(kernel.plan)
    if not names:
        return None
    for ladder in farthest_operations(kernel.finder, kernel.known):
        for bound in ladder:
            if not kernel.has_kernels_of(bound) or look.is_too_large(bound):
                continue
            shares = await look.shares(bound, N_BLOCKS)
            if shares is None or not any(shares[name] for name in names):
                continue
            failure = await look.lacking(bound, shares, names) or await look.overlapping(bound, names)
            if failure is not None:
                return failure
            break
    return None


@dataclass(frozen=True)
class FarLook:
    """Writes of one built candidate's blocks."""

    kernel: LoadedKernel

    def is_too_large(self, bound: BoundOperation) -> bool:
        """Check whether a grid has more threads than its kernel numbers in 32 bits. Even one-element rows with a warp
        each do not reach that many."""
        ptx = read_ptx(self.kernel.built.ptx)
        return any(
            launch.n_blocks * launch.n_threads_per_block > MAX_THREADS
            and numbers_its_threads(ptx, self.kernel.built.symbols.get(launch.kernel, launch.kernel), launch)
            for launch in bound.launches
        )

    async def written_completely(self, plan: Plan) -> list[str]:
        """Return the outputs that kernels write completely, whatever the data: at small sizes, where all blocks run,
        and by a few blocks' share at large ones."""
        operations = list({case.sizes: bound for case, bound in plan}.values())
        if not operations[0].steps or not self._is_independent(operations[0]):
            return []
        names = [tensor.name for tensor in operations[0].outputs if tensor.n_bytes]
        small = [bound for bound in operations if bound.n_elements <= MAX_COMPLETE_ELEMENTS][:N_COMPLETE]
        large = [operations[0], *sorted(operations, key=lambda bound: bound.n_elements, reverse=True)[:N_SAMPLED]]
        n_told = 0
        for bound in small:
            written = await self._written(bound, bound.launches, range(N_FIRST_BLOCKS), MAX_COMPLETE_INSTRUCTIONS)
            if written is not None:
                n_told += 1
                names = [name for name in names if written[name] == bound.tensor(name).n_bytes]
        for bound in large if names else ():
            shares = await self.shares(bound, N_BLOCKS)
            if shares is not None:
                names = [name for name in names if shares[name] >= LEAST_KNOWN_SHARE]
        return names if n_told else []

    async def shares(
        self, bound: BoundOperation, n_blocks: int, n_allowed: int = MAX_INSTRUCTIONS
    ) -> Mapping[str, float] | None:
        """Return the share of each output that all blocks write, extrapolated from `n_blocks` of each launch; 1 is
        complete. None where they do not terminate."""
        shares = {tensor.name: 0.0 for tensor in bound.outputs}
        if not self._is_independent(bound):
            return None
        for launch in bound.launches:
            blocks = spread(launch.n_blocks, n_blocks, self.kernel.plan[0][0].seed)
            written = await self._written(bound, [launch], blocks, n_allowed)
            if written is None:
                return None
            for name, n_bytes in written.items():
                shares[name] += n_bytes / max(bound.tensor(name).n_bytes, 1) * launch.n_blocks / max(len(blocks), 1)
        return shares

    async def lacking(
        self, bound: BoundOperation, shares: Mapping[str, float], names: Sequence[str]
    ) -> Mismatch | None:
        """Return a mismatch when the blocks write too little of an output, and more blocks confirm it."""
        if all(shares[name] >= LEAST_SHARE for name in names):
            return None
        confirmed = await self.shares(bound, N_CONFIRMING_BLOCKS, MAX_CONFIRMING_INSTRUCTIONS) or {}
        for name in names:
            share = max(shares[name], confirmed.get(name, 1.0))
            if share < LEAST_SHARE and (share or not _is_easily_missed(bound, name)):
                return _mismatch(
                    bound,
                    f"the {_n_blocks(bound):,} blocks of the plan write about {confirmed[name]:.2%} of '{name}': go on"
                    " in steps of the whole grid, launch as many blocks as there is work for, or exclude such sizes by"
                    " '// where:'",
                )
        return None

    async def overlapping(self, bound: BoundOperation, names: Sequence[str]) -> Mismatch | None:
        """Return a mismatch when blocks a power of two apart write the same elements, and others do not."""
        for launch in bound.launches:
            for apart, others in far_apart(launch):
                if await self._n_overlapping(bound, launch, apart, names) and not await self._n_overlapping(
                    bound, launch, others, names
                ):
                    return _mismatch(
                        bound,
                        f"blocks of {launch.kernel} whose numbers are a power of two apart, {1 << FIRST_BIT:,} or more,"
                        " write the same elements: a number in too few bits? Else exclude such sizes with '// where:'",
                    )
        return None

    async def _n_overlapping(
        self, bound: BoundOperation, launch: BoundLaunch, blocks: Sequence[int], names: Sequence[str]
    ) -> int:
        """Return the bytes that several of the blocks write; 0 where that is unknown."""
        together, first = await self._written(bound, [launch], blocks), await self._written(bound, [launch], blocks[:1])
        if together is None or first is None:
            return 0
        if all(2 * together[name] > (2 * len(blocks) - 1) * first[name] for name in names):
            return 0
        each = [await self._written(bound, [launch], [block]) for block in blocks]
        alone = [written for written in each if written is not None]
        return max(sum(written[name] for written in alone) - together[name] for name in names)

    async def _written(
        self,
        bound: BoundOperation,
        launches: Sequence[BoundLaunch],
        blocks: Sequence[int],
        n_allowed: int = MAX_INSTRUCTIONS,
    ) -> Mapping[str, int] | None:
        n_scratch = sum(tensor.n_bytes for tensor in bound.scratch)
        if not launches or n_scratch > MAX_SCRATCH_BYTES:
            return None
        sample = BlockSample(n_blocks=len(blocks), blocks=tuple(blocks))
        n_threads = max(launch.n_threads_per_block for launch in launches)
        limits = Limits(0, n_allowed, CPU_S, max_thread_instructions=n_allowed // n_threads)
        return await self.kernel.code.written_bytes(bound, launches, sample, limits)

    def _is_independent(self, bound: BoundOperation) -> bool:
        """Check that a sample of blocks is conclusive: none may wait for others, or leave work to the last."""
        symbols = {self.kernel.built.symbols.get(launch.kernel, launch.kernel) for launch in bound.launches}
        facts = (kernel for kernel in self.kernel.code.facts if kernel.symbol in symbols)
        return not any(kernel.uses_global_atomics or kernel.may_wait for kernel in facts)


def numbers_its_threads(ptx: PtxText, symbol: str, launch: BoundLaunch) -> bool:
    """Check whether the kernel multiplies the block index by the block size in 32 bits, as CUDA's own examples do. Its
    grids cannot be larger than that number."""
    function, sizes = ptx.functions.get(symbol), {launch.n_threads_per_block, *launch.block} - {1}
    if function is None:
        return False
    holds = function.inferred({}, _special_register, lambda first, _: first)
    return any(_is_thread_number(statement, holds, sizes) for statement in function.body)


def _special_register(statement: Statement, _: Mapping[str, str]) -> str | None:
    """Return the block index or size that a statement copies."""
    source = statement.sources.split(",")[0].strip()
    is_copy = statement.opcode.startswith(("mov.", "cvt.")) and source.startswith((BLOCK, BLOCK_SIZE))
    return source if is_copy else None


def _is_thread_number(statement: Statement, holds: Mapping[str, str], sizes: Collection[int]) -> bool:
    operands = [operand.strip() for operand in statement.sources.split(",")][:2]
    others = [operand for operand in operands if not holds.get(operand, operand).startswith(BLOCK)]
    if len(others) == len(operands):
        return False
    if statement.opcode == SHIFT:
        return operands[1].isdigit() and 1 << int(operands[1]) in sizes
    is_product = statement.opcode.startswith(PRODUCTS) and "32" in statement.opcode
    return is_product and any(
        holds.get(other, "").startswith(BLOCK_SIZE) or (other.isdigit() and int(other) in sizes) for other in others
    )


def spread(n_blocks: int, n_wanted: int, seed: int) -> list[int]:
    """Return the first block, the last, and a random one of each equal part between them."""
    if n_blocks <= n_wanted:
        return list(range(n_blocks))
    draw, inner = random.Random(seed), n_wanted - 2
    edges = [1 + (n_blocks - 2) * part // inner for part in range(inner + 1)]
    return [0, *(draw.randrange(low, high) for low, high in pairwise(edges)), n_blocks - 1]


def far_apart(launch: BoundLaunch) -> Iterator[tuple[list[int], list[int]]]:
    """Yield, for each dim of the grid with enough blocks, some that are powers of two apart, and some that are not."""
    stride = 1
    for size in launch.grid:
        offsets = [1 << bit for bit in range(FIRST_BIT, LAST_BIT) if 1 + (1 << bit) < size]
        if offsets:
            others = [offset - 1 - 2 * position for position, offset in enumerate(offsets)]
            yield [stride * (1 + o) for o in (0, *offsets)], [stride * (1 + o) for o in (0, *others)]
        stride *= size


def _is_easily_missed(bound: BoundOperation, name: str) -> bool:
    """Check whether a sample may miss every block that writes an output: parts of one launch differ in blocks."""
    largest = max(bound.launches, key=lambda launch: launch.n_blocks)
    n_per_block = largest.n_threads_per_block * MAX_STORES_PER_THREAD
    return bound.tensor(name).n_elements * N_CONFIRMING_BLOCKS < n_per_block * largest.n_blocks


def _n_blocks(bound: BoundOperation) -> int:
    return max((launch.n_blocks for launch in bound.launches), default=0)


def _mismatch(bound: BoundOperation, message: str) -> Mismatch:
    dims = ", ".join(f"{name} = {size:,}" for name, size in bound.dims.items())
    return Mismatch(message=f"with {dims} {message}", failed=unjudged(bound, "zeros", _n_blocks(bound), N_BLOCKS))


MANY_ROWS = 70_001
"""Rows, more than 16 bits count."""
LONG_ROW = 1_310_003
"""Elements of a row, a quarter more than two levels of 1,024 threads cover."""
LONG_SUM = 4_700_003
"""Elements of a task with one symbol, an eighth more than 1,024 partial sums of 4,096 each."""
BESIDE = {MANY_ROWS: 3, LONG_ROW: 1, LONG_SUM: 1}
"""Size of the other symbols."""
MAX_SYMBOLS = 2
"""Maximum symbols of a task whose number of rows is tested."""
MAX_ELEMENTS = 6_000_000
"""Maximum elements of all inputs and outputs, and of any intermediate."""
MAX_OPERATIONS, MAX_BYTES = 300_000_000, 300_000_000
"""Maximum work of PyTorch: some tenths of a second on a CPU. The byte limit also holds for a kernel's own tensors with
scratch."""
MAX_VAST_INSTRUCTIONS, MAX_SUM_INSTRUCTIONS = 30_000_000, 80_000_000
"""Maximum instructions of a kernel, and of one that sums all of a single dim: 0.2 s, and 0.5 s. A kernel that needs
more is not tested."""
LEAST_ERROR = 0.05
"""Minimum relative error of a whole output that is a failure. Omitted terms exceed it; a serial sum of a million terms,
which is accepted here, does not."""


async def wrong_at_vast_sizes(kernel: LoadedKernel) -> Mismatch | Crashed | None:
    """Return a mismatch when an output is incorrect at a very large size. None also where the test would take too
    long."""
    for sizes in vast_sizes_of_one(kernel.finder, kernel.known):
        if not _is_cheap(kernel.finder.graph, sizes, kernel.gpu):
            continue
        bound = kernel.finder.bind(sizes)
        n_allowed = MAX_SUM_INSTRUCTIONS if len(sizes) == 1 else MAX_VAST_INSTRUCTIONS
        limits = Limits(0, n_allowed, CPU_S, max_thread_instructions=n_allowed)
        # Before PyTorch computes the reference.
        if not kernel.has_kernels_of(bound) or not await kernel.code.ends(bound, limits):
            continue
        case = Case(kernel.direction, tuple(sorted(sizes.items())), LATE_EXTREMES, 0, "random")
        case = seeded(case, kernel.plan[0][0].seed, "large values")
        await kernel.store.make_without_turn(case)
        outcome = await kernel.run(case, bound, limits)
        if isinstance(outcome, Crashed) or (isinstance(outcome, Mismatch) and is_gross(outcome)):
            return outcome
        if isinstance(outcome, CaseRun):
            kernel.progress.cases.append(outcome.result)
            kernel.progress.add_findings(outcome.findings)
    return None


def vast_sizes_of_one(finder: PlanFinder, known: Sequence[Sizes]) -> Iterator[Sizes]:
    """Yield, for each relevant symbol, sizes inside the contract with that symbol very large and the others small.
    Skips sizes that one of the `known` ones reaches."""
    for symbol in finder.task.symbols:
        for n_wanted in _wanted(finder, symbol.name):
            sizes = _with_one_vast(finder, symbol, n_wanted)
            if any(each[symbol.name] >= n_wanted for each in known):
                break
            if sizes is not None:
                yield sizes
                break


def is_gross(mismatch: Mismatch) -> bool:
    """Check whether the mismatch exceeds rounding errors."""
    wrong = [error for error in mismatch.failed.errors if error.n_wrong]
    return not mismatch.failed.errors or any(e.found is None or not e.relative_l2 <= LEAST_ERROR for e in wrong)


def _wanted(finder: PlanFinder, symbol: str) -> tuple[int, ...]:
    """Return the wanted sizes of a symbol, in order of preference: larger for a reduced dim or a row length than for a
    number of rows. Empty for an unreduced dim of three or more symbols, which shares test."""
    outputs = [output.type for output in finder.graph.outputs if output.type is not None]
    is_summed = not any(symbol in dim for type_ in outputs for dim in type_.shape)
    if is_summed:
        return (LONG_SUM, LONG_ROW) if len(finder.symbols) == 1 else (LONG_ROW,)
    if len(finder.symbols) > MAX_SYMBOLS:
        return ()
    return (LONG_ROW if symbol == finder.symbols[-1].name else MANY_ROWS,)


def _with_one_vast(finder: PlanFinder, symbol: Symbol, n_wanted: int) -> Sizes | None:
    for sizes in finder.aligned_with([symbol], n_wanted, BESIDE[n_wanted]):
        is_small = sizes[symbol.name] >= n_wanted and finder.fits(sizes, Budget(MAX_ELEMENTS))
        if is_small and finder.can_bind(sizes):
            n_bytes = sum(tensor.n_bytes for tensor in finder.bind(sizes).tensors)
            return sizes if n_bytes <= MAX_BYTES else None
    return None


def _is_cheap(graph: Graph, sizes: Sizes, gpu: GpuSpec) -> bool:
    """Check whether PyTorch needs at most some tenths of a second."""
    with suppress(ExpressionError):
        if n_largest(graph, sizes) <= MAX_ELEMENTS:
            kernels = eager_run(graph, sizes, gpu).kernels
            n_operations, n_bytes = sum(k.n_operations for k in kernels), sum(k.n_bytes for k in kernels)
            return n_operations <= MAX_OPERATIONS and n_bytes <= MAX_BYTES
    return False
