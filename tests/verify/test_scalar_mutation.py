"""Scalars that a plan takes are mutated: which values stand in for a number, and each mutation is captured once."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.task import ScalarInput, TargetSource, Task
from kernel_lsp.core.verdict import CheckOutcome, Mismatch
from kernel_lsp.verify.model.resolved_kernel import Prepared
from kernel_lsp.verify.session.check_kernel import find_task
from kernel_lsp.verify.session.scalar_mutation import (
    DYADIC,
    FRACTIONS,
    NEGATIVE,
    VAST,
    ZERO,
    Change,
    MutatedTask,
    ScalarMutation,
    Value,
    changed,
    changed_numbers,
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


ALL = (*DYADIC, *FRACTIONS, *NEGATIVE, *VAST, *ZERO)


def source_of(*given: ScalarInput) -> TargetSource:
    return TargetSource(
        target="task.py::f",
        file="task.py",
        symbol="f",
        kind="function",
        line=1,
        parameters=(),
        inputs=given,
        has_get_inputs=False,
        example_pragma="",
    )


def other(
    change: Change, *values: Value, is_taken: Callable[[str, Value], bool] = lambda *_: True
) -> list[float | int | bool]:
    """Return a task of numbers n0, n1, ..., and of one more that the plan does not take."""
    given = [ScalarInput(name=f"n{i}", value=value) for i, value in enumerate(values)]
    left = ScalarInput(name="left", value=0.5)
    after = changed(source_of(*given, left), [number.name for number in given], change, is_taken).inputs or ()
    assert after[-1] == left
    found = [number.value for number in after[:-1] if isinstance(number, ScalarInput)]
    assert [type(value) for value in found] == [type(value) for value in values]
    return found


@pytest.mark.parametrize(("value", "expected"), [(0.5, 0.15), (-0.5, -0.15), (0.0, 0.3), (2.0, 0.3), (-1e9, -0.3)])
def test_a_fraction_is_below_one_and_of_the_same_sign(value: float, expected: float) -> None:
    assert other(FRACTIONS[0], value) == [pytest.approx(expected)]


def test_a_fraction_is_none_that_narrow_types_hold() -> None:
    [found] = other(FRACTIONS[0], 3.0)
    assert isinstance(found, float)
    n_halves = found * 2.0**20
    assert not n_halves.is_integer()


@pytest.mark.parametrize(("value", "expected"), [(0.5, -0.15), (-0.5, 0.15), (0.0, -1.3), (20.0, -1.3)])
def test_the_other_sign_is_of_no_large_numbers(value: float, expected: float) -> None:
    assert other(NEGATIVE[0], value) == [pytest.approx(expected)]


def test_large_numbers_are_far_beyond_one_and_keep_their_sign() -> None:
    first, second = other(VAST[0], 0.5, -3.0)
    assert first > 10_000
    assert second < -10_000


@pytest.mark.parametrize("change", [*FRACTIONS, *NEGATIVE, *VAST])
@pytest.mark.parametrize("values", [(1.0, 1.0), (-1.0, 1.0), (0.0, 0.0, 0.0), (0.5, 1.0, 0.5, -0.5)])
def test_floats_that_are_equal_or_opposite_become_neither(change: Change, values: tuple[float, ...]) -> None:
    found = [abs(value) for value in other(change, *values)]
    assert len(set(found)) == len(values)


@pytest.mark.parametrize("change", [FRACTIONS[0], NEGATIVE[0], VAST[0]])
@pytest.mark.parametrize("values", [(8, 8), (0, 0), (-3, 3), (4, 20), (2, 1, 2)])
def test_whole_numbers_that_are_equal_or_opposite_become_neither(change: Change, values: tuple[int, ...]) -> None:
    found = [abs(value) for value in other(change, *values)]
    assert len(set(found)) == len(values)


def test_whole_numbers_are_one_more_or_far_away_or_change_their_sign() -> None:
    assert other(FRACTIONS[0], 3, 7) == [4, 8]
    assert other(VAST[0], 3) == [1004]
    assert other(NEGATIVE[0], 0, 3, -1) == [-1, -4, 0]
    assert other(ZERO[0], 8, 8, 0) == [1, 2, 0]


def test_limits_change_places_or_stay_in_order() -> None:
    reverse, in_order = other(NEGATIVE[0], -0.5, 0.75), other(NEGATIVE[1], -0.5, 0.75)
    assert reverse[0] > reverse[1]
    assert in_order == reverse[::-1]


def test_two_truth_values_change_together_and_then_apart() -> None:
    assert other(NEGATIVE[0], True, False, True) == [False, True, False]
    assert other(ZERO[0], True, False, True) == [True, True, True]
    assert other(FRACTIONS[0], True, False) == [True, False]


@pytest.mark.parametrize("change", ALL)
def test_a_guard_against_division_by_zero_stays_small_and_is_not_zero(change: Change) -> None:
    [found] = other(change, 1e-6)
    assert 0.0 < abs(found) < 2.0
    assert found > -1e-6


def test_a_guard_becomes_far_smaller_and_small_inputs_show_it() -> None:
    [found] = other(FRACTIONS[0], 1e-5)
    assert isinstance(found, float)
    assert 1e-9 < found < 1e-8
    assert FRACTIONS[0].guard_families == ("tiny",)


def test_a_step_becomes_a_power_of_two_nearby() -> None:
    for value in (0.05, 3.0, -0.7, 255.0):
        [found] = other(DYADIC[0], value)
        mantissa, _ = math.frexp(abs(found))
        assert mantissa == 0.5
        assert value / 128 < found < value or value < found < value / 128
    assert other(DYADIC[0], 0.0, 3, True) == [0.0, 3, True]
    assert DYADIC[0].families == ("halves",)


def test_an_ordinary_number_becomes_zero() -> None:
    assert other(ZERO[0], 2.0, 0.5, 1e-6)[:2] == [0.0, 0.0]


def test_a_probability_stays_one_where_others_go_far() -> None:
    beyond, share = other(NEGATIVE[2], 2.0, 0.5)
    assert beyond < 0.0
    assert 0.4 < share < 0.5


@pytest.mark.parametrize("change", ALL)
def test_an_infinity_stays(change: Change) -> None:
    assert other(change, math.inf) == [math.inf]


def test_what_is_not_taken_stays_nearby_or_what_it_is() -> None:
    assert other(NEGATIVE[0], 2.0, 2.0, is_taken=lambda name, value: name == "n1" or value > 1.0)[0] == pytest.approx(
        1.94
    )
    assert other(NEGATIVE[0], 2.0, 5, True, is_taken=lambda *_: False) == [2.0, 5, True]


def test_what_changed_is_told_before_and_after() -> None:
    before = ScalarInput(name="a", value=0.5)
    source = source_of(before, ScalarInput(name="b", value=True))
    after = changed(source, ["a", "b"], FRACTIONS[0], lambda *_: True)
    assert changed_numbers(source, after) == [(before, ScalarInput(name="a", value=0.15))]
