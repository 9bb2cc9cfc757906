"""Entry point of the executor process: JSON lines in, JSON lines out, one answer per request.

``{"command": "load", "ptx": ..., "file_name": ...}`` compiles; ``{"command": "run", ...}`` runs the module loaded last.
``{"command": "inspect", "ptx": ..., "file_name": ...}`` only looks for endless loops, and leaves that module as it is.
`docs/ptx-executor.md` describes both. The real stdout is set aside, because nothing else may write to it.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from kernel_lsp.process.gc_pause import paused_collection
from kernel_lsp.ptx.analysis.endless import EndlessLoop, endless_loops
from kernel_lsp.ptx.checks.findings import FindingLog, Place
from kernel_lsp.ptx.compile.clusters import is_mapped_access, mapped_registers
from kernel_lsp.ptx.compile.jit import CompiledKernel, Compiler, LoadedModule
from kernel_lsp.ptx.races.sites import is_bulk_copy
from kernel_lsp.ptx.run.buffers import BufferRequest
from kernel_lsp.ptx.run.layout import SHARED_POISON, SHARED_START
from kernel_lsp.ptx.run.machine import run_steps
from kernel_lsp.ptx.run.run_request import InvalidRequestError, RunRequest
from kernel_lsp.ptx.text.parser import parse
from kernel_lsp.ptx.text.syntax import Instruction, Module, UnsupportedPtxError

MAX_ENDLESS_LOOPS = 20
"""Maximum endless loops reported per load, equal to the findings per run."""
MAX_KEPT_MODULES = 4
"""Maximum modules of a process that stay compiled: a candidate's own and its other builds, which cases alternate
between. Compiling takes most of a small case's time."""
OUT_OF_SPACE = (errno.ENOMEM, errno.ENOSPC, errno.EFBIG)


