"""The process of one foreign kernel. It is confined, timed by our clock too, and never shared with a reference, a
baseline or a judge."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.verdict import BuildFailed, Rejected, TimedOut
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.process.confinement import SandboxLevel
from kernel_lsp.process.interpreter import site_packages
from kernel_lsp.process.profiles import foreign_confinement
from kernel_lsp.process.supervisor import Answered, Conversation, scrubbed_environment
from kernel_lsp.process.worker_client import WORKER_PROGRAM
from kernel_lsp.toolchain.extension.build import ExtensionBuilder
from kernel_lsp.toolchain.extension.facts import ExtensionBuilt, ExtensionFacts, KeptFacts
from kernel_lsp.toolchain.extension.tools import ExtensionTools, find_extension_tools, symbol_findings
from kernel_lsp.toolchain.integrity.refused_text import extension_findings
from kernel_lsp.verify.gpu.slot import Lost, lost_by
from kernel_lsp.verify.model.cases import Progress
from kernel_lsp.verify.session.session import Session

POOLS_DEADLINE_S = 120.0
"""Seconds to import torch and to start its thread pools."""
SETTLING_S = (0.05, 0.2, 0.5)
"""Waits before another count of threads, in seconds. Threads that end soon after a call do not count as kept."""
LOOK_DEADLINE_S = 120.0
DRIVER_THREADS = ("cuda", "pt_autograd")
"""Name prefixes of threads that CUDA, and autograd for one device, start at first use. Keep equal to
`worker.foreign.run`."""
BURST_S = 0.04
"""Seconds of calls in one burst for the outside clock, long against the request itself."""
MAX_BURST_CALLS = 4000
BURST_DEADLINE_S = 60.0
CLOCK_FACTOR, CLOCK_MARGIN_US = 1.5, 10.0
"""Excess of the outside clock over the process's own times that is tolerated: other programs use the machine, too."""
N_CLOCK_ATTEMPTS = 4
"""Bursts before a disagreement counts. Other programs slow some bursts; hidden work slows every one."""
FACTS_DEADLINE_S = 60.0

BuildFailure = BuildFailed | TimedOut


