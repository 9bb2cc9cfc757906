"""Check backwards that take what their forward kept: grammar, findings, and the chain of both."""

from __future__ import annotations

import pytest

from kernel_lsp.core.plan import BoundOperation, LaunchPlan
from kernel_lsp.plan.binding import bind
from kernel_lsp.plan.checking import check
from kernel_lsp.plan.parser import parse, parse_or_raise
from kernel_lsp.plan.renaming import chained_backward, given_by_forward, without_kept
from kernel_lsp.source.cuda import kernel_signatures

KERNELS = """
__global__ void rows(const float* x, float* out, float* peak, float* partial, int D) {}
__global__ void gradients(const float* grad, const float* out, const float* peak, float* partial, float* grad_x) {}
"""
FORWARD = """op: f(x: f32[B, D], weight: f32[D]) -> (out: f32[B, D])
where: D % 4 == 0
keeps: peak: f32[B]
scratch: partial: f32[B, 2]
launch: rows<<<B, 256>>>(x, out, peak, partial, D)"""
BACKWARD = """op: f_backward(grad_out: f32[B, D], out: f32[B, D], peak: f32[B]) -> (grad_x: f32[B, D])
where: D <= 64
scratch: partial: f32[D]
fill: partial = 0
launch: gradients<<<B, 256>>>(grad_out, out, peak, partial, grad_x)"""
SHAPES = {"grad_out": (3, 8), "x": (3, 8), "weight": (8,)}


def text_of(forward: str = FORWARD, backward: str = BACKWARD) -> str:
    return "// kernel-lsp: 1\n" + "".join(f"// {line}\n" for line in f"{forward}\n{backward}".split("\n")) + KERNELS


def plan_of(forward: str = FORWARD, backward: str = BACKWARD) -> LaunchPlan:
    return parse_or_raise(text_of(forward, backward), "f.cu")


def codes(forward: str = FORWARD, backward: str = BACKWARD) -> list[str]:
    text = text_of(forward, backward)
    return [finding.code for finding in check(plan_of(forward, backward), kernel_signatures(text))]


def bound_chain() -> BoundOperation:
    chained = chained_backward(plan_of())
    assert chained is not None
    return bind(chained, SHAPES, {}, kernel_signatures(text_of()))


def names(bound: BoundOperation, role: str) -> set[str]:
    return {tensor.name for tensor in bound.tensors if tensor.role == role}


def test_a_forward_declares_what_it_keeps() -> None:
    assert [tensor.name for tensor in plan_of().forward.kept] == ["peak"]
    assert codes() == []


def test_what_is_kept_is_written() -> None:
    assert codes(FORWARD.replace("peak: f32[B]", "peak: f32[B], rest: f32[B]")) == ["result-not-written"]


def test_a_backward_declares_what_is_kept_as_its_forward_does() -> None:
    assert codes(backward=BACKWARD.replace("peak: f32[B]", "peak: f32[D]")) == ["backward-parameter"]
    assert "backward-parameter" in codes(backward=BACKWARD.replace("out: f32[B, D], peak", "out: bf16[B, D], peak"))


def test_a_backward_only_reads_what_was_kept() -> None:
    backward = BACKWARD.replace("fill: partial = 0", "fill: peak = 0")
    assert codes(backward=backward) == ["input-written"]


def test_names_mean_the_same_in_both_operations() -> None:
    swapped = BACKWARD.replace("out: f32[B, D], peak", "out: f32[B, D], x: f32[D, B], peak")
    assert codes(backward=swapped) == ["backward-parameter"]


def test_the_directive_needs_a_tensor() -> None:
    result = parse(text_of(FORWARD.replace("peak: f32[B]", "")))
    assert [finding.code for finding in result.findings] == ["syntax"]


def test_a_backward_is_chained_only_behind_a_forward_that_it_takes_from() -> None:
    alone = plan_of(backward="op: f_backward(grad_out: f32[B, D]) -> (grad_x: f32[B, D])\nfill: grad_x = 0")
    assert chained_backward(alone) is alone.backward
    assert given_by_forward(alone) == ()
    assert [tensor.name for tensor in given_by_forward(plan_of())] == ["out", "peak"]


def test_a_chain_takes_what_both_take_and_renames_what_clashes() -> None:
    chained = chained_backward(plan_of())
    assert chained is not None
    assert [parameter.name for parameter in chained.parameters] == ["grad_out", "x", "weight"]
    assert [tensor.name for tensor in chained.scratch] == ["out", "peak", "forward_partial", "partial"]
    assert [str(condition.expression) for condition in chained.where] == ["D % 4 == 0", "D <= 64"]
    assert chained.n_before == 1


def test_the_timed_part_begins_with_what_was_kept() -> None:
    bound = bound_chain()
    assert [step.kind for step in bound.steps] == ["launch", "fill", "launch"]
    assert names(bound, "scratch") == {"out", "peak", "forward_partial", "partial"}
    before, timed = bound.before, bound.timed
    assert len(before.steps) == 1
    assert names(before, "input") == {"x"}
    assert names(before, "output") == {"out", "peak"}
    assert len(timed.steps) == 2
    assert names(timed, "input") == {"grad_out", "out", "peak"}
    assert names(timed, "output") == {"grad_x"}
    assert names(timed, "scratch") == {"partial"}


def test_an_operation_without_steps_before_is_timed_whole() -> None:
    plan = plan_of()
    bound = bind(plan.forward, {"x": (3, 8), "weight": (8,)}, {}, kernel_signatures(text_of()))
    assert bound.timed is bound
    assert names(bound, "scratch") == {"peak", "partial"}


@pytest.mark.parametrize("word", ["keeps", "Keeps"])
def test_prose_does_not_become_a_directive(word: str) -> None:
    result = parse(f"// kernel-lsp: 1\n// op: f(x: f32[B]) -> (out: f32[B])\n// {word} the rows in registers.\n")
    assert result.findings == ()


def test_a_plan_without_kept_tensors_computes_them_again() -> None:
    plan = without_kept(plan_of())
    assert plan.forward.kept == ()
    assert given_by_forward(plan) == ()
    assert plan.backward is not None
    assert [parameter.name for parameter in plan.backward.parameters] == ["grad_out", "x", "weight"]
    assert check(plan, kernel_signatures(text_of())) == ()
    assert without_kept(plan) is plan
