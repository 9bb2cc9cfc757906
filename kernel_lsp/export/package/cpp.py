"""The C++ of a package: the operator's registration, dispatch and gradients around the functions of its operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernel_lsp.export.package.cpp_text import cpp_lines, cpp_string
from kernel_lsp.export.package.instances import (
    KernelTable,
    configured_values,
    kernels_header,
    kernels_source,
    refuse_overloads,
)
from kernel_lsp.export.package.operation import ARGUMENT_TYPES, CppOperation, cpp_identifier
from kernel_lsp.export.python.operation_text import OperationText
from kernel_lsp.export.python.operator_text import OperatorText

_SYMBOLIC = {**ARGUMENT_TYPES, "int": "c10::SymInt"}
"""C++ types of arguments under tracing, where a size may be symbolic."""
_FROM_IVALUE = {"float": "toDouble", "int": "toSymInt", "bool": "toBool"}
WITHOUT_KERNELS = "this package was built without its CUDA kernels"


@dataclass(frozen=True)
class CppTexts:
    """The files that are made for one operator."""

    operator: str
    kernels_header: str
    kernels: str


def cpp_texts(operator: OperatorText) -> CppTexts:
    """Return the C++ of an operator, whose namespace is that of its package. Raises PlanError for code that cannot be
    compiled ahead of time: overloaded kernels, and templates over dims that no configuration fixes."""
    table = KernelTable()
    operations = [_operation(operator, text, table) for text in operator.operations]
    body = _Operator(operator, operations).lines()
    refuse_overloads(operator, table)
    return CppTexts(
        operator="\n".join(cpp_lines(body)) + "\n",
        kernels_header=kernels_header(table),
        kernels=kernels_source(operator.name, table),
    )


def _operation(operator: OperatorText, text: OperationText, table: KernelTable) -> CppOperation:
    values = configured_values(operator.task, operator.plan, text.operation, text.signatures)
    return CppOperation(text, values, table.index)


class _Operator:
    """Prints `operator.cpp`."""

    def __init__(self, operator: OperatorText, operations: Sequence[CppOperation]) -> None:
        self._operator, self._operations = operator, operations
        self._forward = operations[0]
        self._package = operator.forward.namespace
        self._arguments = self._forward.text.arguments
        self._n_results = len(operator.forward.operation.results)

    def lines(self) -> list[str]:
        functions = [function for operation in self._operations for function in self._functions(operation)]
        differentiable = self._autograd() if self._operator.is_differentiable else []
        return [
            *self._head(),
            *(line for function in [*functions, *differentiable] for line in ("", *function)),
            "",
            "}  // namespace",
            *self._registration(),
        ]

    def _head(self) -> list[str]:
        headers = sorted({header for operation in self._operations for header in operation.library_headers})
        return [
            f"// `{self._operator.name}` as a PyTorch operator. Inside its contract it is computed by the kernels of",
            f"// {self._operator.name}.cu, everywhere else by the PyTorch code that they replace.",
            "#include <ATen/core/dispatch/Dispatcher.h>",
            "#include <torch/csrc/autograd/custom_function.h>",
            "#include <torch/library.h>",
            "",
            *(f"#include {header}" for header in headers),
            "",
            "#include <string>",
            "#include <tuple>",
            "#include <vector>",
            "",
            '#include "operator_support.h"',
            "#ifdef WITH_KERNELS",
            '#include "kernels.h"',
            "#endif",
            "",
            "namespace {",
            "",
            "using at::Tensor;",
            "using plan::Integer;",
            'using plan::operator""_i;',
            "namespace autograd = torch::autograd;",
        ]

    # the operations

    def _functions(self, operation: CppOperation) -> list[list[str]]:
        name, passed = operation.name, operation.passed
        return [
            operation.outside_function(),
            self._call_function(f"{name}_by_pytorch", operation, "c10::string_view reason, ", "reason, "),
            ["#ifdef WITH_KERNELS", *operation.kernels_function(), ""],
            [
                f"{operation.returns} {name}_cuda({operation.parameters}) {{",
                f"    const char* reason = {name}_outside({passed});",
                "    if (reason == nullptr) {",
                "        try {",
                f"            return {name}_by_kernels({passed});",
                "        } catch (const plan::Unfit& unfit) {",
                "            reason = unfit.reason;",
                "        }",
                "    }",
                f"    return call_{name}_by_pytorch(reason, {passed});",
                "}",
                "#endif",
            ],
            [
                f"{operation.returns} {name}_elsewhere({operation.parameters}) {{",
                f"    const char* reason = {name}_outside({passed});",
                f"    if (reason == nullptr) reason = {cpp_string(WITHOUT_KERNELS)};",
                f"    return call_{name}_by_pytorch(reason, {passed});",
                "}",
            ],
        ]

    def _call_function(self, called: str, operation: CppOperation, declared_first: str, passed_first: str) -> list[str]:
        """Print ``call_<called>(...)``, which calls the operator through the dispatcher."""
        types = [declared_first.split(" ")[0].removesuffix(",")] if declared_first else []
        types += [_SYMBOLIC[argument.annotation] for argument in operation.text.arguments]
        declared = ", ".join(f"{_SYMBOLIC[a.annotation]} {cpp_identifier(a.name)}" for a in operation.text.arguments)
        return [
            f"{operation.returns} call_{called}({declared_first}{declared}) {{",
            "    static const auto found = c10::Dispatcher::singleton()"
            f'.findSchemaOrThrow("{self._package}::{called}", "")',
            f"        .typed<{operation.returns}({', '.join(types)})>();",
            f"    return found.call({passed_first}{operation.passed});",
            "}",
        ]

    # gradients

    def _autograd(self) -> Iterable[list[str]]:
        for operation in self._operations:
            yield self._call_function(operation.name, operation, "", "")
        yield self._gradients_call()
        yield self._function_class()
        yield self._autograd_function()

    def _gradients_call(self) -> list[str]:
        """Print gradients by PyTorch, for those that no kernel computes and for higher-order derivatives."""
        name, operation = self._operator.name, self._forward
        types = ["at::IntArrayRef", "at::TensorList", *(_SYMBOLIC[a.annotation] for a in self._arguments)]
        declared = ", ".join(f"{_SYMBOLIC[a.annotation]} {cpp_identifier(a.name)}" for a in self._arguments)
        return [
            f"std::vector<Tensor> call_{name}_gradients("
            f"at::IntArrayRef needed, at::TensorList gradients, {declared}) {{",
            "    static const auto found = c10::Dispatcher::singleton()"
            f'.findSchemaOrThrow("{self._package}::{name}_gradients", "")',
            f"        .typed<std::vector<Tensor>({', '.join(types)})>();",
            f"    return found.call(needed, gradients, {operation.passed});",
            "}",
        ]

    def _function_class(self) -> list[str]:
        name, passed = self._operator.name, self._forward.passed
        declared = ", ".join(f"{_SYMBOLIC[a.annotation]} {cpp_identifier(a.name)}" for a in self._arguments)
        tensors = ", ".join(cpp_identifier(a.name) for a in self._arguments if a.is_tensor)
        kept = [f'ctx->saved_data["{a.name}"] = {cpp_identifier(a.name)};' for a in self._arguments if not a.is_tensor]
        single = self._n_results == 1
        results = [f"return call_{name}({passed});"]
        if not single:
            results = [
                f"auto results = call_{name}({passed});",
                f"return {{{', '.join(f'std::get<{i}>(results)' for i in range(self._n_results))}}};",
            ]
        return [
            f"struct {name}_function : autograd::Function<{name}_function> {{",
            f"    static {'Tensor' if single else 'autograd::variable_list'} forward(autograd::AutogradContext* ctx, "
            f"{declared}) {{",
            "        const at::AutoDispatchBelowADInplaceOrView below;",
            f"        ctx->save_for_backward({{{tensors}}});",
            *(f"        {line}" for line in (*kept, *results)),
            "    }",
            "",
            "    static autograd::variable_list backward(autograd::AutogradContext* ctx, "
            "const autograd::variable_list& given) {",
            *(f"        {line}" for line in self._backward_body()),
            "    }",
            "};",
        ]

    def _backward_body(self) -> list[str]:
        tensors = [argument for argument in self._arguments if argument.is_tensor]
        lines = ["const auto saved = ctx->get_saved_variables();"]
        lines += [f"const Tensor& {cpp_identifier(a.name)} = saved[{index}];" for index, a in enumerate(tensors)]
        lines += [
            f'const auto {cpp_identifier(a.name)} = ctx->saved_data["{a.name}"].{_FROM_IVALUE[a.annotation]}();'
            for a in self._arguments
            if not a.is_tensor
        ]
        edges = {argument.name: index for index, argument in enumerate(tensors)}
        needed = [f"ctx->needs_input_grad({edges[a.name]})" if a.is_tensor else "false" for a in self._arguments]
        results = self._operator.forward.operation.results
        gradients = [f"given[{index}]" for index, result in enumerate(results) if result.dtype.is_floating]
        lines += [f"const std::array<int64_t, {len(needed)}> needed = {{{', '.join(needed)}}};"]
        if self._operator.backward is not None:
            lines += self._backward_by_kernels(gradients)
        by_pytorch = f"call_{self._operator.name}_gradients(needed, {{{', '.join(gradients)}}}, {self._forward.passed})"
        return [
            *lines,
            f"const std::vector<Tensor> found = {by_pytorch};",
            "autograd::variable_list all(needed.size());",
            "for (size_t index = 0, next = 0; index < needed.size(); ++index) {",
            "    if (needed[index]) all[index] = found.at(next++);",
            "}",
            "return all;",
        ]

    def _backward_by_kernels(self, gradients: Sequence[str]) -> list[str]:
        """Print the kernels' own gradients. PyTorch computes second derivatives, and gradients that the kernels do
        not."""
        backward = self._operations[1]
        missing = self._operator.arguments_without_gradient()
        asks = " && ".join(["!at::GradMode::is_enabled()", *(f"!needed[{index}]" for index in missing)])
        passed = ", ".join([*gradients, self._forward.passed])
        outputs = [output.name for output in backward.text.operation.outputs]
        got = {name: "found" if len(outputs) == 1 else f"std::get<{i}>(found)" for i, name in enumerate(outputs)}
        results = self._operator.differentiable_results
        got |= {f"grad_{result.name}": given for result, given in zip(results, gradients, strict=True)}
        made = {result.name: got[result.same_as or result.name] for result in backward.text.operation.results}
        wanted = [made.get(f"grad_{argument.name}", "Tensor()") for argument in self._operator.task.arguments]
        return [
            f"if ({asks}) {{",
            f"    const auto found = call_{backward.name}({passed});",
            f"    return {{{', '.join(wanted)}}};",
            "}",
        ]

    def _autograd_function(self) -> list[str]:
        name, passed, returns = self._operator.name, self._forward.passed, self._forward.returns
        declared = ", ".join(f"{_SYMBOLIC[a.annotation]} {cpp_identifier(a.name)}" for a in self._arguments)
        types = ", ".join(_SYMBOLIC[argument.annotation] for argument in self._arguments)
        tensors = ", ".join(f"&{cpp_identifier(a.name)}" for a in self._arguments if a.is_tensor)
        applied = [f"return {name}_function::apply({passed});"]
        if self._n_results > 1:
            items = ", ".join(f"results[{index}]" for index in range(self._n_results))
            applied = [f"const auto results = {name}_function::apply({passed});", f"return {{{items}}};"]
        return [
            f"{returns} {name}_autograd(c10::DispatchKeySet keys, {declared}) {{",
            f"    if (support::needs_gradient({{{tensors}}})) {{",
            *(f"        {line}" for line in applied),
            "    }",
            "    static const auto found = c10::Dispatcher::singleton()"
            f'.findSchemaOrThrow("{self._package}::{name}", "").typed<{returns}({types})>();',
            "    const at::AutoDispatchBelowADInplaceOrView below;",
            f"    return found.redispatch(keys & c10::after_ADInplaceOrView_keyset, {passed});",
            "}",
        ]

    # registration

    def _registration(self) -> list[str]:
        names = [operation.name for operation in self._operations]
        schemas = [
            f"    m.def({cpp_string(operation.text.schema)}, {{at::Tag::pt2_compliant_tag}});"
            for operation in self._operations
        ]
        lines = [
            *_block(f"TORCH_LIBRARY({self._package}, m)", schemas),
            "",
            *_block(
                f"TORCH_LIBRARY_IMPL({self._package}, CompositeExplicitAutograd, m)",
                [f'    m.impl("{name}", {name}_elsewhere);' for name in names],
            ),
            "",
            "#ifdef WITH_KERNELS",
            *_block(
                f"TORCH_LIBRARY_IMPL({self._package}, CUDA, m)",
                [f'    m.impl("{name}", {name}_cuda);' for name in names],
            ),
            "#endif",
        ]
        if self._operator.is_differentiable:
            name = self._operator.name
            lines += ["", f"TORCH_LIBRARY_IMPL({self._package}, Autograd, m) {{"]
            lines += [f'    m.impl("{name}", {name}_autograd);', "}"]
        return ["", *lines]


def _block(head: str, lines: Sequence[str]) -> list[str]:
    return [f"{head} {{", *lines, "}"]
