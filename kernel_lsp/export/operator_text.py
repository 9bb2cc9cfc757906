"""The operator file: one Python text that needs torch and the `.cu` beside it, and nothing of ours."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernel_lsp.core.plan import KernelSignature, LaunchPlan, Operation
from kernel_lsp.core.task import Task, TaskScalar, TaskTensor
from kernel_lsp.errors import PlanError, TargetError
from kernel_lsp.export.function_text import offered_names, use_functions
from kernel_lsp.export.module_text import is_module
from kernel_lsp.export.operation_text import (
    NAMESPACE,
    SCHEMA_TYPES,
    OperationText,
    OperatorArgument,
    dtype_and_shape,
    names_in_steps,
)
from kernel_lsp.export.python_text import (
    LINE_LENGTH,
    bracketed,
    indented,
    literal,
    python_identifier,
    python_number,
    returned,
    string_literal,
    tuple_text,
    unpacked,
)
from kernel_lsp.export.reference_text import reference_function
from kernel_lsp.export.runtime_text import PARTS, runtime_imports, runtime_names, runtime_sections

OPERATOR_IMPORTS = (
    "import functools",
    "import json",
    "import math",
    "import types",
    "import warnings",
    "from collections.abc import Callable",
    "from operator import attrgetter",
    "from pathlib import Path",
    "import torch.nn.functional as F",
    "from torch import Tensor",
)
"""What the parts above the runtime may use; a file gets those that it mentions."""
LOCAL_NAMES = (
    "_kernels",
    "inputs_key",
    "launches",
    "stream",
    "device_index",
    "reason",
    "holds",
    "ctx",
    "inputs",
    "arguments",
    "needed",
    "returned",
    "value",
    "found",
    "results",
    "owned",
    "output",
    "module",
    "why",
    "gradients",
)
MAX_LAUNCHES = 64
ORIGIN = (
    "The kernels and their launch plan are in {name}.cu beside this file. They are compiled at first use, by the NVRTC "
    "that comes with PyTorch, and cached."
)


@dataclass(frozen=True)
class OperatorParts:
    """What an operator file is made of. `verification` says in a sentence or more how the kernels were checked."""

    task: Task
    plan: LaunchPlan
    signatures: tuple[KernelSignature, ...]
    verification: str
    namespace: str = NAMESPACE


def operator_text(parts: OperatorParts) -> str:
    """The file without its marker line. Raises PlanError for a plan that does not fit its kernels."""
    operator = OperatorText(parts)
    body = [
        *section(operator.public_function()),
        *section(*operator.module_part()),
        *section(operator.reference()),
        *section(*operator.operation_functions(operator.forward)),
        *section(*(operator.operation_functions(operator.backward) if operator.backward else ())),
        *section(*operator.autograd_functions()),
        *section(operator.library_function()),
        *section(operator.registration()),
        *section(*(section.splitlines() for section in runtime_sections())),
    ]
    return "\n".join([*operator.docstring(), "", *imports("\n".join(body)), "", operator.public_names(), *body, ""])


class OperatorText:
    """Prints the parts that need to know the task and the plan."""

    def __init__(self, parts: OperatorParts) -> None:
        self._parts, self.task, self.plan = parts, parts.task, parts.plan
        self.name = parts.task.name
        self._reserved = frozenset({*runtime_names(), *_own_names(self.name)})
        self._arguments = tuple(self._argument(index) for index in range(len(parts.task.arguments)))
        if not parts.task.tensors:
            raise TargetError(f"{self.name} takes no tensor, so no operator can be made of it", file=parts.task.target)
        self.forward = self._operation(self.name, parts.plan.forward, self._arguments, parts.signatures)
        gradients = tuple(self._gradient(result.name) for result in self._differentiable_results)
        self.backward: OperationText | None = None
        if parts.plan.backward is not None:
            arguments = (*gradients, *self._arguments)
            self.backward = self._operation(f"{self.name}_backward", parts.plan.backward, arguments, parts.signatures)

    # what a reader sees first

    def docstring(self, origin: str = ORIGIN, module: str = "") -> list[str]:
        """What this is, where it is from, how it was verified, what it takes. `module` is what users import from."""
        paragraphs = [
            f"Made by kernel-lsp from {self.task.target}. {origin.format(name=self.name)}",
            f"Verified: {self._parts.verification}",
            "The kernels take these inputs, on one CUDA device; PyTorch computes everything else:",
        ]
        offered = ", ".join(offered_names(self.task) if is_module(self.task) else (self.name,))
        lines = [f'"""`{self.name}` as a CUDA operator.', ""]
        for paragraph in paragraphs:
            lines += [*textwrap.wrap(_plain(paragraph), LINE_LENGTH), ""]
        lines += [*(f"    {line}" for line in self.contract()), "", "Use it so:", ""]
        return [*lines, f"    from {module or self.name} import {offered}", '"""']

    def public_names(self) -> str:
        names = offered_names(self.task)
        return f"__all__ = [{', '.join(string_literal(name) for name in names)}]"

    def public_function(self) -> list[str]:
        """The function that users call."""
        names = self.forward.argument_names
        body = [
            *bracketed(f"reason = _{self.name}_outside(", names, ")", depth=1),
            "if reason:",
            *indented([f'_say_once("{self.name}", reason)']),
            *indented(bracketed(f"return {self.name}_reference(", names, ")", depth=2)),
            *bracketed(f"return {self.forward.qualified_name}(", names, ")", depth=1),
        ]
        return self.documented_function(body)

    def documented_function(self, body: Sequence[str]) -> list[str]:
        """The function that users call, with its documentation and this body."""
        declarations = [
            argument.declaration + (f" = {argument.default}" if argument.default else "")
            for argument in self._arguments
        ]
        docstring = [
            f'"""{_plain(self._title())}',
            "",
            "Args:",
            *(f"    {argument.name}: {argument.description}" for argument in self._arguments),
            "",
            "Returns:",
            *(
                f"    {result.name}: {dtype_and_shape(result.dtype, result.dims)}"
                for result in self.forward.operation.results
            ),
            '"""',
        ]
        definition = bracketed(f"def {self.name}(", declarations, f") -> {self.forward.returns}:")
        return [*definition, *indented([*docstring, *body])]

    def module_part(self) -> list[list[str]]:
        """How what it was made from is made to use the operator."""
        return use_functions(self.task, self.forward)

    def reference(self) -> list[str]:
        """The PyTorch code that the kernels replace."""
        return reference_function(self.task, self.forward)

    def _title(self) -> str:
        what = self.task.target.rpartition("::")[2].rpartition("/")[2] or self.name
        return f"{what}: by CUDA kernels where they can, by PyTorch where not."

    def contract(self) -> Iterable[str]:
        """What the kernels take, a line each."""
        for tensor in self.forward.inputs:
            yield f"{self.forward.rename(tensor.name)}: {dtype_and_shape(tensor.dtype, tensor.dims)}"
        for argument in self._arguments:
            if argument.fixed is not None:
                yield f"{argument.name} == {python_number(argument.fixed)}"
        for condition in self.forward.operation.where:
            yield str(condition.expression)

    # the operations

    def operation_functions(self, text: OperationText) -> list[list[str]]:
        """The functions of one operation, in the order in which they call each other."""
        *contract, by_pytorch = self.contract_functions(text)
        return [*contract, text.bind_function(), text.cuda_function(), by_pytorch]

    def contract_functions(self, text: OperationText) -> list[list[str]]:
        """What is there of an operation where no kernel runs: its contract, its fake and its fallback."""
        outside_shapes, by_pytorch = self._forward_fallback() if text is self.forward else self._backward_fallback(text)
        return [text.mismatch_function(), text.outside_function(), text.fake_function(outside_shapes), by_pytorch]

    def _forward_fallback(self) -> tuple[list[str], list[str]]:
        text = self.forward
        reference = bracketed(f"results = {self.name}_reference(", text.argument_names, ")", depth=2)
        inputs = [argument.name for argument in self._arguments if argument.is_tensor]
        is_single = len(text.operation.results) == 1
        body = [
            '"""The results by PyTorch, in tensors of their own as the operator must return them."""',
            *literal("inputs = (", inputs, ")", depth=1),
            f"with torch.autocast({inputs[0]}.device.type, enabled=False):",
            *indented(reference),
            "return _own((results,), inputs)[0]" if is_single else "return _own(results, inputs)",
        ]
        empty = "return _empty_like(results)" if is_single else "return tuple(map(_empty_like, results))"
        return [*reference, empty], [*text.define("_", "_by_pytorch", text.returns), *indented(body)]

    def _backward_fallback(self, text: OperationText) -> tuple[list[str], list[str]]:
        wanted = [self.forward.rename(result.name.removeprefix("grad_")) for result in text.operation.results]
        names = [argument.name for argument in self._arguments]
        needed = [str(name in wanted) for name in names]
        gradients = tuple_text([argument.name for argument in text.arguments[: len(self._differentiable_results)]])
        inputs = [argument.name for argument in text.arguments if argument.is_tensor]
        found = [f"found[{names.index(name)}]" for name in wanted]
        call = [f"{self.name}_reference", "arguments", "needed", gradients]
        body = [
            '"""The gradients by PyTorch: the reference again, under autograd."""',
            *literal("arguments = (", names, ")", depth=1),
            *literal("needed = (", needed, ")", depth=1),
            "with _autograd_in_operator():",
            *indented(bracketed("found = _gradients(", call, ")", depth=2)),
            *literal("results = (", found, ")", depth=1),
            *literal("inputs = (", inputs, ")", depth=1),
            "owned = _own(results, inputs)",
            "return owned" if len(wanted) > 1 else "return owned[0]",
        ]
        empties = [f"_empty_like({name})" for name in wanted]
        return returned(empties, depth=2), [*text.define("_", "_by_pytorch", text.returns), *indented(body)]

    def library_function(self) -> list[str]:
        """Where the kernels come from."""
        names = [string_literal(name) for name in self._kernel_names]
        return [
            "@functools.lru_cache(maxsize=1)",
            "def _kernels() -> KernelLibrary:",
            *indented(
                [
                    f'"""The kernels of {self.name}.cu, read when a GPU first needs them."""',
                    *literal("names = (", names, ")"),
                    f'path = Path(__file__).with_name("{self.name}.cu")',
                    'return KernelLibrary(path.read_text(encoding="utf-8"), str(path), names)',
                ]
            ),
        ]

    # autograd

    @property
    def is_differentiable(self) -> bool:
        has_input = any(tensor.type.dtype.is_floating for tensor in self.task.tensors)
        return has_input and bool(self._differentiable_results)

    def autograd_functions(self) -> list[list[str]]:
        """What is kept of a forward, and the gradients from it."""
        if not self.is_differentiable:
            return []
        names = [argument.name for argument in self._arguments]
        tensors = [argument.name for argument in self._arguments if argument.is_tensor]
        numbers = [argument.name for argument in self._arguments if not argument.is_tensor]
        setup = [*unpacked(names, "inputs", 1), *bracketed("ctx.save_for_backward(", tensors, ")", depth=1)]
        restore = unpacked(tensors, "ctx.saved_tensors", 1)
        if numbers:
            setup += literal("ctx.numbers = (", numbers, ")", depth=1)
            restore += unpacked(numbers, "ctx.numbers", 1)
        results = [self.forward.rename(f"grad_{result.name}") for result in self.forward.operation.results]
        declarations = ["ctx: Any", *(f"{name}: Tensor" for name in results)]
        return [
            [
                *bracketed(
                    f"def _{self.name}_setup(", ["ctx: Any", "inputs: tuple[Any, ...]", "output: Any"], ") -> None:"
                ),
                *indented(['"""What the gradients need of a forward."""', *setup]),
            ],
            [
                *bracketed(f"def _{self.name}_gradients(", declarations, ") -> tuple[Tensor | None, ...]:"),
                *indented(['"""The gradient for each argument; None for those that need none."""', *restore]),
                *indented(self._gradient_body()),
            ],
        ]

    def _gradient_body(self) -> list[str]:
        if self.backward is None:
            why = "# There is no backward kernel: run the reference again, under autograd."
            return [why, *self._gradients_again(depth=1)]
        missing = self.arguments_without_gradient()
        why = "# A second derivative is asked for" + (", or a gradient that no kernel makes." if missing else ".")
        asks = "torch.is_grad_enabled()"
        if missing:
            asks += f" or any(ctx.needs_input_grad[index] for index in {tuple_text(list(map(str, missing)))})"
        return [f"if {asks}:", *indented([why, *self._gradients_again(depth=2)]), *self._gradients_by_kernel()]

    def _gradients_again(self, depth: int) -> list[str]:
        gradients = tuple_text([self.forward.rename(f"grad_{r.name}") for r in self._differentiable_results])
        arguments = literal("arguments = (", [argument.name for argument in self._arguments], ")", depth)
        call = [f"{self.name}_reference", "arguments", "ctx.needs_input_grad", gradients]
        return [*arguments, *bracketed("return _gradients(", call, ")", depth)]

    def _gradients_by_kernel(self) -> list[str]:
        assert self.backward is not None
        results = [self.backward.rename(result.name) for result in self.backward.operation.results]
        operator = f"{self.backward.qualified_name}("
        left = ", ".join(results)
        values = results
        if len(results) > 1 and len(left) + len(operator) > LINE_LENGTH // 2:
            left, values = "found", [f"found[{index}]" for index in range(len(results))]
        by_name = dict(zip(results, values, strict=True))
        wanted = [by_name.get(f"grad_{argument.name}", "None") for argument in self.task.arguments]
        passed = [argument.name for argument in self.backward.arguments]
        returns = [f"return ({wanted[0]},)"] if len(wanted) == 1 else returned(wanted, depth=1)
        return [*bracketed(f"{left} = {operator}", passed, ")", depth=1), *returns]

    def arguments_without_gradient(self) -> list[int]:
        """Which arguments might need a gradient and get none from the backward's kernels."""
        assert self.backward is not None
        made = {result.name for result in self.backward.operation.results}
        return [
            index
            for index, argument in enumerate(self.task.arguments)
            if isinstance(argument, TaskTensor)
            and argument.type.dtype.is_floating
            and f"grad_{argument.name}" not in made
        ]

    def registration(self) -> list[str]:
        """The operators, for the dispatcher."""
        lines = [f'_LIBRARY = torch.library.Library("{self._parts.namespace}", "FRAGMENT")']
        for text in (self.forward, self.backward):
            if text is None:
                continue
            lines += _define(text.schema)
            name, cuda, by_pytorch = f'"{text.name}"', f"_{text.name}_cuda", f"_{text.name}_by_pytorch"
            fake = [f'"{text.namespace}::{text.name}"', f"_{text.name}_fake", "lib=_LIBRARY"]
            lines += bracketed("_LIBRARY.impl(", [name, cuda, '"CUDA"'], ")")
            lines += bracketed("_LIBRARY.impl(", [name, by_pytorch, '"CompositeExplicitAutograd"'], ")")
            lines += bracketed("torch.library.register_fake(", fake, ")")
        if self.is_differentiable:
            lines += bracketed(
                "torch.library.register_autograd(",
                [
                    f'"{self._parts.namespace}::{self.name}"',
                    f"_{self.name}_gradients",
                    f"setup_context=_{self.name}_setup",
                    "lib=_LIBRARY",
                ],
                ")",
            )
        return lines

    # arguments

    @property
    def _differentiable_results(self) -> list:
        return [result for result in self.plan.forward.results if result.dtype.is_floating]

    @property
    def _kernel_names(self) -> tuple[str, ...]:
        backward = self.backward.kernel_names if self.backward is not None else ()
        return tuple(dict.fromkeys((*self.forward.kernel_names, *backward)))

    def _argument(self, index: int) -> OperatorArgument:
        argument = self.task.arguments[index]
        name = python_identifier(argument.name, self._reserved)
        if isinstance(argument, TaskTensor):
            place = f", the module's {argument.qualified_name}" if argument.qualified_name else ""
            description = dtype_and_shape(argument.type.dtype, argument.type.shape) + place
            return OperatorArgument(name, "Tensor", "Tensor", description)
        value = python_number(argument.value)
        is_taken = all(argument.name in names_in_steps(operation) for operation in self.plan.operations)
        only = f", verified at {value}" if is_taken else f", only {value}"
        return OperatorArgument(
            name=name,
            annotation=argument.type,
            schema_type=SCHEMA_TYPES[argument.type],
            description=f"{argument.type}{only}",
            default=value if self._is_last(index) else None,
            fixed=None if is_taken else argument.value,
        )

    def _is_last(self, index: int) -> bool:
        """Whether only numbers follow, so that a default may stand."""
        return all(isinstance(argument, TaskScalar) for argument in self.task.arguments[index:])

    def _gradient(self, result: str) -> OperatorArgument:
        name = python_identifier(f"grad_{result}", self._reserved)
        return OperatorArgument(name, "Tensor", "Tensor", f"the gradient of {result}")

    def _operation(
        self,
        name: str,
        operation: Operation,
        arguments: tuple[OperatorArgument, ...],
        signatures: tuple[KernelSignature, ...],
    ) -> OperationText:
        text = OperationText(name, operation, arguments, signatures, self._reserved, self._parts.namespace)
        known = {argument.name for argument in arguments}
        for parameter in operation.parameters:
            if text.rename(parameter.name) not in known:
                message = f"'{parameter.name}' of {operation.name} is no argument of {self.task.target}"
                raise PlanError(message, line=parameter.span.line, next_step="use the names of the task's arguments")
        if not text.inputs:
            raise PlanError(f"{operation.name} takes no tensor", line=operation.span.line)
        return text


