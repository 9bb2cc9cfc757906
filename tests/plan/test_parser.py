"""Text to plan: what is read, and where each error is said to be."""

from __future__ import annotations

import pytest

from kernel_lsp.core.expression import Constant, Name
from kernel_lsp.core.expression import parse as expression
from kernel_lsp.core.finding import Severity
from kernel_lsp.core.plan import Launch, LaunchPlan, LibraryStep, ScalarParameter, Span
from kernel_lsp.errors import PlanError
from kernel_lsp.plan.parser import MAX_FINDINGS, parse, parse_or_raise

HEADER = "// kernel-lsp: 1\n"
OPERATION = "// op: scale(x: f32[B, D], factor: float) -> (out: f32[B, D])\n"


def plan_of(text: str) -> LaunchPlan:
    result = parse(text)
    assert result.findings == ()
    assert result.plan is not None
    return result.plan


def launch_of(line: str) -> Launch:
    step = plan_of(f"{HEADER}{OPERATION}// launch{line}\n").forward.steps[0]
    assert isinstance(step, Launch)
    return step


def library_of(line: str) -> LibraryStep:
    step = plan_of(f"{HEADER}{OPERATION}// library{line}\n").forward.steps[0]
    assert isinstance(step, LibraryStep)
    return step


def check(text: str, code: str, line: int, column: int, words: str = "") -> None:
    """The first finding is an error of that code at that place, and there is no plan."""
    result = parse(text)
    first = result.findings[0]
    assert result.plan is None
    assert (first.code, first.line, first.column, first.source) == (code, line, column, "plan")
    assert first.severity is Severity.ERROR
    assert words in first.message


def check_body(body: str, code: str, line: int, column: int, words: str = "") -> None:
    """Check lines below the header and the operation: their first is line 3."""
    check(HEADER + OPERATION + body, code, line, column, words)


def test_a_complete_plan_is_read() -> None:
    plan = plan_of(
        "// kernel-lsp: 1\n// task: ../model.py::RMSNorm\n"
        "// op: rms_norm(x: bf16[B, 2 * D], eps: float) -> (out: bf16[B, D], rstd: f32[])\n"
        "// where: D % 4 == 0\n// scratch: partial: f32[B]\n// fill: partial = 0\n"
        "// launch: rows<256><<<B, 256, 0>>>(x, out, D, eps)\n"
        "// op: rms_norm_backward(grad_out: bf16[B, D], x: bf16[B, D]) -> (grad_x: bf16[B, D])\n"
    )
    assert plan.task == "../model.py::RMSNorm"
    assert [operation.name for operation in plan.operations] == ["rms_norm", "rms_norm_backward"]
    assert plan.backward is plan.operations[1]
    assert plan.forward.parameters[1] == ScalarParameter("eps", "float")
    assert plan.forward.results[1].dims == ()
    assert [condition.expression for condition in plan.forward.where] == [expression("D % 4 == 0")]
    assert [tensor.name for tensor in plan.forward.tensors] == ["x", "out", "rstd", "partial"]
    assert len(plan.forward.steps) == 2


def test_the_block_ends_at_the_first_line_that_is_no_comment() -> None:
    assert plan_of(f"{HEADER}{OPERATION}__global__ void k() {{}}\n// launch: nonsense\n").forward.steps == ()


def test_prose_and_empty_comments_may_stand_between_directives() -> None:
    plan = plan_of(f"{HEADER}// One block per row.\n//\n//    indented prose\n// Why so: it is read once.\n{OPERATION}")
    assert plan.forward.name == "scale"


def test_a_licence_may_stand_above_the_plan() -> None:
    assert plan_of(f"/* Copyright\n * // kernel-lsp: 7\n */\n// SPDX: Apache-2.0\n\n{HEADER}{OPERATION}").forward


def test_a_directive_continues_on_lines_indented_by_three_spaces() -> None:
    plan = plan_of(f"{HEADER}// op: scale(x: f32[B,\n//      D],\n//   factor: float)\n//    -> (out: f32[B, D])\n")
    assert plan == plan_of(HEADER + OPERATION)


