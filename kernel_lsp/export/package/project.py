"""A run's result as a project that pip can install: the operator in C++, its kernels, its tests, and where it is from.

write_package(PackageParts(task, cu_text, plan, verdict_text, provenance), Path("rms_norm_package"))

Print the Python of a package. It loads the compiled operator, and implements what runs without kernels: shape
inference, the fallback, higher-order gradients.
"""

from __future__ import annotations

import pprint
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.core.expression import ExpressionError, Name, Number, evaluate_int, free_names
from kernel_lsp.core.measurement import Comparison
from kernel_lsp.core.model import Noun
from kernel_lsp.core.plan import LaunchPlan, Operation, TensorParameter
from kernel_lsp.core.task import Task, TaskScalar
from kernel_lsp.errors import TargetError
from kernel_lsp.export.files import write_files
from kernel_lsp.export.package.cpp import cpp_texts
from kernel_lsp.export.package.instances import scalars_of
from kernel_lsp.export.python.contract_text import contract_function
from kernel_lsp.export.python.function_text import offered_names
from kernel_lsp.export.python.operation_text import RUNTIME, OperationText
from kernel_lsp.export.python.operator_imports import imports
from kernel_lsp.export.python.operator_text import OperatorParts, OperatorText
from kernel_lsp.export.python.python_text import bracketed, indented, literal, section, string_literal
from kernel_lsp.export.python.runtime_text import USE_PARTS, runtime_text
from kernel_lsp.generate.codegen.helpers import HELPERS
from kernel_lsp.plan.contract import contract_holds
from kernel_lsp.plan.renaming import without_kept
from kernel_lsp.source.cuda import host_function_lines, kernel_signatures
from kernel_lsp.toolchain.integrity.conditionals import foreign_conditions
from kernel_lsp.toolchain.nvrtc.compile import may_need_own
from kernel_lsp.verify.model.cases import ALIGNMENTS
from kernel_lsp.verify.probes.sizes import PATTERNS

ORIGIN = (
    "The kernels and their launch plan are in csrc/{name}.cu of the source distribution. They were compiled when this "
    "package was installed."
)
COMPILED_FILES = "_C*.so"


def package_module(operator: OperatorText) -> str:
    """Print ``__init__.py`` of the package."""
    operations = [section(contract_function(text), _by_pytorch(operator, text)) for text in operator.operations]
    body = [
        *_PROVENANCE,
        *section(_public_function(operator), operator.use_part(), operator.reference()),
        *(line for lines in operations for line in lines),
        *section(_gradients(operator) if operator.is_differentiable else []),
        *section(*_LOADING),
        *section(_registration(operator)),
        "calls = OPERATOR.calls",
    ]
    # The operator's object needs the library, and the library needs all functions: load it between them.
    head = [*imports("\n".join(body)), "", f"from . import _kernel_runtime as {RUNTIME}"]
    return "\n".join([*operator.docstring(ORIGIN), "", *head, "", operator.public_names(), *body, ""])


_PROVENANCE = [
    "",
    'PROVENANCE = json.loads(Path(__file__).with_name("provenance.json").read_text(encoding="utf-8"))',
    '"""Where this is from: task, verdict, hashes, dates."""',
]


def _public_function(operator: OperatorText) -> list[str]:
    call = f"return {operator.forward.qualified_name}.default("
    return operator.documented_function(bracketed(call, operator.forward.argument_names, ")", depth=1))


def _by_pytorch(operator: OperatorText, text: OperationText) -> list[str]:
    """Print the functions that the C++ calls where the kernels do not run."""
    declared = [argument.declaration for argument in text.arguments]
    direction = "backward" if operator.backward is text else "forward"
    return [
        *bracketed(f"def _{text.name}_instead(", ["why: str", *declared], f") -> {text.returns}:"),
        *indented(
            [
                '"""Compute as the kernels would, by PyTorch; warn once of each reason."""',
                f"{RUNTIME}.fell_back(OPERATOR.key, why)",
                *bracketed(f"return OPERATOR.{direction}_by_pytorch(", text.argument_names, ")", depth=1),
            ]
        ),
    ]


