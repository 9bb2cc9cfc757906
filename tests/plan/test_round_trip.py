"""Printing and parsing are inverse, and any text gives a plan or a located finding in bounded time."""

from __future__ import annotations

import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Binary, Call, Constant, Expression, Name
from kernel_lsp.core.finding import Severity
from kernel_lsp.core.plan import (
    Condition,
    Fill,
    Launch,
    LaunchPlan,
    LibraryStep,
    Operation,
    ScalarParameter,
    TensorParameter,
)
from kernel_lsp.plan.checking import check
from kernel_lsp.plan.launch_line import ATTRIBUTES
from kernel_lsp.plan.parser import parse, parse_or_raise
from kernel_lsp.plan.printer import MAX_COLUMNS, print_plan
from kernel_lsp.source.cuda import kernel_signatures

ROW_SOFTMAX = (Path(__file__).parents[2] / "examples" / "row_softmax.cu").read_text()
MAX_PARSE_S = 20.0
"""Far above what any text of these tests takes (milliseconds): it catches only what explodes."""

DIMS = ("B", "D", "task", "launch")
TENSORS = ("x", "weight", "where", "op", "out", "a_rather_long_name_for_a_tensor_of_partial_sums")


def grow(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    operators = st.sampled_from(("+", "-", "*", "//", "%", "<", "==", "and", "or"))
    return st.builds(Binary, operators, inner, inner) | st.builds(Call, st.just("ceil_div"), st.tuples(inner, inner))


constants = st.one_of(st.integers(-4, 10**6), st.floats(allow_nan=False), st.booleans()).map(Constant)
numbers = st.recursive(st.sampled_from(DIMS).map(Name) | constants, grow, max_leaves=6)
sizes = st.tuples(numbers, numbers, numbers) | numbers.map(lambda x: (x, Constant(1), Constant(1)))
tensors = st.builds(
    TensorParameter,
    st.sampled_from(TENSORS),
    st.sampled_from(DType),
    st.lists(numbers, max_size=3).map(lambda dims: (*map(Name, DIMS), *dims)),
)
scalars = st.builds(ScalarParameter, st.sampled_from(("eps", "n")), st.sampled_from(("float", "int", "bool")))
library_arguments = st.recursive(
    st.none() | st.just("x") | numbers, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4
)
launches = st.builds(
    Launch,
    kernel=st.sampled_from(("rows", "ns::rows")),
    template_arguments=st.lists(numbers | st.sampled_from(("float", "__half", "ns::Relu")), max_size=3).map(tuple),
    grid=sizes,
    block=sizes,
    shared_bytes=st.just(Constant(0)) | numbers,
    arguments=st.lists(numbers | st.sampled_from(TENSORS).map(Name), max_size=8).map(tuple),
    condition=st.none() | numbers,
    attributes=st.dictionaries(st.sampled_from(list(ATTRIBUTES)), st.integers(0, 16), max_size=2).map(
        lambda attributes: tuple((name, min(value, ATTRIBUTES[name])) for name, value in attributes.items())
    ),
)
libraries = st.builds(
    LibraryStep,
    function=st.sampled_from(("aten::mm", "aten::sum.dim_IntList")),
    arguments=st.lists(library_arguments, max_size=3).map(tuple),
    results=st.lists(st.sampled_from(TENSORS), min_size=1, max_size=2).map(tuple),
    condition=st.none() | numbers,
)
operations = st.builds(
    Operation,
    name=st.sampled_from(("scale", "scale_backward")),
    parameters=st.lists(tensors | scalars, max_size=4).map(
        lambda rest: (TensorParameter("x", DType.F32, tuple(map(Name, DIMS))), *rest)
    ),
    results=st.lists(tensors, min_size=1, max_size=2).map(tuple),
    where=st.lists(st.builds(Condition, numbers), max_size=2).map(tuple),
    kept=st.lists(tensors, max_size=2).map(tuple),
    scratch=st.lists(tensors, max_size=2).map(tuple),
    steps=st.lists(st.builds(Fill, st.sampled_from(TENSORS), numbers) | launches | libraries, max_size=4).map(tuple),
)
plans = st.builds(
    LaunchPlan,
    operations=st.lists(operations, min_size=1, max_size=2).map(tuple),
    task=st.none() | st.just("../models/attention block.py::Attention.forward"),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plans)
def test_a_printed_plan_parses_to_itself(plan: LaunchPlan) -> None:
    result = parse(print_plan(plan))
    assert result.findings == ()
    assert result.plan == plan


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plans)
def test_a_printed_plan_keeps_to_its_columns_where_it_has_spaces(plan: LaunchPlan) -> None:
    for line in print_plan(plan).splitlines():
        assert len(line) <= MAX_COLUMNS or " " not in line[len("//     ") :].rstrip() or "// task:" in line