class ForeignProcess:
    """The process of one foreign kernel. Use as ``async with``. The candidate may read `readable` beyond the system and
    its interpreter, and writes to `scratch` alone."""

    def __init__(
        self,
        python: Path,
        *,
        level: SandboxLevel,
        scratch: Path,
        readable: tuple[Path, ...],
        may_start_programs: bool = False,
    ) -> None:
        """`may_start_programs` is for Triton, which compiles as it runs."""
        confinement = foreign_confinement(
            level,
            python,
            readable=(WORKER_PROGRAM.parent, *readable),
            scratch=scratch,
            may_start_programs=may_start_programs,
        )
        self.scratch = scratch
        self._level = level
        self._n_threads_at_start = 0, 0
        self._conversation = Conversation(
            [python, WORKER_PROGRAM], environment=scrubbed_environment(), confinement=confinement, how="run"
        )

    async def __aenter__(self) -> ForeignProcess:
        await self._conversation.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._conversation.close()

    async def start_pools(self, device: str | int) -> None:
        """Start PyTorch's own threads and count them, before the kernel is loaded."""
        started = await self.ask("start_pools", {"device": device}, deadline_s=POOLS_DEADLINE_S)
        if isinstance(started, dict) and isinstance(started.get("n_threads"), int):
            self._n_threads_at_start = started["n_threads"], self._n_threads_seen()

    async def n_kept_threads(self) -> int:
        """Count the threads beyond PyTorch's own that stay, by the process's own count and by the system's."""
        n_kept = await self._n_more_threads()
        for wait_s in SETTLING_S:
            if n_kept <= 0:
                return 0
            await asyncio.sleep(wait_s)
            n_kept = await self._n_more_threads()
        return n_kept

    async def _n_more_threads(self) -> int:
        looked = await self.ask("look_again", {}, deadline_s=LOOK_DEADLINE_S)
        if isinstance(looked, Lost) or not isinstance(looked.get("n_threads"), int):
            return 0  # the next request reports the loss
        said, seen = self._n_threads_at_start
        return max(looked["n_threads"] - said, self._n_threads_seen() - seen)

    def _n_threads_seen(self) -> int:
        """Count the threads from outside, except the driver's for a GPU. Returns 0 under bubblewrap, whose process
        stands in front."""
        if self._level is SandboxLevel.BWRAP:
            return 0
        names = []
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{self._conversation.pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    names.append((task / "comm").read_text(errors="replace"))
        return sum(not name.startswith(DRIVER_THREADS) for name in names)

    async def ask(self, command: str, arguments: Mapping[str, Any], *, deadline_s: float) -> dict[str, Any] | Lost:
        """Send one request. A process that ends or times out gives `Lost`, and no further answer of it is trusted."""
        try:
            answer = await self._conversation.ask({"command": command, **arguments}, deadline_s=deadline_s)
        except ValueError:
            return Lost("its answer is not JSON")
        if isinstance(answer, Answered):
            error = answer.reply.get("error")
            return Lost(str(error.get("message", error))) if isinstance(error, Mapping) else answer.reply
        return lost_by(answer, command, deadline_s)


class ForeignAsker:
    """Answers a timer in place of a native candidate's worker. `inputs` are the files of the timed case that the
    process may read, in place of those that the timer names."""

    def __init__(self, process: ForeignProcess, direction: str, inputs: Sequence[Mapping[str, Any]]) -> None:
        self._process, self._direction, self._inputs = process, direction, list(inputs)
        self.subjects: list[str] = []
        self._operator_us: dict[str, list[float]] = {}

    async def ask(self, command: str, arguments: Mapping[str, Any], *, deadline_s: float) -> dict[str, Any] | Lost:
        """Send one request, as `timing.rounds.Asker` does."""
        if command == "prepare_candidate":
            self.subjects.append(str(arguments["subject"]))
            own = {"direction": self._direction, "inputs": self._inputs}
            return await self._process.ask("prepare_foreign", {**arguments, **own}, deadline_s=deadline_s)
        if command == "end_timing":
            problem = await self._disagreement(str(arguments["subject"]))
            if problem:
                return Lost(problem)
        answer = await self._process.ask(command, arguments, deadline_s=deadline_s)
        if command == "time_block" and isinstance(answer, dict):
            said = self._operator_us.setdefault(str(arguments["subject"]), [])
            said += [float(time_us) for time_us in answer.get("operator_us", ())]
        return answer

    async def _disagreement(self, subject: str) -> str:
        """Compare our clock with the times that the process reported; empty when they agree."""
        said = self._operator_us.get(subject)
        if not said:
            return ""
        said_us = median(said)
        least_us = math.inf
        for _ in range(N_CLOCK_ATTEMPTS):
            seen_us = await self._seen_us(subject, said_us)
            if isinstance(seen_us, Lost):
                return "it did not finish calls that were timed from outside"
            least_us = min(least_us, seen_us)
            if least_us <= CLOCK_FACTOR * said_us + CLOCK_MARGIN_US:
                return ""
        text = f"its process says {said_us:.3g} us per call, and a clock outside of it says {least_us:.3g} us"
        load, n_cores = os.getloadavg()[0], os.cpu_count() or 1
        return text if load <= n_cores else f"{text} (load {load:.0f} on {n_cores} cores: check again when it is lower)"

    async def _seen_us(self, subject: str, said_us: float) -> float | Lost:
        """Return the time of one call, from a burst: the request itself is short against it."""
        n_calls = max(4, min(MAX_BURST_CALLS, int(BURST_S * 1e6 / max(said_us, 1.0))))
        started = time.monotonic()
        request = {"subject": subject, "n_calls": n_calls}
        answer = await self._process.ask("burst", request, deadline_s=BURST_DEADLINE_S)
        return answer if isinstance(answer, Lost) else (time.monotonic() - started) / n_calls * 1e6


class ForeignBuilds:
    """Builds of one foreign kernel. The search for tools starts at once; `close` cancels what nothing awaited."""

    def __init__(self, session: Session, stack: AsyncExitStack) -> None:
        """Call from within a running event loop. Builders end with the stack."""
        self._session, self._stack = session, stack
        self._looking = asyncio.ensure_future(asyncio.gather(self._facts(), find_extension_tools()))
        self._building: list[asyncio.Task[ExtensionBuilt | BuildFailure]] = []
        self._builders: dict[str, ExtensionBuilder] = {}

    def begin(self, text: str, suffix: str, architecture: str) -> asyncio.Task[ExtensionBuilt | BuildFailure]:
        """Build one text. Raises EnvironmentProblem when awaited, without a compiler."""
        self._building.append(asyncio.create_task(self._build(text, suffix, architecture)))
        return self._building[-1]

    async def close(self) -> None:
        """Cancel the builds that are still under way."""
        await end_tasks(self._looking, *self._building)

    async def _facts(self) -> ExtensionFacts:
        """Return the interpreter's facts, from the cache where known. The worker answers only after importing torch,
        which takes longer than most of a build."""
        python = self._session.worker.python
        kept = KeptFacts(self._session.settings.cache_directory, python, site_packages(python))
        known = kept.find()
        if known is not None:
            return known
        facts = ExtensionFacts(**await self._session.worker.ask("extension_facts", {}, deadline_s=FACTS_DEADLINE_S))
        kept.keep(facts)
        return facts

    async def _build(self, text: str, suffix: str, architecture: str) -> ExtensionBuilt | BuildFailure:
        if findings := extension_findings(text, f"kernel{suffix}"):
            return BuildFailed(findings=findings)
        facts, tools = await asyncio.shield(self._looking)
        if architecture not in self._builders:
            builder = self._builder(facts, tools, architecture)
            self._builders[architecture] = builder
            await self._stack.enter_async_context(builder)
        return await self._builders[architecture].build(text, f"kernel{suffix}")

    def _builder(self, facts: ExtensionFacts, tools: ExtensionTools, architecture: str) -> ExtensionBuilder:
        return ExtensionBuilder(
            facts,
            tools,
            self._session.settings.cache_directory,
            python=self._session.worker.python,
            architecture=architecture,
            level=self._session.sandbox,
        )


def accepted_build(
    built: ExtensionBuilt | BuildFailure, progress: Progress
) -> ExtensionBuilt | BuildFailure | Rejected:
    """Return a build that may be loaded, or the reason why not. Its findings and notes are kept."""
    if not isinstance(built, ExtensionBuilt):
        return built
    findings = symbol_findings(built.undefined_symbols)
    progress.add_findings(finding for finding in findings if finding.severity is not Severity.ERROR)
    progress.notes += built.notes
    for stage, elapsed_s in built.stages_s.items():
        progress.notes.append(f"build: {stage} {elapsed_s:.2f} s ({built.how}, header {built.header})")
    return refused(findings) or built


def refused(findings: Sequence[Finding]) -> Rejected | None:
    """Return a rejection for the first error among the findings; None without one."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    return Rejected(message=errors[0].message, findings=tuple(errors)) if errors else None