def main() -> None:
    """Answer requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # a parent that ignores or blocks it would lift the limit
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    session = Session()
    for line in sys.stdin:
        if line.strip():
            request, started_s = json.loads(line), time.process_time()
            # SIGPROF ends the process, also in compiled code. Zero sets no limit.
            signal.setitimer(signal.ITIMER_PROF, request.get("cpu_s", 0.0))
            answer = session.handle(request)
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            _answer(answers, {**answer, "cpu_s": time.process_time() - started_s})


class Session:
    """Hold the compiler and the modules loaded last. Sessions of one process share one compiler."""

    def __init__(self, compiler: Compiler | None = None) -> None:
        self.compiler = compiler or Compiler()
        self._loaded: LoadedModule | None = None
        self._kept: dict[tuple[str, bool], LoadedModule] = {}
        self._file_name = ""

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one request. Invalid requests are answered with ``error``."""
        try:
            if request["command"] == "load":
                return self._load(request)
            if request["command"] == "inspect":
                return self._inspect(request)
            return self._run(request)
        except UnsupportedPtxError as error:
            return {"unsupported": self._unsupported(error)}
        except MemoryError:
            return {"unsupported": _too_large("it does not say how much")}
        except OSError as error:
            if error.errno in OUT_OF_SPACE:
                return {"unsupported": _too_large(error.strerror or "")}
            return {"error": f"{type(error).__name__}: {error}"}
        except (InvalidRequestError, KeyError, ValueError, TypeError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _load(self, request: dict[str, Any]) -> dict[str, Any]:
        self._loaded, self._file_name = None, request["file_name"]
        try:
            self._loaded = self._compiled(request["ptx"], is_quick=request.get("is_quick", False))
        except UnsupportedPtxError as error:
            # The PTX may be readable even where it is not supported.
            if error.module is None or not (endless := tuple(endless_loops(error.module))):
                raise
            return {"endless": self._endless(endless, error.module, self._file_name)}
        if self._loaded.endless:
            return {"endless": self._endless(self._loaded.endless, self._loaded.module, self._file_name)}
        return {"ok": True, "kernels": [_kernel_facts(kernel) for kernel in self._loaded.kernels.values()]}

    def _inspect(self, request: dict[str, Any]) -> dict[str, Any]:
        """Look for endless loops in a PTX text, without a translation: a network's takes more than half of a load."""
        with paused_collection():
            module = parse(request["ptx"])
            endless = tuple(endless_loops(module))
        return {"endless": self._endless(endless, module, request["file_name"])} if endless else {"ok": True}

    def _compiled(self, ptx: str, *, is_quick: bool) -> LoadedModule:
        """Compile a PTX text, unless it was among the last ones."""
        key = (ptx, is_quick)
        with paused_collection():
            module = self._kept.pop(key, None) or self.compiler.load(ptx, is_quick=is_quick)
        self._kept[key] = module
        if len(self._kept) > MAX_KEPT_MODULES:
            del self._kept[next(iter(self._kept))]
        return module

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._loaded is None:
            raise InvalidRequestError("no module is loaded")
        result = run_steps(self.compiler, self._loaded, self._file_name, _run_request(request))
        report = {
            "findings": result.findings,
            "counters": [launch.counters for launch in result.launches],
            "n_blocks_run": [launch.n_blocks_run for launch in result.launches],
        }
        return {"timed_out": result.timed_out, "report": report} if result.timed_out else {"report": report}

    def _endless(self, loops: Sequence[EndlessLoop], module: Module, file_name: str) -> list[dict[str, object]]:
        """Return the endless loops as findings, one per line."""
        log = FindingLog(module, file_name, MAX_ENDLESS_LOOPS)
        for loop in loops:
            log.add(loop.code, loop.message, loop.location, Place(loop.kernel, None, None))
        return log.as_json()

    def _unsupported(self, error: UnsupportedPtxError) -> dict[str, Any]:
        instruction = error.instruction
        return {
            "message": f"the executor does not know {error.reason}",
            "instruction": instruction.text if instruction else None,
            "line": _line_of(instruction, error.module, self._file_name),
        }


def _answer(stream: TextIO, answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


def _too_large(reason: str) -> dict[str, Any]:
    message = f"the run needs more memory than there is here ({reason}): stacks, variables and shared memory count too"
    return {"message": message, "instruction": None, "line": None}


def _kernel_facts(kernel: CompiledKernel) -> dict[str, Any]:
    mapped = mapped_registers(kernel.emitted.blocks)
    instructions = [instruction for block in kernel.emitted.blocks for instruction in block.instructions]
    return {
        "symbol": kernel.emitted.name,
        "n_instructions": len(instructions),
        "uses_global_atomics": any(
            instruction.opcode in ("atom", "red")
            and not instruction.has("shared", "shared__cta", "shared__cluster")
            and not is_mapped_access(instruction, mapped)
            for instruction in instructions
        ),
        "may_wait": kernel.emitted.can_spin,
        "static_shared_bytes": kernel.emitted.shared.n_static_bytes,
        "copies_in_bulk": any(is_bulk_copy(instruction) for instruction in instructions),
    }


def _line_of(instruction: Instruction | None, module: Module | None, file_name: str) -> int | None:
    if instruction is None or module is None:
        return None
    return FindingLog(module, file_name, 1).user_line(instruction.location)[0]


def _run_request(request: dict[str, Any]) -> RunRequest:
    sample = request.get("sample_blocks")
    return RunRequest(
        buffers=tuple(BufferRequest(**buffer) for buffer in request["buffers"]),
        steps=tuple(request["steps"]),
        sample=(sample["n"], sample["seed"]) if sample else None,
        blocks=tuple(sample.get("blocks", ())) if sample else (),
        thread_order=request.get("thread_order", "forward"),
        seed=request.get("seed", 0),
        n_traced_blocks=request.get("n_traced_blocks", 2),
        max_instructions=request.get("max_instructions", 10**10),
        max_thread_instructions=request.get("max_thread_instructions", 10**10),
        max_findings=request.get("max_findings", 20),
        may_write_variables=request.get("may_write_variables", True),
        watches_races=request.get("watches_races", False),
        shared_poison=request.get("shared_poison", SHARED_POISON),
        shared_start=request.get("shared_start", SHARED_START),
        resident_blocks=request.get("resident_blocks", {}),
        keeps_lanes_apart=request.get("keeps_lanes_apart", False),
        keeps_written=request.get("keeps_written", False),
        interruptions=request.get("interruptions", "none"),
    )


if __name__ == "__main__":
    main()