def _gradients(operator: OperatorText) -> list[str]:
    name, arguments = operator.name, operator.forward.arguments
    declared = ["needed: Sequence[int]", "gradients: Sequence[Tensor]", *(a.declaration for a in arguments)]
    call = [f"{name}_reference", "arguments", "list(map(bool, needed))", "gradients"]
    return [
        *bracketed(f"def _{name}_gradients(", declared, ") -> list[Tensor]:"),
        *indented(
            [
                '"""Return the gradients that are needed, in order: the reference again, under autograd."""',
                *literal("arguments = (", [argument.name for argument in arguments], ")", depth=1),
                *bracketed(f"found = {RUNTIME}._gradients(", call, ")", depth=1),
                "return [gradient for gradient in found if gradient is not None]",
            ]
        ),
    ]


_LOADING = [
    f'''\
def _load() -> None:
    """Let PyTorch know the compiled operator."""
    files = sorted(Path(__file__).parent.glob("{COMPILED_FILES}"))
    if not files:
        how = "run `pip install --no-build-isolation .` in its source folder"
        raise ImportError(f"{{__name__}} was not compiled: {{how}}")
    torch.ops.load_library(str(files[0]))'''.splitlines()
]


def _operator(operator: OperatorText) -> list[str]:
    """Print the operator's object, which the functions above and the C++ call."""
    lines = [
        f"{string_literal(operator.name)},",
        "__name__,",
        f"{operator.forward.qualified_name}.default,",
        f"_{operator.name}_contract,",
        f"{operator.name}_reference,",
    ]
    if operator.backward is not None:
        lines += [f"backward_contract=_{operator.backward.name}_contract,"]
    return [f"OPERATOR = {RUNTIME}.Operator(", *indented([*lines, *operator.operator_arguments()]), ")"]


def _registration(operator: OperatorText) -> list[str]:
    package = operator.forward.namespace
    lines = ["_load()", *_operator(operator), f'_LIBRARY = torch.library.Library("{package}", "FRAGMENT")']
    for text in operator.operations:
        schema = text.schema.replace("(", "_by_pytorch(str reason, ", 1)
        lines += bracketed("_LIBRARY.define(", [string_literal(schema)], ")")
        arguments = [f'"{text.name}_by_pytorch"', f"_{text.name}_instead", '"CompositeExplicitAutograd"']
        lines += bracketed("_LIBRARY.impl(", arguments, ")")
        direction = "forward" if text is operator.forward else "backward"
        fake = [f'"{package}::{text.name}"', f"OPERATOR.fake_{direction}", "lib=_LIBRARY"]
        lines += bracketed("torch.library.register_fake(", fake, ")")
    if operator.is_differentiable:
        name = operator.name
        listed = operator.forward.schema.split("(", 1)[1].rsplit(" -> ", 1)[0]
        schema = f"{name}_gradients(int[] needed, Tensor[] gradients, {listed} -> Tensor[]"
        lines += bracketed("_LIBRARY.define(", [string_literal(schema)], ")")
        arguments = [f'"{name}_gradients"', f"_{name}_gradients", '"CompositeImplicitAutograd"']
        lines += bracketed("_LIBRARY.impl(", arguments, ")")
    return lines


SOURCES = Path(__file__).parents[1] / "package_source"
COPIED = ("plan_arithmetic.h", "operator_support.h", "sdpa.h")
PROVENANCE_FILE = "provenance.json"
MARKER_FILE = ".kernel-lsp-package"
"""File with the hash of every written file. A folder without it is never overwritten."""
OLDEST_TORCH = "2.6"
LICENCE = (
    "The kernels and the captured PyTorch code come from your code and from whoever proposed the kernels (see "
    "`provenance.json`); their licence is yours to say, and `pyproject.toml` names none. `operator_support.h`, "
    "`plan_arithmetic.h`, `sdpa.h` and `_kernel_runtime.py` are parts of kernel-lsp, under Apache-2.0."
)
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]*")
Shapes = dict[str, tuple[int, ...]]
MAX_CASES = 4