# --- below: parts of the file


def section(*functions: Sequence[str]) -> list[str]:
    """Top-level definitions, each after two empty lines."""
    return [line for function in functions if function for line in ("", "", *function)]


def _define(schema: str) -> list[str]:
    """The declaration of an operator, its schema over several lines where it is long."""
    tags = "tags=(torch.Tag.pt2_compliant_tag,)"
    if len(schema) < LINE_LENGTH - len('    "",'):
        return bracketed("_LIBRARY.define(", [string_literal(schema), tags], ")")
    pieces = textwrap.wrap(schema, LINE_LENGTH - len('     "",'), break_long_words=False)
    texts = [string_literal(f"{piece} ") for piece in pieces[:-1]]
    return ["_LIBRARY.define(", *indented([*texts, f"{string_literal(pieces[-1])},", f"{tags},"]), ")"]


def imports(body: str, parts: tuple[str, ...] = PARTS) -> list[str]:
    """Those of the runtime, and of the rest what the body mentions, merged and sorted as isort does."""
    used = [line for line in OPERATOR_IMPORTS if re.search(_use_of(line), body)]
    lines = _merged({*runtime_imports(parts), *used})
    third_party = {line for line in lines if re.match(r"(from|import) torch\b", line)}
    return [
        "from __future__ import annotations",
        "",
        *sorted(lines - third_party, key=_import_order),
        "",
        *sorted(third_party, key=_import_order),
    ]


