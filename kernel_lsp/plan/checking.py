"""Static checks of a plan and of its fit with the kernels, without shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernel_lsp.core.expression import Constant, Expression, Name, free_names
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.plan import (
    Fill,
    KernelParameter,
    KernelSignature,
    Launch,
    LaunchPlan,
    LibraryStep,
    Operation,
    ScalarParameter,
    Span,
    Step,
    TensorParameter,
    flat_arguments,
    launch_numbers,
)
from kernel_lsp.core.words import counted
from kernel_lsp.plan.codes import PlanCode, finding
from kernel_lsp.plan.cuda_types import pointer_fits, resolve_template, scalar_type
from kernel_lsp.plan.kernel_names import find_signature
from kernel_lsp.plan.renaming import GRADIENT_PREFIX, chained_backward


def check(plan: LaunchPlan, signatures: Sequence[KernelSignature]) -> tuple[Finding, ...]:
    """Return findings about names, kernels, argument counts and types, writes, and the backward's naming.

    Without an error among them, every name is known, every launch fits a kernel of `signatures`, inputs are only read,
    and every result is written by some step. Sizes need shapes: see `kernel_lsp.plan.binding`.
    """
    findings = [*_check_operation_names(plan), *_check_aliases(plan)]
    for operation in plan.operations:
        checker = _Checker(operation, signatures)
        checker.run()
        findings += checker.findings
    if plan.backward is not None:
        findings += _check_backward(plan.forward, plan.backward)
    chained = chained_backward(plan)
    if chained is not None and chained is not plan.backward and not any(map(_is_error, findings)):
        findings += _check_chain(plan, chained, signatures)
    return tuple(findings)


def _is_error(found: Finding) -> bool:
    return found.severity is Severity.ERROR


@dataclass
class _Checker:
    """Collect the findings of one operation. `read` and `written` are tensors used by steps."""

    operation: Operation
    signatures: Sequence[KernelSignature]
    findings: list[Finding] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tensors = {tensor.name: tensor for tensor in self.operation.tensors}
        self.inputs = {p.name for p in self.operation.parameters if isinstance(p, TensorParameter)}
        self.scalars = {p.name for p in self.operation.parameters if isinstance(p, ScalarParameter)}
        dims = (d for t in self.operation.parameters if isinstance(t, TensorParameter) for d in t.dims)
        self.numbers = self.scalars | {dim.id for dim in dims if isinstance(dim, Name)}

    def run(self) -> None:
        self.check_declarations()
        for condition in self.operation.where:
            self.check_numbers(condition.expression, condition.span)
        for step in self.operation.steps:
            self.check_step(step)
        self.check_use()

    def add(self, code: PlanCode, message: str, span: Span, severity: Severity = Severity.ERROR) -> None:
        self.findings.append(finding(code, message, span, severity))

    # names

    def check_declarations(self) -> None:
        seen: set[str] = set()
        made = (*self.operation.results, *self.operation.kept, *self.operation.scratch)
        for parameter in (*self.operation.parameters, *made):
            if parameter.name in seen:
                self.add(PlanCode.DUPLICATE_NAME, f"'{parameter.name}' is declared twice", parameter.span)
            elif isinstance(parameter, TensorParameter) and parameter.name in self.numbers:
                self.add(PlanCode.DUPLICATE_NAME, f"'{parameter.name}' is also a dim or a scalar", parameter.span)
            seen.add(parameter.name)
        for tensor in self.operation.tensors:
            for dim in tensor.dims:
                self.check_dim(dim, tensor)

    def check_dim(self, dim: Expression, tensor: TensorParameter) -> None:
        if isinstance(dim, Constant) and (type(dim.value) is not int or dim.value < 0):
            self.add(PlanCode.BAD_EXPRESSION, f"'{dim}' is no size: a dim of '{tensor.name}'", tensor.span)
        for name in sorted(free_names(dim) - self.numbers):
            message = f"the dim '{name}' of '{tensor.name}' is bound by no input"
            self.add(PlanCode.UNBOUND_DIM, message, tensor.span)

    def check_numbers(self, expression: Expression, span: Span) -> None:
        for name in sorted(free_names(expression) - self.numbers):
            if name in self.tensors:
                self.add(PlanCode.TENSOR_AS_NUMBER, f"the tensor '{name}' stands in '{expression}'", span)
            else:
                message = f"'{name}' in '{expression}' is no dim of an input and no scalar of {self.operation.name}"
                self.add(PlanCode.UNKNOWN_NAME, message, span)

    def check_writable(self, name: str, what: str, span: Span) -> None:
        if name not in self.tensors:
            self.add(PlanCode.UNKNOWN_TENSOR, f"{what} '{name}', which is no tensor of {self.operation.name}", span)
        elif name in self.inputs:
            self.add(PlanCode.INPUT_WRITTEN, f"{what} '{name}', which is an input", span)

    # steps

    def check_step(self, step: Step) -> None:
        match step:
            case Fill(tensor, value):
                self.check_writable(tensor, "fills", step.span)
                self.check_numbers(value, step.span)
                self.written.add(tensor)
            case Launch():
                self.check_launch(step)
            case LibraryStep():
                self.check_library(step)

    def check_library(self, step: LibraryStep) -> None:
        if step.condition is not None:
            self.check_numbers(step.condition, step.span)
        for argument in flat_arguments(step.arguments):
            if isinstance(argument, Expression):
                self.check_numbers(argument, step.span)
            elif argument not in self.tensors:
                self.add(PlanCode.UNKNOWN_TENSOR, f"'{argument}' is no tensor of {self.operation.name}", step.span)
            else:
                self.read.add(argument)
        for result in step.results:
            self.check_writable(result, "writes", step.span)
            self.written.add(result)

    def check_launch(self, launch: Launch) -> None:
        for expression in launch_numbers(launch):
            self.check_numbers(expression, launch.span)
        dtypes = {name: tensor.dtype for name, tensor in self.tensors.items()}
        signature = find_signature(launch, self.signatures, dtypes)
        if signature is None:
            self.report_unknown_kernel(launch)
            self.assume_used(launch)
        elif len(signature.parameters) != len(launch.arguments):
            wanted = ", ".join(parameter.name or "?" for parameter in signature.parameters)
            count = f"takes {len(signature.parameters)} arguments ({wanted}), and gets {len(launch.arguments)}"
            self.add(PlanCode.ARGUMENT_COUNT, f"'{launch.kernel}' {count}", launch.span)
            self.assume_used(launch)
        else:
            self.check_template(launch, signature)
            self.check_arguments(launch, signature)

    def report_unknown_kernel(self, launch: Launch) -> None:
        qualified = [s.name for s in self.signatures if s.name.rsplit("::", 1)[-1] == launch.kernel]
        names = ", ".join(dict.fromkeys(qualified or [s.name for s in self.signatures]))
        hint = f"did you mean {names}?" if qualified else f"there are {names}" if names else "it has none"
        message = f"no __global__ function '{launch.kernel}' in this file: {hint}"
        self.add(PlanCode.UNKNOWN_KERNEL, message, launch.span)

    def assume_used(self, launch: Launch) -> None:
        """Count a faulty launch's tensors as written, so that one fault gives one finding."""
        names = {argument.id for argument in launch.arguments if isinstance(argument, Name)}
        self.read |= names
        self.written |= names

    def check_template(self, launch: Launch, signature: KernelSignature) -> None:
        n_parameters, n_arguments = len(signature.template_parameters), len(launch.template_arguments)
        if signature.takes_any_number and n_arguments >= n_parameters - 1:
            return
        if n_arguments > n_parameters:
            takes = f"takes {n_parameters} template arguments" if n_parameters else "is no template"
            message = f"'{launch.kernel}' {takes}, and gets {n_arguments}"
            self.add(PlanCode.TEMPLATE_COUNT, message, launch.span)
        elif n_arguments < n_parameters - signature.n_template_defaults:
            missing = ", ".join(signature.template_parameters[n_arguments:])
            message = f"'{launch.kernel}' gets {n_arguments} of {n_parameters} template arguments: no {missing}"
            self.add(PlanCode.TEMPLATE_COUNT, message, launch.span)

    # arguments

    def check_arguments(self, launch: Launch, signature: KernelSignature) -> None:
        templates = tuple(str(argument) for argument in launch.template_arguments)
        spans = launch.argument_spans or (launch.span,) * len(launch.arguments)
        for argument, parameter, span in zip(launch.arguments, signature.parameters, spans, strict=True):
            element = resolve_template(parameter.element, signature, templates)
            if isinstance(argument, Name) and argument.id in self.tensors:
                self.check_tensor_argument(self.tensors[argument.id], parameter, element, span)
            else:
                self.check_scalar_argument(argument, parameter, element, span)

    def check_tensor_argument(
        self, tensor: TensorParameter, parameter: KernelParameter, element: str | None, span: Span
    ) -> None:
        self.read.add(tensor.name)
        if not parameter.is_const:
            self.written.add(tensor.name)
        if not parameter.is_pointer:
            message = f"the parameter '{parameter.name}' takes a {parameter.element}, and '{tensor.name}' is a tensor"
            self.add(PlanCode.ARGUMENT_KIND, message, span)
            return
        if tensor.name in self.inputs and not parameter.is_const:
            message = f"'{tensor.name}' is an input, and the parameter '{parameter.name}' is not const"
            self.add(PlanCode.INPUT_WRITTEN, message, span)
        if element is not None:
            self.check_element(tensor, parameter, element, span)

    def check_element(self, tensor: TensorParameter, parameter: KernelParameter, element: str, span: Span) -> None:
        fits = pointer_fits(element, tensor.dtype)
        if fits is None:
            message = f"cannot tell whether '{element}*' ({parameter.name}) fits '{tensor.name}': {tensor.dtype}"
            self.add(PlanCode.UNKNOWN_TYPE, message, span, Severity.WARNING)
        elif not fits:
            message = f"'{tensor.name}' is {tensor.dtype}, and the parameter '{parameter.name}' points to {element}"
            self.add(PlanCode.ARGUMENT_TYPE, message, span)

    def check_scalar_argument(
        self, argument: Expression, parameter: KernelParameter, element: str | None, span: Span
    ) -> None:
        self.check_numbers(argument, span)
        if parameter.is_pointer:
            if not (isinstance(argument, Name) and argument.id not in self.numbers):  # other cases are reported above
                message = f"the parameter '{parameter.name}' is a pointer, and '{argument}' is a number"
                self.add(PlanCode.ARGUMENT_KIND, message, span)
        elif element is not None and scalar_type(element) is None:
            message = f"the parameter '{parameter.name}' has the type '{element}', which no launch can pass"
            self.add(PlanCode.ARGUMENT_TYPE, message, span)
        elif element is not None and self.is_float(argument) and scalar_type(element) not in ("float", "double"):
            message = f"'{argument}' is a float, and the parameter '{parameter.name}' is {element}"
            self.add(PlanCode.ARGUMENT_TYPE, message, span)

    def is_float(self, argument: Expression) -> bool:
        """Return True for a float scalar or a float literal."""
        if isinstance(argument, Constant):
            return isinstance(argument.value, float) and not argument.value.is_integer()
        floats = {p.name for p in self.operation.parameters if isinstance(p, ScalarParameter) and p.type == "float"}
        return isinstance(argument, Name) and argument.id in floats

    # use

    def check_use(self) -> None:
        for result in self.operation.keepable:
            if result.name not in self.written:
                what = "result" if result in self.operation.outputs else "kept tensor"
                message = f"nothing writes the {what} '{result.name}' of {self.operation.name}"
                self.add(PlanCode.RESULT_NOT_WRITTEN, message, result.span)
        for tensor in self.operation.scratch:
            if tensor.name not in self.read | self.written:
                message = f"the scratch tensor '{tensor.name}' is never used"
                self.add(PlanCode.UNUSED_SCRATCH, message, tensor.span, Severity.WARNING)


