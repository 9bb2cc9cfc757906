"""Collect the counters of native code during one launch, and derive totals and counts per line."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from kernel_lsp.ptx.analysis.census import Census, LineCensus, census_of
from kernel_lsp.ptx.compile.clusters import mapped_registers
from kernel_lsp.ptx.compile.emitter import EmittedKernel
from kernel_lsp.ptx.compile.native import load64, store64
from kernel_lsp.ptx.run.launch_setup import LaunchSetup
from kernel_lsp.ptx.run.layout import Context, SiteTrace
from kernel_lsp.ptx.text.syntax import Instruction

UserLine = Callable[[Instruction | None], int | None]
"""Map an instruction to its line of the user's file."""


class Tallies:
    """Hold executions per basic block, reads of uninitialised shared memory and traced requests per site."""

    def __init__(self, emitted: EmittedKernel) -> None:
        self.emitted = emitted
        n_sites = len(emitted.sites)
        self.counts = (ctypes.c_int64 * len(emitted.blocks))()
        self.warnings = (ctypes.c_int64 * (2 * n_sites + 2))()
        self.site_traces = (ctypes.c_int64 * (SiteTrace.N_BYTES // 8 * (n_sites + 1)))()
        self.max_per_thread = 0
        self.n_traced_blocks = 0
        self.trace_totals = [0, 0, 0, 0]

    @property
    def warning_places(self) -> int:
        """Return the address of the first such read, per site."""
        return ctypes.addressof(self.warnings) + 8 * (len(self.emitted.sites) + 1)

    def first_reader(self, site: int) -> int:
        """Return block and thread of the first read of uninitialised memory at a site, packed as by the scheduler."""
        return self.warnings[len(self.emitted.sites) + 1 + site]

    def take(self, context: int) -> None:
        """Add the counts of a block's context, and reset them there."""
        self.max_per_thread = max(self.max_per_thread, load64(context + Context.MAX_PER_THREAD))
        for index, place in enumerate(_TRACE_COUNTERS):
            self.trace_totals[index] += load64(context + place)
            store64(context + place, 0)

    def counters(self, setup: LaunchSetup, n_run: int, user_line: UserLine) -> dict[str, Any]:
        """Return the fields of `LaunchCounters` for a launch of which `n_run` blocks ran."""
        total, mapped, n_polled = Census(), mapped_registers(self.emitted.blocks), 0
        for block, count in zip(self.emitted.blocks, self.counts, strict=True):
            if block.index in self.emitted.polling:
                n_polled += count * block.n_instructions
            elif count:
                total.add(census_of(block, mapped), count)
        n_requests, n_sectors, n_traced, n_untraced = self.trace_totals
        polls = self._polling_traces()
        n_requests, n_sectors = n_requests - sum(polls[0::2]), n_sectors - sum(polls[1::2])
        scale = (n_traced + n_untraced) / n_traced if n_traced else 1.0
        return {
            "kernel": setup.name,
            "n_blocks": setup.n_blocks,
            "n_blocks_run": n_run,
            "n_blocks_traced": self.n_traced_blocks,
            "n_threads_per_block": setup.n_threads,
            **vars(total),
            "n_global_requests": round(n_requests * scale),
            "n_global_sectors": round(n_sectors * scale),
            "max_instructions_per_thread": self.max_per_thread,
            "n_polled_instructions": n_polled,
            "lines": self._lines(user_line) if self.n_traced_blocks else [],
        }

    def _polling_traces(self) -> list[int]:
        """Return the traced requests and sectors of each access that only polls."""
        polling = {
            id(i) for block in self.emitted.blocks if block.index in self.emitted.polling for i in block.instructions
        }
        found = (index for index, site in enumerate(self.emitted.sites) if id(site.instruction) in polling)
        return [number for index in found for number in self.site_traces[3 * index : 3 * index + 2]]

    def _lines(self, user_line: UserLine) -> list[dict[str, int]]:
        """Return the counters of each line of the user's file, in order. Inlined code counts at its call site."""
        counters: dict[int, LineCensus] = {}
        for block, count in zip(self.emitted.blocks, self.counts, strict=True):
            is_work = count and block.index not in self.emitted.polling
            for instruction in (*block.instructions, block.terminator) if is_work else ():
                line = user_line(instruction)
                if line is not None:
                    counters.setdefault(line, LineCensus()).n_instructions += count
        for index, site in enumerate(self.emitted.sites):
            line = user_line(site.instruction)
            if line is not None and line in counters:
                counters[line].add_site(self.site_traces[3 * index : 3 * index + 3], site.n_bytes)
        return [{"line": line, **vars(census)} for line, census in sorted(counters.items())]


_TRACE_COUNTERS = (Context.N_REQUESTS, Context.N_SECTORS, Context.N_TRACED, Context.N_UNTRACED)
