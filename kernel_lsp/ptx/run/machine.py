"""Run the steps of a plan on the CPU: map tensors and variables, perform the fills, and run the launches."""

from __future__ import annotations

import struct
from typing import Any

from kernel_lsp.ptx.checks.findings import FindingLog
from kernel_lsp.ptx.compile.jit import Compiler, LoadedModule
from kernel_lsp.ptx.races.layout import LaunchRaces
from kernel_lsp.ptx.run.buffers import AddressTable, Buffer, Region, open_buffers
from kernel_lsp.ptx.run.launch import LaunchRun
from kernel_lsp.ptx.run.launch_counters import Tallies
from kernel_lsp.ptx.run.launch_findings import LaunchFindings
from kernel_lsp.ptx.run.launch_setup import invalid_launch, launch_setup
from kernel_lsp.ptx.run.layout import EntryFlag, window_base
from kernel_lsp.ptx.run.run_request import LaunchResult, RunRequest, RunResult
from kernel_lsp.ptx.text.syntax import UnsupportedPtxError


def run_steps(compiler: Compiler, loaded: LoadedModule, file_name: str, request: RunRequest) -> RunResult:
    """Run every step in order. Raises OSError for buffers that cannot be mapped, InvalidRequestError, and
    UnsupportedPtxError for a library step."""
    keep_written = request.sample is not None or request.keeps_written
    with open_buffers(list(request.buffers), len(loaded.windows), keep_written=keep_written) as buffers:
        run = _Run(compiler, loaded, file_name, request, buffers)
        try:
            return run.all_steps()
        finally:
            run.close()


class _Run:
    """Hold the memory of one run: module variables, tensors, and their address table."""

    def __init__(
        self,
        compiler: Compiler,
        loaded: LoadedModule,
        file_name: str,
        request: RunRequest,
        buffers: dict[str, Buffer],
    ) -> None:
        self.compiler, self.loaded, self.request, self.buffers = compiler, loaded, request, buffers
        self.log = FindingLog(loaded.module, file_name, request.max_findings)
        self.table = AddressTable()
        self.regions: list[Region] = []
        self.variables: dict[int, tuple[str, int]] = {}
        self.has_sampled = False
        self.budget = request.max_instructions
        self._place_variables()

    def all_steps(self) -> RunResult:
        result = RunResult()
        for step in self.request.steps:
            if step["kind"] == "fill":
                self.buffers[step["tensor"]].fill(step["value"])
            elif step["kind"] == "launch":
                result.launches.append(self._launch(step))
                if result.launches[-1].is_out_of_budget:
                    n_allowed = self.request.max_instructions
                    result.timed_out = f"{step['kernel']} did not end within {n_allowed} instructions"
                    break
            else:
                raise UnsupportedPtxError(f"a step of kind '{step['kind']}'")
        result.findings = self.log.as_json()
        return result

    def close(self) -> None:
        for region in self.regions:
            region.close()
        self.table.close()

    def _launch(self, step: dict[str, Any]) -> LaunchResult:
        setup = launch_setup(self.loaded, step)
        findings = LaunchFindings(self.log, setup)
        problem = invalid_launch(setup)
        if problem:
            findings.note_invalid(problem)
        if problem or setup.n_blocks == 0 or setup.n_threads == 0:
            return LaunchResult(Tallies(setup.emitted).counters(setup, 0, findings.user_line), 0)
        is_watched = self.request.watches_races
        races = LaunchRaces(setup.emitted, setup.n_blocks, setup.n_threads) if is_watched else None
        self._show_buffers(races)
        launch = LaunchRun(
            self.compiler,
            setup,
            self.request,
            self.log,
            self.table,
            self.buffers,
            self.variables,
            races,
            budget=self.budget,
            was_sampled=self.has_sampled,
        )
        try:
            return launch.run()
        finally:
            self.budget, self.has_sampled = launch.budget, launch.was_sampled
            launch.close()
            if races is not None:
                races.close()

    def _show_buffers(self, races: LaunchRaces | None) -> None:
        """Update the address table: initialised bytes, and race records of memory that kernels may write."""
        for buffer in self.buffers.values():
            is_watched = races is not None and not buffer.is_read_only
            records = buffer.clean_records(races.record_bytes(buffer.n_bytes)) if races and is_watched else 0
            self.table.set_buffer(buffer, is_initialised=buffer.look_whether_initialised(), records=records)

    def _place_variables(self) -> None:
        """Initialise the module variables, as at the start of each run."""
        for variable in self.loaded.module.variables:
            if variable.name not in self.loaded.windows:
                continue
            window = self.loaded.windows[variable.name]
            data, shadow = self._new_region(variable.n_bytes), self._new_region(variable.n_bytes)
            data.memory[: len(variable.initial)] = variable.initial
            for offset, symbol in variable.references:
                address = window_base(self.loaded.windows[symbol.name]) + symbol.offset
                data.memory[offset : offset + 8] = struct.pack("<Q", address)
            flags = 0 if self.request.may_write_variables else int(EntryFlag.READ_ONLY)
            self.table.set(window, window_base(window), data.address, shadow.address, variable.n_bytes, flags)
            self.variables[window] = (variable.name, variable.n_bytes)

    def _new_region(self, n_bytes: int) -> Region:
        self.regions.append(Region(n_bytes))
        return self.regions[-1]