def _check_operation_names(plan: LaunchPlan) -> list[Finding]:
    findings: list[Finding] = []
    seen: set[str] = set()
    for operation in plan.operations:
        if operation.name in seen:
            message = f"two operations are called '{operation.name}'"
            findings.append(finding(PlanCode.DUPLICATE_NAME, message, operation.span))
        elif seen and operation.name != f"{plan.forward.name}_backward":
            message = f"nothing calls '{operation.name}': the backward would be '{plan.forward.name}_backward'"
            findings.append(finding(PlanCode.BACKWARD_NAME, message, operation.span, Severity.WARNING))
        seen.add(operation.name)
    return findings


def _check_aliases(plan: LaunchPlan) -> list[Finding]:
    """Find results that are another tensor outside of a backward: an operator returns no input, and no tensor twice."""
    gradients = {f"{GRADIENT_PREFIX}{result.name}" for result in plan.forward.results}
    findings: list[Finding] = []
    for operation in plan.operations:
        allowed = {result.name for result in operation.outputs} | gradients if operation is plan.backward else set()
        for result in operation.results:
            if result.same_as and result.same_as not in allowed:
                message = f"'{result.name}' cannot be '{result.same_as}': only a backward's gradients may be one tensor"
                findings.append(finding(PlanCode.SAME_RESULT, message, result.span))
        if not operation.outputs:
            message = f"{operation.name} writes none of its results: give one of them a buffer"
            findings.append(finding(PlanCode.SAME_RESULT, message, operation.span))
    return findings