class Provenance(Noun):
    """Provenance of a package. `kernel_sha256` hashes the kernel's text, `task_sha256` the task as JSON."""

    task: str
    task_sha256: str
    kernel_sha256: str
    candidate_id: str
    proposed_by: str
    verified: str
    verified_on: str
    times: dict[str, Comparison] = {}
    library_steps: tuple[str, ...] = ()
    kernel_lsp_version: str
    torch_version: str
    date: str


@dataclass(frozen=True)
class PackageParts:
    """Inputs of a package. `name` is the import name; the package's docstring contains `provenance.verified`."""

    task: Task
    cu_text: str
    plan: LaunchPlan
    name: str
    provenance: Provenance


def default_package_name(task: Task) -> str:
    """Return the package name used when none is given: ``rms_norm_cuda``."""
    return f"{task.name}_cuda"


def write_package(parts: PackageParts, directory: Path) -> tuple[Path, ...]:
    """Write the project, all files or none, and return their paths.

    Raises TargetError when a file is in the way that is not ours or was changed, PlanError for a plan that cannot be
    compiled ahead of time, EnvironmentProblem when the directory cannot be written.
    """
    texts = package_texts(parts)
    return write_files(directory, texts, marker=MARKER_FILE)


def package_texts(parts: PackageParts) -> dict[str, str]:
    """Return the text of each file of the project, by its path in it. Raises TargetError and PlanError as
    `write_package`."""
    _check(parts)
    name, verified = parts.task.name, parts.provenance.verified
    operator = OperatorText(
        OperatorParts(
            parts.task, without_kept(parts.plan), kernel_signatures(parts.cu_text), verified, namespace=parts.name
        )
    )
    cpp = cpp_texts(operator)
    words = _words(parts, operator)
    return {
        "pyproject.toml": _PYPROJECT.format(**words),
        "setup.py": _filled("setup.py.txt", words),
        "MANIFEST.in": "graft csrc\ngraft tests\nglobal-exclude *.pyc __pycache__\n",
        "README.md": _filled("README.md.txt", words),
        f"csrc/{name}.cu": parts.cu_text,
        "csrc/kernels.cu": cpp.kernels,
        "csrc/kernels.h": cpp.kernels_header,
        "csrc/operator.cpp": cpp.operator,
        **{f"csrc/{file}": (SOURCES / file).read_text(encoding="utf-8") for file in COPIED},
        f"src/{parts.name}/__init__.py": package_module(operator),
        f"src/{parts.name}/_kernel_runtime.py": runtime_text(USE_PARTS),
        f"src/{parts.name}/py.typed": "",
        f"src/{parts.name}/{PROVENANCE_FILE}": parts.provenance.model_dump_json(indent=1) + "\n",
        f"tests/test_{name}.py": _filled("test_operator.py.txt", words),
    }


_PYPROJECT = """\
[build-system]
requires = ["setuptools>=64", "torch>={OLDEST_TORCH}"]
build-backend = "setuptools.build_meta"

[project]
name = "{PROJECT}"
version = "0.1.0"
description = "{NAME} as a PyTorch operator with CUDA kernels, made by kernel-lsp"
readme = "README.md"
requires-python = ">=3.9"
dependencies = ["torch>={OLDEST_TORCH}"]

[tool.setuptools.packages.find]
where = ["src"]

[tool.setuptools.package-data]
"*" = ["py.typed", "provenance.json"]
"""


