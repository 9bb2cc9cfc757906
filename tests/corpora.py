"""Kernels in files with what should become of them, and the pipeline over many of them at once.

Files of one task share a session, so that PyTorch is imported and the task captured once.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.verdict import BuildFailed, Correct, Mismatch, Unsupported, Verdict
from kernel_lsp.plan.parser import parse
from kernel_lsp.verify.session.check import find_task
from kernel_lsp.verify.session.session import Session

Item = TypeVar("Item")

COMPILE_DEADLINE_S = 20.0
"""Short, because some attacks are about compiling for ever."""
_HEADER = re.compile(r"^// (?P<key>Attack|Caught|Without|Defence|Needs): (?P<text>.*(?:\n//   .*)*)", re.MULTILINE)


@dataclass(frozen=True)
class Kernel:
    """A `.cu` file. `strategy` says what an attack does, `caught` lists the verdicts that are right about it, and
    `without` names the defences that keep it from success, and `defence` the one that its verdict names, where no test
    switches it off; all empty for a benign kernel. `needs` is the device, if any, without which nobody can tell: two
    threads lose each other's updates only where they run at once."""

    file: Path
    text: str
    strategy: str
    caught: tuple[str, ...]
    without: tuple[str, ...]
    needs: str = ""
    defence: str = ""

    @property
    def task_line(self) -> str:
        plan = parse(self.text).plan
        return plan.task or "" if plan is not None else ""

    @property
    def has_backward(self) -> bool:
        plan = parse(self.text).plan
        return plan is not None and plan.backward is not None


@dataclass(frozen=True)
class Outcome:
    """Outcome of a kernel. An evaluation that raises is a `problem`, and nobody's success."""

    kernel: Kernel
    verdict: Verdict
    problem: str = ""


def read_kernels(folder: Path) -> list[Kernel]:
    """The `.cu` files of a folder, by name."""
    return [_read(file) for file in sorted(folder.glob("*.cu"))]


def sample(items: Sequence[Item], key: Callable[[Item], object], every: int = 1) -> list[Item]:
    """The first of each kind, or of every second kind and so on; all with ``KERNEL_LSP_TEST_CORPORA=all``. `make
    attacks` runs every kernel, and `make examples` every example."""
    if os.environ.get("KERNEL_LSP_TEST_CORPORA") == "all":
        return list(items)
    return list({key(item): item for item in reversed(items)}.values())[::-1][every - 1 :: every]


def is_caught(outcome: Outcome) -> bool:
    """Not called correct; or, where nothing but a vendor's library computes, labelled as such."""
    return not outcome.problem and (not is_passed(outcome) or "labelled" in labels(outcome))


def is_passed(outcome: Outcome) -> bool:
    """Called correct."""
    return isinstance(outcome.verdict.outcome, Correct)


def is_right(outcome: Outcome) -> bool:
    """An attack is caught by a verdict that it lists, a benign kernel called correct."""
    if not outcome.kernel.strategy:
        return is_passed(outcome)
    return is_caught(outcome) and not set(labels(outcome)).isdisjoint(outcome.kernel.caught)


def what_failed(outcome: Outcome) -> str:
    """The case of a mismatch: operation, inputs and shapes. Of other failures the codes of what was found."""
    verdict = outcome.verdict.outcome
    if not isinstance(verdict, Mismatch):
        return " ".join(sorted({finding.code for finding in getattr(verdict, "findings", ())}))
    shapes = (f"{name}[{','.join(map(str, shape))}]" for name, shape in verdict.failed.shapes.items())
    return f"{verdict.failed.operation} {verdict.failed.family.replace(' ', '_')} {' '.join(shapes)}"


def labels(outcome: Outcome) -> tuple[str, ...]:
    """The words under which `Caught:` may list a verdict."""
    is_labelled = bool(outcome.verdict.library_steps) and "labelled" in outcome.kernel.caught
    return (outcome.verdict.outcome.kind, *(("labelled",) if is_labelled else ()))


async def evaluate_all(
    kernels: Sequence[Kernel], *, device: str = "cpu", n_sessions: int = 1
) -> AsyncIterator[list[Outcome]]:
    """The verdicts, one task's at a time and in no order, from `n_sessions` sessions at once."""
    settings = Settings(device=device, compile_deadline_s=COMPILE_DEADLINE_S)
    turns = asyncio.Semaphore(n_sessions)

    async def evaluated(group: list[Kernel]) -> list[Outcome]:
        async with turns:
            return await _evaluate_group(group, settings)

    groups = [list(group) for _, group in groupby(sorted(kernels, key=_task), key=_task)]
    sessions = [asyncio.create_task(evaluated(group)) for group in groups]
    try:
        for finished in asyncio.as_completed(sessions):
            yield await finished
    finally:  # where one cannot run, e.g. for want of a GPU, the others end with it
        for session in sessions:
            session.cancel()
        await asyncio.gather(*sessions, return_exceptions=True)


# --- below: files, then one task


def _read(file: Path) -> Kernel:
    text = file.read_text(encoding="utf-8")
    said = {match["key"]: " ".join(match["text"].replace("//", "").split()) for match in _HEADER.finditer(text)}
    return Kernel(
        file=file,
        text=text,
        strategy=said.get("Attack", ""),
        caught=tuple(said.get("Caught", "").split()),
        without=tuple(said.get("Without", "").split()),
        needs=said.get("Needs", ""),
        defence=said.get("Defence", ""),
    )


def _task(kernel: Kernel) -> tuple[str, str, bool]:
    return (str(kernel.file.parent), kernel.task_line, kernel.has_backward)


async def _evaluate_group(kernels: Sequence[Kernel], settings: Settings) -> list[Outcome]:
    if not kernels[0].task_line:
        return [Outcome(kernel, _unplanned(kernel)) for kernel in kernels]
    source = find_task(kernels[0].file, kernels[0].task_line, None, kernels[0].file.parent)
    async with Session(settings) as session:
        await session.gpu_index()
        task = await session.capture(source, with_backward=kernels[0].has_backward)
        verifier = await session.verifier(source, task)
        candidates = [
            Candidate(text=kernel.text, origin=Origin(proposer="user", description=kernel.file.name))
            for kernel in kernels
        ]
        verdicts = await asyncio.gather(
            *(verifier.verify(candidate, "full") for candidate in candidates), return_exceptions=True
        )
    return [
        Outcome(kernel, verdict)
        if isinstance(verdict, Verdict)
        else Outcome(kernel, _without_verdict(candidate), problem=f"{type(verdict).__name__}: {verdict}")
        for kernel, candidate, verdict in zip(kernels, candidates, verdicts, strict=True)
    ]


def _without_verdict(candidate: Candidate) -> Verdict:
    return Verdict(candidate_id=candidate.id, device="none", outcome=Unsupported(message="the evaluation raised"))


def _unplanned(kernel: Kernel) -> Verdict:
    """A file whose plan does not parse goes no further, as in `check_kernel`."""
    candidate = Candidate(text=kernel.text, origin=Origin(proposer="user", description=kernel.file.name))
    return Verdict(candidate_id=candidate.id, device="none", outcome=BuildFailed(findings=parse(kernel.text).findings))
