"""One operation of a launch plan as C++ functions: its contract, and one call by its kernels.

The functions take the operator's arguments, all of them and in the operator's order, as the Python form's do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Constant, Expression, Name, Number
from kernel_lsp.core.plan import (
    Fill,
    KernelParameter,
    Launch,
    LibraryArgument,
    LibraryStep,
    ScalarParameter,
    TensorParameter,
)
from kernel_lsp.errors import PlanError
from kernel_lsp.export.package.cpp_text import (
    CppNames,
    CppType,
    cpp_condition,
    cpp_double,
    cpp_expression,
    cpp_function,
    cpp_integer,
    cpp_scope,
    cpp_string,
    cpp_value,
)
from kernel_lsp.export.package.instances import KernelInstance, instances_of
from kernel_lsp.export.python.operation_text import OperationText, OperatorArgument, dtype_and_shape
from kernel_lsp.export.python.python_text import python_number
from kernel_lsp.plan.printer import print_step

AT_TYPES = {
    DType.F64: "at::kDouble",
    DType.F32: "at::kFloat",
    DType.F16: "at::kHalf",
    DType.BF16: "at::kBFloat16",
    DType.I64: "at::kLong",
    DType.I32: "at::kInt",
    DType.I16: "at::kShort",
    DType.I8: "at::kChar",
    DType.U8: "at::kByte",
    DType.BOOL: "at::kBool",
}
ATTRIBUTES = ("max_shared", "cluster", "cooperative")
"""Launch attributes in the order of `support::Attributes`."""
ARGUMENT_TYPES = {"Tensor": "const Tensor&", "float": "double", "int": "int64_t", "bool": "bool"}
_PLAN_TYPES: dict[str, CppType] = {"float": "real", "int": "integer", "bool": "bool"}
_FIXED_WIDTH = {
    "signed char": "int8_t",
    "unsigned char": "uint8_t",
    "short": "int16_t",
    "unsigned short": "uint16_t",
    "int": "int32_t",
    "unsigned int": "uint32_t",
    "long long": "int64_t",
    "unsigned long long": "uint64_t",
}


def cpp_type_of_results(n_results: int) -> str:
    """Return the C++ return type of an operator with this number of results."""
    return "Tensor" if n_results == 1 else f"std::tuple<{', '.join(['Tensor'] * n_results)}>"


@dataclass(frozen=True)
class CppOperation:
    """Prints the functions of `text.operation`. `values` are the dims and scalars of each configuration, which
    determine the kernels where a template argument is a dim. `kernel_index` returns a kernel's index in the table."""

    text: OperationText
    values: Sequence[dict[str, Number]]
    kernel_index: Callable[[str], int]

    @property
    def name(self) -> str:
        return self.text.name

    @property
    def returns(self) -> str:
        return cpp_type_of_results(len(self.text.operation.outputs))

    @property
    def parameters(self) -> str:
        """Return the parameters as written in a declaration."""
        return ", ".join(f"{ARGUMENT_TYPES[a.annotation]} {cpp_identifier(a.name)}" for a in self.text.arguments)

    @property
    def passed(self) -> str:
        """Return the arguments as written in a call."""
        return ", ".join(cpp_identifier(argument.name) for argument in self.text.arguments)

    @property
    def library_headers(self) -> list[str]:
        """Return the headers that the library steps need, as they are included."""
        functions = [function.split("::") for function in self.text.library_functions]
        return [f"<ATen/ops/{base}.h>" if space == "aten" else f'"{space}.h"' for space, base in functions]

    # the contract

    def outside_function(self) -> list[str]:
        """Print ``const char* <name>_outside(...)``, which returns the reason why the kernels cannot take these inputs,
        or null."""
        body = [
            _refused(_differs(argument, value), f"{argument.name} is not {python_number(value)}")
            for argument, value in self._fixed
        ]
        for tensor in self.text.inputs:
            check = f"!support::is_tensor({self._tensor(tensor.name)}, {AT_TYPES[tensor.dtype]}, {len(tensor.dims)})"
            body += [_refused(check, self._said(tensor, "not a non-empty"))]
        body += self._dims()
        body += self._dim_checks()
        inputs = ", ".join(f"&{self._tensor(tensor.name)}" for tensor in self.text.inputs)
        body += [f"if (const char* reason = support::not_on_one_gpu({{{inputs}}})) return reason;"]
        for condition in self.text.conditions:
            holds = f"!plan::holds([&] {{ return {cpp_condition(condition, self._names)}; }})"
            body += [_refused(holds, f"{condition} does not hold")]
        return cpp_function(f"const char* {self.name}_outside({self.parameters})", [*body, "return nullptr;"])

    def _said(self, tensor: TensorParameter, what: str) -> str:
        return f"{self.text.rename(tensor.name)} is {what} {dtype_and_shape(tensor.dtype, tensor.dims)}"

    def _dim_checks(self) -> list[str]:
        lines = []
        for tensor in self.text.inputs:
            checks = [
                f"Integer({self._tensor(tensor.name)}.size({position})) == {cpp_integer(dim, self._names)}"
                for (_, position), dim in self.text.dim_checks(tensor)
            ]
            if checks:
                holds = f"!plan::holds([&] {{ return {' && '.join(checks)}; }})"
                lines += [_refused(holds, self._said(tensor, "not"))]
        return lines

    # the call

    def kernels_function(self) -> list[str]:
        """Print ``<name>_by_kernels(...)``, which binds every launch, then runs the steps. Throws `plan::Unfit` before
        the first step where something cannot be launched, and only CUDA's errors afterwards."""
        first = self._tensor(self.text.inputs[0].name)
        body = [f"const c10::cuda::CUDAGuard guard({first}.device());", *self._dims()]
        for number, step in enumerate(self.text.operation.steps, start=1):
            body += self._bound(number, step)
        allocated = self.text.allocated()
        body += [f"const std::array<Integer, {len(t.dims)}> shape_{t.name} = {self._shape(t)};" for t in allocated]
        body += ["", "// From here on nothing is refused."]
        body += [f"const Tensor ready_{t.name} = support::ready({self._tensor(t.name)});" for t in self.text.inputs]
        body += [self._allocation(tensor, first) for tensor in allocated]
        body += [f"Tensor {self._tensor(name)};" for name in self._made_by_library(allocated)]
        if self.text.launches:
            body += ["const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();"]
        if self.text.library_functions:
            body += ["const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);"]
        for number, step in enumerate(self.text.operation.steps, start=1):
            body += self._taken(number, step)
        results = ", ".join(self._tensor(result.name) for result in self.text.operation.outputs)
        body += [f"return {results};" if len(self.text.operation.outputs) == 1 else f"return {{{results}}};"]
        return cpp_function(f"{self.returns} {self.name}_by_kernels({self.parameters})", body)

    def _bound(self, number: int, step: Fill | Launch | LibraryStep) -> list[str]:
        """Evaluate the values of a step that can be refused, before any step runs."""
        match step:
            case Fill():
                return self._bound_fill(number, step)
            case Launch():
                return self._bound_launch(number, step)
            case LibraryStep():
                return [] if step.condition is None else [self._taken_flag(number, step.condition)]

    def _bound_fill(self, number: int, fill: Fill) -> list[str]:
        tensor = next(tensor for tensor in self.text.operation.tensors if tensor.name == fill.tensor)
        held = "double" if tensor.dtype.is_floating else _FIXED_WIDTH.get(tensor.dtype.cuda_type, "bool")
        return [f"const auto number_{number} = {cpp_value(fill.value, self._names, held)};"]

    def _bound_launch(self, number: int, launch: Launch) -> list[str]:
        instances = instances_of(launch, self.text.signature(launch), self.values)
        shared_bytes = cpp_integer(launch.shared_bytes, self._names)
        values = [
            (f"value_{number}_{position}", cpp_type, cpp_value(argument, self._names, cpp_type))
            for position, argument, cpp_type in self._numbers(launch)
        ]
        made = [
            *self._chosen_kernel(number, launch, instances),
            f"const support::Size grid_{number} = {self._size(launch.grid)};",
            f"const support::Size block_{number} = {self._size(launch.block)};",
            f"launch_{number} = support::bind(kernels::all[kernel_{number}], kernels::names[kernel_{number}], "
            f"grid_{number}, block_{number}, {shared_bytes}, {_attributes(launch)});",
            *(f"{name} = {value};" for name, _, value in values),
        ]
        declared = [f"support::Launch launch_{number};", *(f"{cpp_type} {name}{{}};" for name, cpp_type, _ in values)]
        comment = [f"// {line}" for line in print_step(launch).splitlines()]
        if launch.condition is None:
            return [*comment, *declared, *cpp_scope("", made)]
        return [*comment, *declared, *cpp_scope(f"if ({cpp_condition(launch.condition, self._names)}) ", made)]

    def _chosen_kernel(self, number: int, launch: Launch, instances: Sequence[KernelInstance]) -> list[str]:
        """Select the entry of the kernel table to launch."""
        if not instances:
            raise PlanError(
                f"the template arguments of '{launch.kernel}' depend on the shapes, and no configuration of the task "
                "takes this launch, so that there is nothing to compile",
                line=launch.span.line,
                next_step="pass the dim as a number, or give the task the configurations that matter",
            )
        if not instances[0].conditions:
            return [f"const int kernel_{number} = {self.kernel_index(instances[0].name)};"]
        lines = [f"int kernel_{number} = -1;"]
        for instance in instances:
            tests = " && ".join(
                f"{cpp_expression(argument, self._names).text} == {cpp_expression(Constant(value), self._names).text}"
                for argument, value in instance.conditions
            )
            lines += [f"if ({tests}) kernel_{number} = {self.kernel_index(instance.name)};"]
        names = ", ".join(instance.name for instance in instances)
        reason = cpp_string(f"of '{launch.kernel}' only these were compiled: {names}")
        return [*lines, f"if (kernel_{number} < 0) throw plan::Unfit{{{reason}}};"]

    def _numbers(self, launch: Launch) -> Iterable[tuple[int, Expression, str]]:
        """Return position, expression and C++ type of the arguments that are numbers."""
        for position, (argument, type_) in enumerate(
            zip(launch.arguments, self.text.number_types(launch), strict=True)
        ):
            if type_:
                yield position, argument, _FIXED_WIDTH.get(type_, type_)

    def _taken(self, number: int, step: Fill | Launch | LibraryStep) -> list[str]:
        match step:
            case Fill(tensor, value):
                is_zero = isinstance(value, Constant) and value.value == 0
                call = "zero_()" if is_zero else f"fill_(number_{number})"
                return [f"{self._tensor(tensor)}.{call};"]
            case Launch():
                return [f"launch_{number}({', '.join(['stream', *self._launch_arguments(number, step)])});"]
            case LibraryStep():
                return self._library(number, step)

    def _launch_arguments(self, number: int, launch: Launch) -> Iterable[str]:
        parameters: Sequence[KernelParameter] = self.text.signature(launch).parameters
        for position, (argument, parameter) in enumerate(zip(launch.arguments, parameters, strict=True)):
            if not parameter.is_pointer:
                yield f"value_{number}_{position}"
            elif isinstance(argument, Name) and argument.id in self._inputs:
                yield f"ready_{argument.id}.const_data_ptr()"
            else:
                assert isinstance(argument, Name), "the plan was checked"
                yield f"{self._tensor(argument.id)}.mutable_data_ptr()"

    def _library(self, number: int, step: LibraryStep) -> list[str]:
        arguments = ", ".join(self._library_argument(argument) for argument in step.arguments)
        space, base = step.function.split("::")
        call = f"at::{base}({arguments})" if space == "aten" else f"support::{space}_{base}({arguments})"
        results = [self._tensor(result) for result in step.results]
        if len(results) == 1 and not step.function.endswith("_backward"):
            lines = [f"{results[0]} = {call}.contiguous();"]
        else:
            defined = [f"{result} = returned.at({index}).contiguous();" for index, result in enumerate(results)]
            lines = cpp_scope("", [f"const auto returned = support::defined({call});", *defined])
        comment = f"// {print_step(step)}"
        return [comment, *(lines if step.condition is None else cpp_scope(f"if (taken_{number}) ", lines))]

    def _library_argument(self, argument: LibraryArgument) -> str:
        if argument is None:
            return "{}"
        if isinstance(argument, tuple):
            items = [self._library_argument(item) for item in argument]
            is_flags = all(isinstance(item, Constant) and isinstance(item.value, bool) for item in argument)
            kind = f"std::array<bool, {len(items)}>" if is_flags and items else "std::vector<int64_t>"
            return f"{kind}{{{', '.join(items)}}}"
        if isinstance(argument, str):
            return f"ready_{argument}" if argument in self._inputs else self._tensor(argument)
        found = cpp_expression(argument, self._names)
        return f"plan::as<int64_t>({found.text})" if found.type == "integer" else found.text

    # names, dims and tensors

    @cached_property
    def _inputs(self) -> frozenset[str]:
        return frozenset(tensor.name for tensor in self.text.inputs)

    @property
    def _fixed(self) -> list[tuple[OperatorArgument, Number]]:
        return [(argument, argument.fixed) for argument in self.text.arguments if argument.fixed is not None]

    def _tensor(self, name: str) -> str:
        """Return the tensor's C++ name. An argument has the operator's name for it."""
        return cpp_identifier(self.text.rename(name) if name in self._inputs else name)

    @cached_property
    def _names(self) -> CppNames:
        homes = self.text.homes()
        spelled = {dim: cpp_identifier(dim) for dim in homes}
        types: dict[str, CppType] = dict.fromkeys(homes, "integer")
        for parameter in self.text.operation.parameters:
            if isinstance(parameter, ScalarParameter):
                argument = cpp_identifier(self.text.rename(parameter.name))
                spelled[parameter.name] = f"Integer({argument})" if parameter.type == "int" else argument
                types[parameter.name] = _PLAN_TYPES[parameter.type]
        return CppNames(spelled, types)

    def _dims(self) -> list[str]:
        """Return every dim by name, including unused ones."""
        return [
            f"[[maybe_unused]] const Integer {cpp_identifier(dim)} = {self._tensor(tensor)}.size({position});"
            for dim, (tensor, position) in self.text.homes().items()
        ]

    def _taken_flag(self, number: int, condition: Expression) -> str:
        return f"const bool taken_{number} = {cpp_condition(condition, self._names)};"

    def _shape(self, tensor: TensorParameter) -> str:
        return self._size(tensor.dims)

    def _size(self, size: Sequence[Expression]) -> str:
        return f"{{{', '.join(cpp_integer(part, self._names) for part in size)}}}"

    def _allocation(self, tensor: TensorParameter, first: str) -> str:
        arguments = f"shape_{tensor.name}, {AT_TYPES[tensor.dtype]}, {first}.device()"
        return f"Tensor {self._tensor(tensor.name)} = support::allocate({arguments});"

    def _made_by_library(self, allocated: Sequence[TensorParameter]) -> list[str]:
        """Return the tensors that library steps allocate; the operation does not."""
        kept = {tensor.name for tensor in allocated}
        steps = (step for step in self.text.operation.steps if isinstance(step, LibraryStep))
        made = dict.fromkeys(result for step in steps for result in step.results)
        return [name for name in made if name not in kept]