def _check(parts: PackageParts) -> None:
    if not _IDENTIFIER.fullmatch(parts.name) or parts.name in ("torch", "aten", "prim", parts.task.name):
        raise TargetError(
            f"'{parts.name}' cannot be the name of the package",
            file=parts.task.target,
            next_step="give --name lower-case letters, digits and underscores, and not the operator's own name",
        )
    unmarked = host_function_lines(parts.cu_text)
    if unmarked:
        raise TargetError(
            "this function has no `__device__`: NVRTC takes it for one of the device, nvcc, which compiles a package, "
            "for one of the host",
            file=f"{parts.task.name}.cu",
            line=unmarked[0],
            next_step="write `__device__` before it, and check the kernel again",
        )
    if foreign := foreign_conditions(_without_our_helpers(parts.cu_text)):
        raise TargetError(
            f"'{foreign[0].name}' decides here what is compiled, and nvcc, which compiles a package, may answer "
            "otherwise than NVRTC, which compiled what was checked",
            file=f"{parts.task.name}.cu",
            line=foreign[0].line,
            next_step="decide by a macro that the file defines before, or by `launch[condition]:` in the plan",
        )


def _without_our_helpers(text: str) -> str:
    """Blank the generator's own device functions that ask for the architecture: nvcc's other branch, for the host and
    for GPUs before Ampere, holds no code but theirs."""
    for helper in HELPERS.values():
        if "__CUDA_ARCH__" in helper:
            text = text.replace(helper, "\n" * helper.count("\n"))
    return text


def _words(parts: PackageParts, operator: OperatorText) -> dict[str, str]:
    """Return the replacement of each ``@WORD@`` of the sources."""
    task = parts.task
    return {
        "OLDEST_TORCH": OLDEST_TORCH,
        "PROJECT": parts.name.replace("_", "-"),
        "PACKAGE": parts.name,
        "NAME": task.name,
        "TARGET": task.target,
        "WITHOUT_KERNELS": f"{parts.name.upper()}_WITHOUT_KERNELS",
        "OFFERED": ", ".join(offered_names(task)),
        "CONTRACT": "\n".join(f"    {line}" for line in operator.contract()),
        "GRADIENTS": _gradients_text(operator),
        "VERIFICATION": parts.provenance.verified,
        "FIGURES": "\n".join(_figures(parts.provenance)) or "No time was taken.",
        "LICENCE": LICENCE,
        "NEED_OWN_ARCHITECTURE": str(may_need_own(parts.cu_text)),
        **_test_words(task, operator),
    }


def _test_words(task: Task, operator: OperatorText) -> dict[str, str]:
    arguments = operator.forward.arguments
    names = dict(zip((a.name for a in task.arguments), (a.name for a in arguments), strict=True))
    small, empty = (find(task, operator.plan.forward) for find in (small_cases, empty_cases))
    cases, empties = ([{names[key]: s for key, s in shapes.items()} for shapes in found] for found in (small, empty))
    if not cases:
        raise TargetError("no shapes that the task knows are inside the plan's contract", file=task.target)
    numbers = {names[a.name]: a.value for a in task.arguments if isinstance(a, TaskScalar)}
    ranges = {names[t.name]: t.integer_range for t in task.tensors if t.integer_range is not None}
    return {
        "ARGUMENTS": _literal([argument.name for argument in arguments]),
        "DTYPES": _literal({names[t.name]: t.type.dtype.torch_name for t in task.tensors}),
        "RANGES": _literal(ranges),
        "NUMBERS": _literal(numbers),
        "CASES": _literal(cases),
        "EMPTY_CASES": _literal(empties),
        "CAN_BE_DOUBLE": str(not re.search(r"torch\.b?float", task.reference_source)),
    }


def _literal(value: object) -> str:
    return pprint.pformat(value, width=100, sort_dicts=False)


def _gradients_text(operator: OperatorText) -> str:
    if not operator.is_differentiable:
        return "there are none."
    if operator.backward is None:
        return "by PyTorch, which runs its own code again."
    return "by kernels; by PyTorch where a second derivative is asked for."


def _figures(provenance: Provenance) -> list[str]:
    """Print one line per comparison, each with its kind, GPU and date."""
    return [
        f"- {name}: {each.ours.time_us:.3g} us against {each.baseline_name} {each.baseline.time_us:.3g} us "
        f"({each.ours.kind} on {each.ours.gpu}, {each.ours.date})"
        for name, each in provenance.times.items()
    ]