def _check_backward(forward: Operation, backward: Operation) -> list[Finding]:
    findings: list[Finding] = []
    results = {f"{GRADIENT_PREFIX}{result.name}": result for result in forward.results}
    parameters = {parameter.name: parameter for parameter in forward.parameters}
    kept = {tensor.name: tensor for tensor in forward.keepable}
    in_gradients = True
    for parameter in backward.parameters:
        is_gradient = parameter.name in results
        expected = results.get(parameter.name) or parameters.get(parameter.name)
        if expected is None and parameter.name in kept:
            findings += _check_kept(parameter, kept[parameter.name])
        elif expected is None:
            message = f"'{parameter.name}' is neither grad_<result> nor a parameter of {forward.name}, nor kept by it"
            findings.append(finding(PlanCode.BACKWARD_PARAMETER, message, parameter.span))
        elif is_gradient and not in_gradients:
            message = f"'{parameter.name}' must stand before the parameters of {forward.name}"
            findings.append(finding(PlanCode.BACKWARD_PARAMETER, message, parameter.span))
        else:
            findings += _check_same_type(parameter, expected, PlanCode.BACKWARD_PARAMETER)
        in_gradients = in_gradients and is_gradient
    gradients = {f"{GRADIENT_PREFIX}{name}": p for name, p in parameters.items() if isinstance(p, TensorParameter)}
    for result in backward.results:
        if result.name not in gradients:
            message = f"'{result.name}' is not grad_<parameter> for a tensor parameter of {forward.name}"
            findings.append(finding(PlanCode.BACKWARD_RESULT, message, result.span))
        else:
            findings += _check_same_type(result, gradients[result.name], PlanCode.BACKWARD_RESULT)
    return findings


