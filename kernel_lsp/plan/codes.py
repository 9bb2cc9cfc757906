"""Codes of findings about a launch plan, with the user's next step for each."""

from __future__ import annotations

from enum import StrEnum

from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.plan import Span
from kernel_lsp.errors import page

SOURCE = "plan"


class PlanCode(StrEnum):
    """Stable codes. `next_step` gives the remedy; `docs/plan-reference.md` lists them all."""

    NO_PLAN = "no-plan"
    PLAN_NOT_AT_TOP = "plan-not-at-top"
    BAD_VERSION = "bad-version"
    UNKNOWN_DIRECTIVE = "unknown-directive"
    LOST_COLON = "lost-colon"
    MISPLACED_DIRECTIVE = "misplaced-directive"
    REPEATED_DIRECTIVE = "repeated-directive"
    NO_OPERATION = "no-operation"
    SYNTAX = "syntax"
    BAD_EXPRESSION = "bad-expression"
    BAD_DTYPE = "bad-dtype"
    BAD_NAME = "bad-name"
    BAD_ATTRIBUTE = "bad-attribute"
    TOO_LONG = "too-long"
    DUPLICATE_NAME = "duplicate-name"
    UNKNOWN_NAME = "unknown-name"
    UNKNOWN_TENSOR = "unknown-tensor"
    UNBOUND_DIM = "unbound-dim"
    TENSOR_AS_NUMBER = "tensor-as-number"
    UNKNOWN_KERNEL = "unknown-kernel"
    TEMPLATE_COUNT = "template-count"
    ARGUMENT_COUNT = "argument-count"
    ARGUMENT_KIND = "argument-kind"
    ARGUMENT_TYPE = "argument-type"
    UNKNOWN_TYPE = "unknown-type"
    INPUT_WRITTEN = "input-written"
    RESULT_NOT_WRITTEN = "result-not-written"
    UNUSED_SCRATCH = "unused-scratch"
    BACKWARD_NAME = "backward-name"
    BACKWARD_PARAMETER = "backward-parameter"
    BACKWARD_RESULT = "backward-result"
    SAME_RESULT = "same-result"

    @property
    def next_step(self) -> str:
        """Return the user's remedy."""
        return _NEXT_STEP[self]


def finding(code: PlanCode, message: str, span: Span, severity: Severity = Severity.ERROR) -> Finding:
    """Make a finding of the plan at `span`."""
    return Finding(code=code, severity=severity, message=message, source=SOURCE, line=span.line, column=span.column)


_NEXT_STEP = {
    PlanCode.NO_PLAN: "start the file with the line '// kernel-lsp: 1' and an '// op:' line below it",
    PlanCode.PLAN_NOT_AT_TOP: "move the plan's comment block above the first line of code",
    PlanCode.BAD_VERSION: "write '// kernel-lsp: 1'",
    PlanCode.UNKNOWN_DIRECTIVE: "use task, op, where, keeps, scratch, fill, launch or library; prose looks like none",
    PlanCode.LOST_COLON: "write the ':', or begin the comment with another word",
    PlanCode.MISPLACED_DIRECTIVE: "put the line inside the block, below the '// op:' line that it belongs to",
    PlanCode.REPEATED_DIRECTIVE: "keep one of the two",
    PlanCode.NO_OPERATION: "add a line such as '// op: scale(x: f32[N], factor: float) -> (out: f32[N])'",
    PlanCode.SYNTAX: f"compare the line with {page('kernel-format.md')}",
    PlanCode.BAD_EXPRESSION: "use + - * / // % ceil_div min max, comparisons, and, or, not over dims and scalars",
    PlanCode.BAD_DTYPE: "use f64 f32 f16 bf16 i64 i32 i16 i8 u8 bool for tensors; float, int, bool for scalars",
    PlanCode.BAD_NAME: "use a name of letters, digits and _ that is no keyword of the plan",
    PlanCode.BAD_ATTRIBUTE: "use cooperative=1, cluster=N or max_shared=BYTES",
    PlanCode.TOO_LONG: "shorten it",
    PlanCode.DUPLICATE_NAME: "rename one of the two",
    PlanCode.UNKNOWN_NAME: "use a dim of an input, a scalar or a tensor of this operation",
    PlanCode.UNKNOWN_TENSOR: "name a result or declare it with '// scratch:'",
    PlanCode.UNBOUND_DIM: "let the dim stand alone in the shape of some input, or pass it as an int",
    PlanCode.TENSOR_AS_NUMBER: "pass the tensor as an argument of its own",
    PlanCode.UNKNOWN_KERNEL: "launch a __global__ function of this file",
    PlanCode.TEMPLATE_COUNT: "give one template argument per template parameter",
    PlanCode.ARGUMENT_COUNT: "pass one argument per parameter of the kernel",
    PlanCode.ARGUMENT_KIND: "pass tensors to pointers and numbers to values",
    PlanCode.ARGUMENT_TYPE: "make the kernel's parameter and the tensor's dtype agree",
    PlanCode.UNKNOWN_TYPE: "use a builtin type, or check by hand that the type fits",
    PlanCode.INPUT_WRITTEN: "declare the kernel's parameter const; kernels write results and scratch only",
    PlanCode.RESULT_NOT_WRITTEN: "pass the tensor to a launch or library step that writes it",
    PlanCode.UNUSED_SCRATCH: "remove the scratch tensor or use it",
    PlanCode.BACKWARD_NAME: "call the second operation <forward>_backward",
    PlanCode.BACKWARD_PARAMETER: "take grad_<result>, then parameters of the forward, its results and what it keeps",
    PlanCode.BACKWARD_RESULT: "return grad_<parameter> for parameters of the forward",
    PlanCode.SAME_RESULT: "declare the result with its dtype and dims, and write it",
}