def _filled(file: str, words: Mapping[str, str]) -> str:
    text = (SOURCES / file).read_text(encoding="utf-8")
    return re.sub(r"@([A-Z_]+)@", lambda match: words[match[1]], text)


def small_cases(task: Task, operation: Operation) -> list[Shapes]:
    """Return shapes of the task's tensors inside the contract of its forward; those of the task's configurations when
    no small ones are. Empty when the contract excludes all of them."""
    found: list[Shapes] = []
    for pattern in PATTERNS.values():
        drawn = (_sizes(task, operation, pattern, alignment) for alignment in ALIGNMENTS)
        aligned = (_shapes(task, operation, sizes) for sizes in drawn)
        shapes = next((s for s in aligned if s and _holds(task, operation, s)), None)
        if shapes is not None and shapes not in found:
            found.append(shapes)
    configured = [dict(configuration.shapes) for configuration in task.configurations]
    return found[:MAX_CASES] or [shapes for shapes in configured if _holds(task, operation, shapes)][:1]


def empty_cases(task: Task, operation: Operation) -> list[Shapes]:
    """Return shapes with one empty dim each. PyTorch itself decides if it accepts them."""
    sizes = _sizes(task, operation, next(iter(PATTERNS.values())), 1)
    return [shapes for dim in sizes if (shapes := _shapes(task, operation, {**sizes, dim: 0}))]


def _sizes(task: Task, operation: Operation, pattern: Sequence[int], alignment: int) -> dict[str, int]:
    """Return the pattern's sizes, rounded up, for the dims in order."""
    tensors = [p for p in operation.parameters if isinstance(p, TensorParameter)]
    scalars = scalars_of(task, operation)
    dims = dict.fromkeys(d.id for t in tensors for d in t.dims if isinstance(d, Name) and d.id not in scalars)
    return {dim: -(-pattern[position % len(pattern)] // alignment) * alignment for position, dim in enumerate(dims)}


def _shapes(task: Task, operation: Operation, sizes: Mapping[str, int]) -> Shapes:
    """Return the shape of every tensor at these sizes; empty when the sizes do not determine some dim."""
    tensors = [p for p in operation.parameters if isinstance(p, TensorParameter)]
    values = {**scalars_of(task, operation), **sizes}
    declared = {argument.name: argument.type.shape for argument in task.tensors}
    try:
        shapes = {t.name: tuple(evaluate_int(dim, values) for dim in t.dims) for t in tensors}
    except ExpressionError:
        return {}
    if not all(free_names(dim) <= values.keys() for tensor in tensors for dim in tensor.dims):
        return {}
    return _with_unread_tensors(shapes, declared, tensors, values)


def _with_unread_tensors(
    shapes: Shapes,
    declared: Mapping[str, tuple[str, ...]],
    tensors: Sequence[TensorParameter],
    values: Mapping[str, Number],
) -> Shapes:
    """Add shapes of tensors that the task has and its kernels do not read."""
    by_symbol = dict(values)
    for tensor in tensors:
        by_symbol.update(zip(declared[tensor.name], shapes[tensor.name], strict=False))
    try:
        others = {
            name: tuple(int(dim) if dim.isdigit() else int(by_symbol[dim]) for dim in dims)
            for name, dims in declared.items()
            if name not in shapes
        }
    except KeyError:
        return {}
    fits = all(
        not dim.isdigit() or int(dim) == size
        for tensor in tensors
        for dim, size in zip(declared[tensor.name], shapes[tensor.name], strict=False)
    )
    return {**shapes, **others} if fits else {}


def _holds(task: Task, operation: Operation, shapes: Shapes) -> bool:
    wanted = {p.name: shapes[p.name] for p in operation.parameters if isinstance(p, TensorParameter)}
    return contract_holds(operation, wanted, scalars_of(task, operation))