def _check_chain(plan: LaunchPlan, chained: Operation, signatures: Sequence[KernelSignature]) -> list[Finding]:
    """Check a backward behind the forward that keeps tensors for it: names must mean the same in both."""
    assert plan.backward is not None
    parameters = {p.name: p for p in plan.forward.parameters if isinstance(p, TensorParameter)}
    for tensor in plan.backward.parameters:
        known = parameters.get(tensor.name)
        if isinstance(tensor, TensorParameter) and known is not None and known.dims != tensor.dims:
            message = f"'{tensor.name}' has other dims than in {plan.forward.name}, of which the backward takes results"
            return [finding(PlanCode.BACKWARD_PARAMETER, message, tensor.span)]
    checker = _Checker(chained, signatures)
    checker.run()
    return [each for each in checker.findings if each.severity is Severity.ERROR]


def _check_kept(found: TensorParameter | ScalarParameter, kept: TensorParameter) -> list[Finding]:
    """Require the type with which the forward declares the tensor, dims included."""
    if isinstance(found, TensorParameter) and (found.dtype, found.dims) == (kept.dtype, kept.dims):
        return []
    declared = f"{kept.dtype}[{', '.join(map(str, kept.dims))}]"
    message = f"'{found.name}' must be declared as in the forward: {declared}"
    return [finding(PlanCode.BACKWARD_PARAMETER, message, found.span)]


def _check_same_type(
    found: TensorParameter | ScalarParameter, expected: TensorParameter | ScalarParameter, code: PlanCode
) -> list[Finding]:
    """Compare dtype and rank; names of dims may differ between operations."""
    if _type_of(found) == _type_of(expected):
        return []
    message = f"'{found.name}' is {_type_of(found)}, and '{expected.name}' of the forward is {_type_of(expected)}"
    return [finding(code, message, found.span)]


def _type_of(parameter: TensorParameter | ScalarParameter) -> str:
    if isinstance(parameter, ScalarParameter):
        return parameter.type
    n_dims = len(parameter.dims)
    return f"{parameter.dtype} with {counted(n_dims, 'dim')}"
