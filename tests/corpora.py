"""Kernels in files with what should become of them, and the pipeline over many of them at once.

Files of one task share its capture, and tasks share a session, so that PyTorch is imported once.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.verdict import BuildFailed, Correct, Mismatch, Unsupported, Verdict
from kernel_lsp.plan.parser import parse
from kernel_lsp.verify.session.check_kernel import find_task
from kernel_lsp.verify.session.session import Session

Item = TypeVar("Item")

COMPILE_DEADLINE_S = 20.0
"""Compile timeout of attacks in seconds, short, because some compile for ever. Benign kernels have the default, as for
a user: CUB's headers take 5 s of a processor that others may share."""
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
    """The verdicts, one task's at a time and in no order, from `n_sessions` sessions at once. Each takes one task after
    another, attacks first, then those of many kernels: starting PyTorch takes longer than most verdicts."""
    groups = [list(group) for _, group in groupby(sorted(kernels, key=task_of), key=task_of)]
    waiting = deque(sorted(groups, key=lambda group: (_is_attack(group), len(group)), reverse=True))
    finished: asyncio.Queue[list[Outcome] | Exception] = asyncio.Queue()
    sessions = [asyncio.create_task(_evaluate_groups(waiting, finished, device)) for _ in range(n_sessions)]
    try:
        for _ in groups:
            found = await finished.get()
            if isinstance(found, Exception):
                raise found
            yield found
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


def task_of(kernel: Kernel) -> tuple[str, str, bool]:
    return (str(kernel.file.parent), kernel.task_line, kernel.has_backward)


def _is_attack(group: Sequence[Kernel]) -> bool:
    return bool(group[0].strategy)


async def _evaluate_groups(
    waiting: deque[list[Kernel]], finished: asyncio.Queue[list[Outcome] | Exception], device: str
) -> None:
    """Evaluate one waiting group after another, in a new session once a worker has died or the attacks are done."""
    try:
        while waiting:
            is_attack = _is_attack(waiting[0])
            deadline = {"compile_deadline_s": COMPILE_DEADLINE_S} if is_attack else {}
            async with Session(Settings(device=device, **deadline)) as session:
                await session.gpu_index()
                while waiting and _is_attack(waiting[0]) == is_attack and session.worker.is_alive:
                    finished.put_nowait(await _evaluate_group(waiting.popleft(), session))
    except Exception as problem:  # of any kind: whoever waits for the outcomes raises it
        finished.put_nowait(problem)


async def _evaluate_group(kernels: Sequence[Kernel], session: Session) -> list[Outcome]:
    if not kernels[0].task_line:
        return [Outcome(kernel, _unplanned(kernel)) for kernel in kernels]
    source = find_task(kernels[0].file, kernels[0].task_line, None, kernels[0].file.parent)
    task = await session.capture(source, with_backward=kernels[0].has_backward)
    candidates = [
        Candidate(text=kernel.text, origin=Origin(proposer="user", description=kernel.file.name)) for kernel in kernels
    ]
    async with await session.verifier(source, task) as verifier:
        verdicts = await asyncio.gather(
            *(verifier.verify(candidate, "full") for candidate in candidates), return_exceptions=True
        )
        await verifier.settle()
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