def _refused(condition: str, reason: str) -> str:
    return f"if ({condition}) return {cpp_string(reason)};"


def _differs(argument: OperatorArgument, value: Number) -> str:
    name = cpp_identifier(argument.name)
    if isinstance(value, bool):
        return f"!{name}" if value else name
    return f"{name} != {value if isinstance(value, int) else cpp_double(value)}"


def _attributes(launch: Launch) -> str:
    given = dict(launch.attributes)
    return f"{{{', '.join(str(given.get(name, 0)) for name in ATTRIBUTES)}}}" if given else "{}"


_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const consteval
    constexpr constinit continue co_await co_return co_yield decltype default delete do double else enum explicit
    export extern false final float for friend goto if import inline int long module mutable namespace new noexcept
    not not_eq nullptr operator or or_eq override private protected public register requires return short signed
    sizeof static static_assert struct switch template this throw true try typedef typeid typename union unsigned
    using virtual void volatile wchar_t while xor xor_eq I EOF NULL assert errno signbit isnan
"""
_TAKEN = "at c10 std plan support torch kernels Tensor Integer guard device stream reason returned ctx found keys"
_RESERVED = frozenset((*_KEYWORDS.split(), *_TAKEN.split()))
_LOCAL = re.compile(r"(launch|kernel|grid|block|value|shape|ready|taken|number)_\w+")


def cpp_identifier(name: str) -> str:
    """Return `name` with an underscore appended when C++ or the surrounding code uses it."""
    return f"{name}_" if name in _RESERVED or _LOCAL.fullmatch(name) else name