def test_windows_line_ends_and_a_byte_order_mark_change_nothing() -> None:
    assert plan_of("\ufeff" + (HEADER + OPERATION).replace("\n", "\r\n")) == plan_of(HEADER + OPERATION)


def test_spans_are_those_of_the_text() -> None:
    operation = plan_of(HEADER + OPERATION).forward
    assert operation.span == Span(2, 8, 13)
    assert operation.parameters[1].span == Span(2, 28, 41)


def test_the_span_of_an_argument_on_a_continuation_line_is_there() -> None:
    launch = launch_of(": k<<<B, 256>>>(x,\n//     out)")
    assert launch.argument_spans[1] == Span(4, 8, 11)
    assert launch.span.line == 3


def test_a_grid_of_one_number_has_three_dims() -> None:
    assert launch_of(": k<<<ceil_div(B, 4), 256>>>()").grid == (expression("ceil_div(B, 4)"), Constant(1), Constant(1))


def test_dim3_takes_up_to_three_sizes() -> None:
    launch = launch_of(": k<<<dim3(B, D), dim3(32, 4, 2), D * 4>>>()")
    assert launch.grid == (Name("B"), Name("D"), Constant(1))
    assert launch.block == (Constant(32), Constant(4), Constant(2))
    assert launch.shared_bytes == expression("D * 4")


def test_a_condition_picks_a_variant() -> None:
    assert launch_of("[D <= 4096 and D % 4 == 0]: k<<<B, 256>>>()").condition == expression("D <= 4096 and D % 4 == 0")


def test_template_arguments_are_expressions_or_types() -> None:
    launch = launch_of(": ns::k<256, D % 4 == 0, float, true, unsigned int, ns::Relu, -1><<<B, 256>>>()")
    assert launch.kernel == "ns::k"
    assert launch.template_arguments == (
        Constant(256),
        expression("D % 4 == 0"),
        "float",
        Constant(True),
        "unsigned int",
        "ns::Relu",
        Constant(-1),
    )


def test_attributes_follow_the_arguments() -> None:
    launch = launch_of(": k<<<B, 256>>>(x) cooperative=1 cluster=2 max_shared=65536")
    assert launch.attributes == (("cooperative", 1), ("cluster", 2), ("max_shared", 65536))


def test_a_library_step_takes_tensors_numbers_lists_and_none() -> None:
    step = library_of("[D > 8]: aten::sum.dim_IntList(x, [0, -1], false, none) -> (out)")
    assert step.function == "aten::sum.dim_IntList"
    assert step.arguments == ("x", (Constant(0), Constant(-1)), Constant(False), None)
    assert step.results == ("out",)


def test_scratch_below_the_step_that_uses_it_is_known() -> None:
    plan = plan_of(f"{HEADER}{OPERATION}// library: aten::mm(x, t) -> (out)\n// scratch: t: f32[D, D], u: i32[]\n")
    step = plan.forward.steps[0]
    assert isinstance(step, LibraryStep)
    assert step.arguments == ("x", "t")
    assert [tensor.name for tensor in plan.forward.scratch] == ["t", "u"]


def test_an_empty_file_has_no_plan() -> None:
    check("", "no-plan", 1, 1)


def test_a_plan_below_code_is_refused_where_it_stands() -> None:
    check(f"#include <cuda_fp16.h>\n{HEADER}{OPERATION}", "plan-not-at-top", 2, 1)


def test_another_version_is_refused() -> None:
    check(f"// kernel-lsp: 2\n{OPERATION}", "bad-version", 1, 16, "version '2'")


def test_a_plan_without_an_operation_is_refused() -> None:
    check(HEADER, "no-operation", 1, 16)


def test_a_misspelled_directive_names_the_nearest() -> None:
    check_body("// lauch: k<<<B, 256>>>()\n", "unknown-directive", 3, 4, "did you mean 'launch'?")


def test_a_directive_with_a_capital_is_not_taken_for_prose() -> None:
    check_body("// Where: D % 4 == 0\n", "unknown-directive", 3, 4, "did you mean 'where'?")


def test_an_unknown_key_before_a_launch_is_not_taken_for_prose() -> None:
    check_body("// step: k<<<B, 256>>>()\n", "unknown-directive", 3, 4, "there are task, op")