def test_a_result_that_is_another_tensor_is_printed_so() -> None:
    text = "// kernel-lsp: 1\n// op: f(grad_out: f32[N]) -> (grad_x: f32[N], grad_y = grad_x, grad_z = grad_out)\n"
    assert print_plan(parse_or_raise(text, "f.cu")) == text


def test_a_long_launch_is_broken_after_commas() -> None:
    arguments = ", ".join(f"argument_number_{i}" for i in range(12))
    text = f"// kernel-lsp: 1\n// op: f(x: f32[B]) -> (out: f32[B])\n// launch: k<<<B, 256>>>({arguments})\n"
    result = parse(text)
    assert result.plan is not None
    lines = print_plan(result.plan).splitlines()
    assert all(len(line) <= MAX_COLUMNS for line in lines)
    assert lines[2].endswith(",")
    assert lines[3].startswith("//     argument_number_")


def check_answers(text: str) -> None:
    """A plan, or an error with a place inside the text; soon; and a plan can be printed and checked."""
    started = time.perf_counter()
    result = parse(text)
    assert time.perf_counter() - started < MAX_PARSE_S
    errors = [finding for finding in result.findings if finding.severity is Severity.ERROR]
    assert (result.plan is None) == bool(errors)
    lines = text.split("\n")
    for finding in result.findings:
        assert finding.line is not None
        assert finding.column is not None
        assert 1 <= finding.line <= len(lines)
        assert 1 <= finding.column <= len(lines[finding.line - 1]) + 1
    if result.plan is not None:
        assert parse(print_plan(result.plan)).plan == result.plan
        check(result.plan, kernel_signatures(text))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=300))
def test_any_text_gives_a_plan_or_a_located_finding(text: str) -> None:
    check_answers(text)
    check_answers(f"// kernel-lsp: 1\n// {text}")
    check_answers(f"// kernel-lsp: 1\n// op: f(x: f32[B]) -> (out: f32[B])\n// launch: {text}")


PUNCTUATION = (*"()[]<>,:=-", "<<<", ">>>", "::", "->", "//", "/*", " ", "\n", "\r\n", "\n// ", "\n//     ")
WORDS = ("op", "launch", "library", "where", "fill", "scratch", "task", "f32", "B", "x", "none", "dim3", "256")
pieces = st.sampled_from(PUNCTUATION + WORDS)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(pieces, max_size=40).map("".join))
def test_any_string_of_plan_words_gives_a_plan_or_a_located_finding(text: str) -> None:
    check_answers(f"// kernel-lsp: 1\n// op: f(x: f32[B]) -> (out: f32[B])\n// {text}")


PLAN_TEXT = (
    "// kernel-lsp: 1\n// task: ../model.py::RMSNorm\n"
    "// op: rms_norm(x: f32[B, D], weight: f32[D], eps: float) -> (out: f32[B, D])\n"
    "// where: D % 4 == 0\n// scratch: partial: f32[B],\n//     other: i32[]\n// fill: partial = 0\n"
    "// launch[D > 4]: rows<256, float><<<dim3(B, 2), 256, D * 4>>>(x, weight, out, D,\n//     eps) cooperative=1\n"
    "// library: aten::mm(x, [1, D], none) -> (out)\n\n__global__ void rows(const float* x) {}\n"
)
mutations = st.lists(
    st.tuples(st.integers(0, len(PLAN_TEXT)), st.integers(0, 12), st.text(max_size=3) | pieces), min_size=1, max_size=4
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutations)
def test_a_damaged_plan_gives_a_plan_or_a_located_finding(changes: list[tuple[int, int, str]]) -> None:
    text = PLAN_TEXT
    for at, n_removed, inserted in changes:
        text = text[:at] + inserted + text[at + n_removed :]
    check_answers(text)


def test_long_texts_are_answered_soon() -> None:
    for text in ("/**/" * 100_000, "(" * 100_000, "// kernel-lsp: 1\n// op: f(" + "x, " * 100_000, "//\n" * 100_000):
        check_answers(text)
    nested = "(" * 5000 + "B" + ")" * 5000
    check_answers(f"// kernel-lsp: 1\n// op: f(x: f32[{nested}]) -> (out: f32[B])")
    check_answers(f"// kernel-lsp: 1\n// op: f(x: f32[B]) -> (out: f32[B])\n// library: a::b({'[' * 5000}) -> (out)")
    many = "// where: B > 1\n" * 20_000
    check_answers(f"// kernel-lsp: 1\n// op: f(x: f32[B]) -> (out: f32[B])\n{many}")


def test_the_hand_written_example_parses_and_fits_its_kernel() -> None:
    result = parse(ROW_SOFTMAX)
    assert result.findings == ()
    assert result.plan is not None
    assert check(result.plan, kernel_signatures(ROW_SOFTMAX)) == ()
