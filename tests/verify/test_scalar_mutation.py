"""Scalars that a plan takes are mutated, and each mutation is captured once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.task import TargetSource, Task
from kernel_lsp.core.verdict import CheckOutcome, Mismatch
from kernel_lsp.verify.model.resolved_kernel import Prepared
from kernel_lsp.verify.session.check_kernel import find_task
from kernel_lsp.verify.session.scalar_mutation import (
    FRACTIONS,
    NEGATIVE,
    VAST,
    ZERO,
    Change,
    MutatedTask,
    ScalarMutation,
    far,
)
from kernel_lsp.verify.session.session import Session
from tests.verify.copies import TASK as COPY
from tests.verify.copies import prepared

pytestmark = pytest.mark.asyncio(loop_scope="module")
TASK = """import torch


# kernel-lsp: x=f32[8, 40], alpha=0.5, beta=0.0
def f(x: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    return x * alpha + beta


# kernel-lsp: x=f32[8, 40], p=0.5, shift=3, flag=True
def g(x: torch.Tensor, p: float, shift: int, flag: bool) -> torch.Tensor:
    if not 0.0 <= p < 1.0:
        raise ValueError("p is a probability")
    return torch.roll(x * (1.0 - p), shift, 1) if flag else x * (1.0 - p)


# kernel-lsp: x=f32[8, 40], scale=1.0
def h(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x + torch.sqrt(torch.ones_like(x) * scale)


# kernel-lsp: x=f32[8, 40]
class Shift(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by = 0.25

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.by
"""
ROOT = """// kernel-lsp: 1
// task: task.py::h
// op: h(x: f32[B, D], scale: float) -> (out: f32[B, D])
// launch: k<<<ceil_div(B * D, 128), 128>>>(x, out, scale, B * D)

__global__ void k(const float* x, float* out, float scale, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = x[i] + {root};
}
"""
KERNEL = """// kernel-lsp: 1
// task: task.py::f
// op: f(x: f32[B, D], alpha: float, beta: float) -> (out: f32[B, D])
// {contract}
// launch: k<<<ceil_div(B * D, 128), 128>>>(x, out, alpha, beta, B * D)

__global__ void k(const float* x, float* out, float alpha, float beta, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = x[i] * {scale} + {offset};
}
"""
WITH_FLAG = """// kernel-lsp: 1
// task: task.py::g
// op: g(x: f32[B, D], p: float, shift: int, flag: bool) -> (out: f32[B, D])
// launch: k<<<B, 128>>>(x, out, {p}, {shift}, {flag}, D)

__global__ void k(const float* x, float* out, float p, int shift, bool flag, int D) {
    for (int i = threadIdx.x; i < D; i += 128) {
        const int to = flag ? (i + shift) % D : i;
        out[blockIdx.x * D + to] = x[blockIdx.x * D + i] * (1.0f - p);
    }
}
"""


def with_flag(p: str = "p", shift: str = "shift % D", flag: str = "flag") -> Candidate:
    text = WITH_FLAG.replace("{p}", p).replace("{shift}", shift).replace("{flag}", flag)
    return Candidate(text=text, origin=Origin(proposer="user"))


def with_root(root: str) -> Candidate:
    return Candidate(text=ROOT.replace("{root}", root), origin=Origin(proposer="user"))


def with_shift(by: str) -> Candidate:
    text = ROOT.replace("::h", "::Shift").replace("h(x: f32[B, D], scale", "shift(x: f32[B, D], by")
    text = text.replace("x, out, scale", "x, out, by").replace("float scale", "float by").replace("{root}", by)
    return Candidate(text=text, origin=Origin(proposer="user"))


def kernel(scale: str = "alpha", offset: str = "beta", contract: str = "where: B > 0") -> Candidate:
    text = KERNEL.replace("{scale}", scale).replace("{offset}", offset).replace("{contract}", contract)
    return Candidate(text=text, origin=Origin(proposer="user"))


def counted_captures(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    captured, capture = [], session.worker.capture

    async def counted(source: TargetSource, **how: Any) -> Task:
        captured.append(source)
        return await capture(source, **how)

    monkeypatch.setattr(session.worker, "capture", counted)
    return captured


@pytest_asyncio.fixture(name="session", scope="module", loop_scope="module")
async def a_shared_session() -> AsyncIterator[Session]:
    """One session for all tasks: importing torch takes longer than any verdict."""
    async with Session(Settings(device="cpu")) as session:
        yield session


async def outcomes(session: Session, folder: Path, symbol: str, kernels: Sequence[Candidate]) -> list[CheckOutcome]:
    """Verify kernels of a symbol of `TASK`."""
    (folder / "task.py").write_text(TASK)
    source = find_task(folder / "k.cu", f"task.py::{symbol}", None, folder)
    verifier = await session.verifier(source, await session.capture(source, with_backward=False))
    return [(await verifier.verify(each, "full")).outcome for each in kernels]


async def test_a_number_that_is_not_read_is_found_and_one_that_is_passes(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that what the contract excludes is not captured, and the rest once for all candidates."""
    (tmp_path / "task.py").write_text(TASK)
    source = find_task(tmp_path / "k.cu", "task.py::f", None, tmp_path)
    task = await session.capture(source, with_backward=False)
    verifier = await session.verifier(source, task)
    captures = counted_captures(session, monkeypatch)
    contract = await verifier.verify(kernel(scale="0.5f", contract="where: alpha == 0.5"), "full")
    n_excluded = len(captures)
    kernels = [kernel(), kernel(scale="0.5f"), kernel(offset="0.0f")]
    found = [(await verifier.verify(each, "full")).outcome for each in kernels]
    screened = await verifier.verify(kernels[1], "screen")
    assert [outcome.kind for outcome in found] == ["correct", "mismatch", "mismatch"]
    assert isinstance(found[1], Mismatch)
    assert "alpha=0.15 instead of 0.5, beta=0.671 instead of 0" in found[1].message
    assert contract.is_correct
    assert screened.is_correct
    assert (n_excluded, len(captures)) == (3, 3 + 4)


async def test_whole_numbers_and_truth_values_are_changed_and_what_pytorch_refuses_is_no_case(
    session: Session, tmp_path: Path
) -> None:
    """p may not be below zero: it stays nearby then, while the rest changes."""
    found = await outcomes(session, tmp_path, "g", [with_flag(), with_flag(flag="1")])
    assert found[0].kind == "correct"
    assert isinstance(found[1], Mismatch)
    assert "with p=0.485 instead of 0.5, shift=-4 instead of 3, flag=False instead of True" in found[1].message


async def test_tasks_of_a_session_share_its_executors(session: Session, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    source = find_task(tmp_path / "k.cu", "task.py::f", None, tmp_path)
    task = await session.capture(source, with_backward=False)
    async with await session.verifier(source, task) as verifier:
        executors = verifier.runs.by.platform.cpu.executors
        async with executors.executor() as first:
            pass
    async with (
        await session.verifier(source, task) as verifier,
        verifier.runs.by.platform.cpu.executors.executor() as next_,
    ):
        assert next_ is first
        assert next_.is_alive


@pytest.mark.parametrize(
    ("next_ones", "asked"),
    [
        (frozenset({"n", "m"}), [FRACTIONS[0], NEGATIVE[0], VAST[0], ZERO[0]]),
        (frozenset({"n"}), [FRACTIONS[0], NEGATIVE[0], VAST[1], ZERO[0]]),
        (None, [*FRACTIONS, *NEGATIVE, *(change for change in VAST if change.integers is not far), *ZERO]),
    ],
    ids=["all", "one", "none"],
)
async def test_whole_numbers_go_far_away_only_where_the_next_ones_are_the_same_computation(
    next_ones: frozenset[str] | None, asked: list[Change], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count of repetitions would be a thousand times the work. Where nothing is taken every change is asked for."""
    nothing: Any = None
    mutation, seen = ScalarMutation(nothing, COPY, nothing), []

    async def other(change: Change, _: Prepared) -> object:
        seen.append(change)
        return None if next_ones is None else MutatedTask(COPY, next_ones, "", ())

    monkeypatch.setattr(mutation, "_mutated", other)
    monkeypatch.setattr(mutation, "_integers", lambda _: frozenset({"n", "m"}))
    text = prepared("launch: k<<<1, 32>>>(x, out, D)").text
    found = await mutation.mutated_tasks(Candidate(text=text, origin=Origin(proposer="user")))
    assert seen == asked
    assert len(found) == (0 if next_ones is None else 4)


async def test_the_numbers_of_a_module_are_changed(session: Session, tmp_path: Path) -> None:
    found = await outcomes(session, tmp_path, "Shift", [with_shift("by"), with_shift("0.25f")])
    assert [outcome.kind for outcome in found] == ["correct", "mismatch"]
    assert "by=0.075 instead of 0.25" in getattr(found[1], "message", "")


async def test_where_pytorch_has_no_number_nothing_is_asked(session: Session, tmp_path: Path) -> None:
    """The root of a negative number: a kernel may do there what it likes."""
    found = await outcomes(session, tmp_path, "h", [with_root("sqrtf(fmaxf(scale, 0.0f))"), with_root("1.0f")])
    assert [outcome.kind for outcome in found] == ["correct", "mismatch"]