@pytest.mark.parametrize(
    "line",
    [
        "where D % 4 == 0",
        "where D > 4 and D <= 512",
        "task tasks.py::f",
        "op g(x: f32[N]) -> (out: f32[N])",
        "scratch part: f32[D]",
        "fill out = 0",
        "launch k<<<1, 128>>>(x, out)",
        "library at::mm(x, x) -> (out)",
    ],
)
def test_a_directive_without_its_colon_is_told_of(line: str) -> None:
    """It is read as prose, and a contract without its condition is another."""
    found = parse(f"{HEADER}{OPERATION}// {line}\n").findings
    assert [(f.code, f.severity, f.line, f.column) for f in found] == [("lost-colon", Severity.WARNING, 3, 4)]
    key = line.split()[0]
    assert found[0].message == f"this line is not read: there is no ':' behind '{key}'"


@pytest.mark.parametrize(
    "line",
    [
        "where the rows are long each block takes several",
        "launch bounds keep it at 64 registers",
        "library calls would be slower here",
        "task: tasks.py::f",
        "fill the tile first",
        "op by op, as PyTorch does",
        "    where D > 4 goes on with the line above it",
        "nowhere D > 4",
    ],
)
def test_prose_that_begins_like_a_directive_is_none(line: str) -> None:
    assert "lost-colon" not in [f.code for f in parse(f"{HEADER}{OPERATION}// {line}\n").findings]


def test_a_directive_above_the_first_operation_is_misplaced() -> None:
    check(f"{HEADER}// where: D > 1\n{OPERATION}", "misplaced-directive", 2, 4)


@pytest.mark.parametrize(
    "line", ["launch: k<<<B, 256>>>()", "launch: k<256>\n//    <<<B, 256>>>()", "where: D % 4 == 0"]
)
def test_a_directive_after_an_empty_line_is_an_error(line: str) -> None:
    """The kernels would run without it."""
    check(f"{HEADER}{OPERATION}\n// {line}\n", "misplaced-directive", 4, 4)


@pytest.mark.parametrize(
    ("line", "severities"),
    [
        ("launch: one block for each row", []),
        ("launch: norm_rows (one block for each row)", []),
        ("where: rows > 0 in every caller of this file", []),
        ("task: see the issue", []),
        ("launch: norm_rows (rows)", [Severity.WARNING]),
        ("fill: out", []),
        ("scratch: partial = f32[B]", [Severity.WARNING]),
        ("library[D > 1] the rest", [Severity.ERROR]),
    ],
)
def test_prose_after_an_empty_line_is_no_directive(line: str, severities: list[Severity]) -> None:
    result = parse(f"{HEADER}{OPERATION}\n// {line}\n")
    assert (result.plan is None) is (Severity.ERROR in severities)
    assert [f.severity for f in result.findings if f.code == "misplaced-directive"] == severities


def test_a_second_version_line_is_refused() -> None:
    check(HEADER + OPERATION + HEADER, "repeated-directive", 3, 4)


def test_a_second_task_line_is_refused() -> None:
    check(f"{HEADER}// task: a.py::f\n// task: b.py::g\n{OPERATION}", "repeated-directive", 3, 4)


def test_a_torch_dtype_is_refused_with_ours() -> None:
    check(f"{HEADER}// op: f(x: bfloat16[B]) -> (out: f32[B])", "bad-dtype", 2, 13, "did you mean 'bf16'?")


def test_a_tensor_without_dims_is_refused() -> None:
    check(f"{HEADER}// op: f(x: f32) -> (out: f32[B])", "bad-dtype", 2, 13, "'f32[]'")


def test_an_operation_without_results_is_refused() -> None:
    check(f"{HEADER}// op: f(x: f32[B]) -> ()", "syntax", 2, 25, "at least one result")


def test_a_missing_arrow_is_located() -> None:
    check(f"{HEADER}// op: f(x: f32[B]) (out: f32[B])", "syntax", 2, 21, "'->'")


def test_an_unclosed_parenthesis_is_located_where_it_opens() -> None:
    check(f"{HEADER}// op: f(x: f32[B] -> (out: f32[B])", "syntax", 2, 9, "not closed")