def _merged(lines: Iterable[str]) -> set[str]:
    """One line per module that names are imported from."""
    merged = {line for line in lines if line.startswith("import ")}
    names: dict[str, set[str]] = {}
    for line in lines:
        if match := re.fullmatch(r"from (\S+) import (.+)", line):
            names.setdefault(match[1], set()).update(match[2].split(", "))
    del names["__future__"]
    return merged | {f"from {module} import {', '.join(sorted(found))}" for module, found in names.items()}


def _import_order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line.split()[1]


def _use_of(line: str) -> str:
    """A pattern for text that needs the import."""
    return rf"\b{_bound_name(line)}" + (r"\." if line.startswith("import ") else r"\b")


def _bound_name(line: str) -> str:
    alias = ast.parse(line).body[0].names[0]  # type: ignore[attr-defined]
    return str(alias.asname or alias.name)


def _own_names(name: str) -> set[str]:
    """What the file itself defines or uses as locals, so that no argument or dim may be called so."""
    imported = {_bound_name(line) for line in OPERATOR_IMPORTS}
    launches = {f"launch_{number}" for number in range(1, MAX_LAUNCHES + 1)}
    return {*imported, *launches, *LOCAL_NAMES, name, f"{name}_reference", "Launches", "torch", "F"}


def _plain(text: str) -> str:
    """Text that can stand in a docstring."""
    return text.replace("\\", "/").replace('"""', "'''")
