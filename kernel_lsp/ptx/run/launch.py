"""Run the blocks of one launch: sequentially, or in turns if they wait for each other."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from typing import Any

from kernel_lsp.ptx.checks.findings import FindingLog, MemoryMap
from kernel_lsp.ptx.checks.livelock import Stillness
from kernel_lsp.ptx.compile.jit import CompiledKernel, Compiler
from kernel_lsp.ptx.compile.native import load64, store64
from kernel_lsp.ptx.races.layout import LaunchRaces
from kernel_lsp.ptx.run.arena import Arena, Arenas, choose_groups, in_order, thread_orders
from kernel_lsp.ptx.run.buffers import AddressTable, Buffer
from kernel_lsp.ptx.run.launch_counters import Tallies
from kernel_lsp.ptx.run.launch_findings import LaunchFindings
from kernel_lsp.ptx.run.launch_setup import GridWorkspace, LaunchSetup
from kernel_lsp.ptx.run.layout import MAX_PARAMETER_BYTES, BlockStatus, Context
from kernel_lsp.ptx.run.run_request import InvalidRequestError, LaunchResult, RunRequest
from kernel_lsp.ptx.run.scheduler import TRACE_BLOCK

MAX_RESIDENT_BLOCKS = 512
"""Maximum blocks that wait for others at once. When it is exceeded, each of them gets a turn. Cooperative launches are
exempt: all their blocks may wait for the last one."""

Group = tuple[Arena, ...]
"""A block, or all blocks of a cluster, which run together."""


class LaunchRun:
    """Run one launch that a GPU would accept. Groups run one after the other, in one arena each. A group that only
    spins is parked with its memory, so that the group it waits for can run. `budget` is the number of instructions left
    for the run."""

    def __init__(
        self,
        compiler: Compiler,
        setup: LaunchSetup,
        request: RunRequest,
        log: FindingLog,
        table: AddressTable,
        buffers: dict[str, Buffer],
        variables: dict[int, tuple[str, int]],
        races: LaunchRaces | None,
        *,
        budget: int,
        was_sampled: bool,
    ) -> None:
        self.compiler, self.setup, self.request, self.log = compiler, setup, request, log
        self.buffers, self.budget, self.was_sampled = buffers, budget, was_sampled
        self.tallies = Tallies(setup.emitted)
        self.findings = LaunchFindings(log, setup)
        self.n_skipped = 0
        self.n_rounds = 0
        self.workspace = GridWorkspace(table, races, setup.n_workspace_bytes)
        self.arenas = Arenas(
            setup,
            self.tallies,
            table,
            pack_parameters(setup.kernel, setup.step, buffers),
            thread_orders(request, setup.n_threads),
            in_order(range(setup.cluster.n_blocks), request),
            request,
            races,
            self.workspace.address,
        )
        self.memory_map = MemoryMap(
            {buffer.window: buffer for buffer in buffers.values()},
            variables,
            setup.n_shared,
            setup.emitted.local,
            setup.cluster.n_blocks if setup.is_clustered else 0,
            setup.n_workspace_bytes,
            setup.emitted.shared,
            setup.emitted.shared.start(request.shared_start),
        )

    def run(self) -> LaunchResult:
        size = self.setup.cluster.n_blocks
        chosen = choose_groups(self.setup.n_blocks // size, size, self.request)
        if not self.setup.emitted.can_spin:  # a block may wait for one with a lower number, which GPUs start first
            chosen = in_order(chosen, self.request)
        is_over = self._run_groups(self._queue(chosen))
        self.findings.note_warnings(self.tallies)
        n_run = (len(chosen) - self.n_skipped) * size
        self.was_sampled |= len(chosen) * size < self.setup.n_blocks
        counters = self.tallies.counters(self.setup, n_run, self.findings.user_line)
        return LaunchResult(counters, n_run, is_over)

    def close(self) -> None:
        self.arenas.close()
        self.workspace.close()

    def _queue(self, chosen: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
        """Queue the groups to run, and mark those to trace."""
        n_wanted = -(-self.request.n_traced_blocks // self.setup.cluster.n_blocks)
        wanted = min(n_wanted, len(chosen))
        traced = {index * len(chosen) // wanted for index in range(wanted)} if wanted else set()
        self.tallies.n_traced_blocks = len(traced) * self.setup.cluster.n_blocks
        entries = [block | (TRACE_BLOCK if index in traced else 0) for index, block in enumerate(chosen)]
        return (ctypes.c_int64 * len(entries))(*entries)

    def _run_groups(self, queue: ctypes.Array[ctypes.c_int64]) -> bool:
        """Run all groups. Returns whether the instruction budget ran out."""
        run_queue = _native(self.compiler.run_cluster_queue if self.setup.is_clustered else self.compiler.run_queue)
        parked: list[Group] = []
        group = self._new_group()
        cursor = 0
        while cursor < len(queue) and not self.log.is_full:
            lead = group[0].context
            store64(lead + Context.BLOCKS, ctypes.addressof(queue))
            store64(lead + Context.N_BLOCKS, len(queue))
            store64(lead + Context.CURSOR, cursor)
            status = self._turn(group, run_queue)
            if status == BlockStatus.OUT_OF_BUDGET:
                self.findings.note_endless(group, self.request.max_thread_instructions)
                return True
            cursor = load64(lead + Context.CURSOR) + (status != BlockStatus.DONE)
            if status == BlockStatus.PARKED:
                parked.append(group)
                if self._is_crowded(parked) and self._run_parked(parked):
                    return True
                if self._is_full(parked) and cursor < len(queue):
                    if self._run_until_still(parked, n_left=len(parked) - 1):
                        return True
                    if self._is_full(parked):
                        self.n_skipped += len(queue) - cursor
                        return False
                group = self._new_group()
            else:
                self._note(group, status)
        self.n_skipped += len(queue) - cursor if cursor < len(queue) else 0
        return self._run_until_still(parked)

    def _is_crowded(self, parked: Sequence[Group]) -> bool:
        n_blocks = len(parked) * self.setup.cluster.n_blocks
        return n_blocks >= MAX_RESIDENT_BLOCKS and not self.setup.is_cooperative

    def _is_full(self, parked: Sequence[Group]) -> bool:
        """Check whether as many blocks wait as may be resident in this run."""
        limit = self.request.resident_blocks.get(self.setup.name)
        return limit is not None and len(parked) * self.setup.cluster.n_blocks >= limit

    def _run_until_still(self, parked: list[Group], n_left: int = 0) -> bool:
        """Give waiting groups their turns until that many are left. Returns whether the instruction budget ran out."""
        written = [buffer.data for buffer in self.buffers.values() if not buffer.is_read_only]
        stillness = Stillness((*written, self.workspace.data), self.setup.n_threads, self.setup.emitted.n_frame_bytes)
        while len(parked) > n_left and not self.log.is_full:
            if self._run_parked(parked):
                return True
            memories = [arena.memory() for group in parked for arena in group]
            if not self.setup.is_clustered and stillness.has_come_back(memories):
                self._note_still(parked, has_more=n_left > 0)
                return False
        return False

    def _run_parked(self, parked: list[Group]) -> bool:
        """Give each parked group a turn. Returns whether the budget ran out."""
        run_group = _native(self.compiler.run_cluster if self.setup.is_clustered else self.compiler.run_block)
        self.n_rounds += 1
        is_turned = self.request.interruptions == "in_turns" and self.n_rounds % 2 == 0
        for group in parked[::-1] if is_turned else list(parked):
            status = self._turn(group, run_group)
            if status == BlockStatus.OUT_OF_BUDGET:
                return True
            if status != BlockStatus.PARKED:
                parked.remove(group)
                self._note(group, status)
        return False

    def _turn(self, group: Group, run_native: Any) -> int:
        """Run a group until it stops. Returns its BlockStatus."""
        self.arenas.show(group[0])
        store64(group[0].context + Context.BUDGET, self.budget)
        status: int = run_native(group[0].context)
        self.budget = load64(group[0].context + Context.BUDGET)
        for arena in group:
            self.tallies.take(arena.context)
        return status

    def _new_group(self) -> Group:
        group = self.arenas.new_group()
        number_threads = _native(self.compiler.number_threads)
        for arena in group:
            number_threads(arena.context)
        return group

    def _note(self, group: Group, status: int) -> None:
        self.n_skipped += self.findings.note_end(group, status, self.memory_map, was_sampled=self.was_sampled)

    def _note_still(self, parked: Sequence[Group], *, has_more: bool) -> None:
        if self.request.sample is None:
            self.findings.note_still(parked, self.setup.n_blocks if has_more else 0)
        else:
            # The groups may wait for a block outside the sample, so they give no verdict.
            self.n_skipped += sum(map(len, parked))


def _native(address: int) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)


def pack_parameters(kernel: CompiledKernel, step: dict[str, Any], buffers: dict[str, Buffer]) -> bytes:
    """Return the parameter memory of a launch. Raises InvalidRequestError when the arguments do not fit."""
    expected = kernel.emitted.parameters
    if len(expected) != len(step["arguments"]):
        raise InvalidRequestError(f"{step['kernel']} has {len(expected)} parameters, not {len(step['arguments'])}")
    packed = bytearray(max(16, kernel.emitted.n_parameter_bytes))
    if len(packed) > MAX_PARAMETER_BYTES:
        raise InvalidRequestError(f"more than {MAX_PARAMETER_BYTES} bytes of parameters")
    for (offset, variable), argument in zip(expected, step["arguments"], strict=True):
        data = _encode_argument(argument, variable.n_bytes, buffers)
        if len(data) != variable.n_bytes:
            raise InvalidRequestError(f"{argument} has {len(data)} bytes; the parameter has {variable.n_bytes}")
        packed[offset : offset + len(data)] = data
    return bytes(packed)


_SCALAR_FORMATS = {"float": "f", "double": "d", "bool": "?"}


def _encode_argument(argument: dict[str, Any], n_bytes: int, buffers: dict[str, Buffer]) -> bytes:
    if argument["kind"] == "tensor":
        return struct.pack("<Q", buffers[argument["tensor"]].base)
    value = argument["value"]
    code = _SCALAR_FORMATS.get(argument["cuda_type"].replace("const ", "").strip())
    if code == "f" and abs(value) > 3.4028235677973366e38 and math.isfinite(value):
        value = math.copysign(math.inf, value)
    if code is not None:
        return struct.pack("<" + code, value)
    return (int(value) & ((1 << 8 * n_bytes) - 1)).to_bytes(n_bytes, "little")