def test_a_reserved_word_is_no_name() -> None:
    check(f"{HEADER}// op: f(none: f32[B]) -> (out: f32[B])", "bad-name", 2, 10)


def test_an_error_in_a_dim_has_the_column_of_the_character() -> None:
    check(f"{HEADER}// op: f(x: f32[B, 2 ^ D]) -> (out: f32[B])", "bad-expression", 2, 22)


def test_an_error_on_a_continuation_line_is_located_there() -> None:
    check(f"{HEADER}// op: f(x: f32[B],\n//     y: f99[B]) -> (out: f32[B])", "bad-dtype", 3, 11)


def test_a_broken_condition_is_located() -> None:
    check_body("// where: D %\n", "bad-expression", 3, 14)


def test_a_launch_without_a_configuration_is_refused() -> None:
    check_body("// launch: k(x, out)\n", "syntax", 3, 12, "kernel<<<grid, block>>>")


def test_a_launch_with_one_size_is_refused() -> None:
    check_body("// launch: k<<<B>>>(x)\n", "syntax", 3, 16, "found 1 values")


def test_an_unknown_attribute_names_the_nearest() -> None:
    check_body("// launch: k<<<B, 256>>>(x) cooperativ=1\n", "bad-attribute", 3, 29, "'cooperative'")


def test_an_attribute_past_its_limit_is_refused() -> None:
    check_body("// launch: k<<<B, 256>>>(x) cluster=17\n", "bad-attribute", 3, 29, "limit of 16")


def test_fill_needs_a_value() -> None:
    check_body("// fill: out\n", "syntax", 3, 13, "'='")


def test_a_condition_on_fill_is_refused() -> None:
    check_body("// fill[D > 1]: out = 0\n", "syntax", 3, 9, "no [condition]")


def test_an_unclosed_condition_is_refused() -> None:
    check_body("// launch[D > 1: k<<<B, 256>>>()\n", "syntax", 3, 4, "']'")


def test_one_bad_line_does_not_hide_the_next() -> None:
    result = parse(f"{HEADER}{OPERATION}// where: $\n// fill: 3\n// launch: k<<<>>>()\n")
    assert [finding.line for finding in result.findings] == [3, 4, 5]


def test_the_number_of_findings_is_bounded() -> None:
    assert len(parse(f"{HEADER}{OPERATION}" + "// where: $\n" * 500).findings) == MAX_FINDINGS


def test_parse_or_raise_carries_file_line_and_next_step() -> None:
    with pytest.raises(PlanError) as caught:
        parse_or_raise(f"{HEADER}// op: f(x: float32[B]) -> (out: f32[B])", "kernels/f.cu")
    assert (caught.value.file, caught.value.line) == ("kernels/f.cu", 2)
    assert "bf16" in caught.value.next_step


def test_parse_or_raise_gives_the_plan() -> None:
    assert parse_or_raise(HEADER + OPERATION, "f.cu") == plan_of(HEADER + OPERATION)


# --- comments behind directives


@pytest.mark.parametrize("behind", [";", " // one row each", ";  // x, out", " // a\n//   // b"])
def test_a_comment_behind_a_launch_is_none_of_it(behind: str) -> None:
    assert launch_of(f": k<<<B, 256>>>(x, out){behind}") == launch_of(": k<<<B, 256>>>(x, out)")


def test_what_continues_below_a_comment_still_counts() -> None:
    assert launch_of(": k<<<B // 2, 256>>>(x)  // all at once\n//    cooperative=1 // yes").attributes == (
        ("cooperative", 1),
    )


def test_comments_may_stand_behind_targets_signatures_and_scratch() -> None:
    plan = plan_of(
        f"{HEADER}// task: m.py::f  # of the model\n{OPERATION[:-1]}  // by rows\n"
        "// scratch: t: f32[B // 2], u: f32[D]  // sums, by row\n// library: aten::mm(x, t) -> (u) // cuBLAS\n"
    )
    assert (plan.task, [tensor.name for tensor in plan.forward.scratch]) == ("m.py::f", ["t", "u"])
    assert plan.forward.name == "scale"


def test_anything_else_behind_a_launch_is_an_error() -> None:
    check_body("// launch: k<<<B, 256>>>(x) / 2\n", "bad-attribute", 3, 29)
