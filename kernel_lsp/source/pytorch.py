"""Resolve a TARGET from the command line by `ast` alone: no user code is executed."""

from __future__ import annotations

import ast
import difflib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.core.expression import free_names
from kernel_lsp.core.task import (
    ConstantInput,
    InitArgument,
    InputConfiguration,
    ScalarInput,
    TargetInput,
    TargetKind,
    TargetSource,
    identities,
)
from kernel_lsp.errors import TargetError, UnknownInputsError
from kernel_lsp.source.inference.pragma_proposal import (
    EXAMPLES,
    INIT_PREFIX,
    Example,
    Proposal,
    Signature,
    needed,
    propose,
)
from kernel_lsp.source.pragma import (
    ConstantItem,
    NumberItem,
    Pragma,
    PragmaError,
    PragmaLine,
    TensorItem,
    bind_tensor,
    parse_pragma,
    tensor_item,
)
from kernel_lsp.source.python_file import (
    Definition,
    FunctionNode,
    Parameter,
    PythonFile,
    parameters_of,
    read_python_file,
    target_digest,
)
from kernel_lsp.source.recorded import inputs_with_floats, recorded_target, unstated_argument
from kernel_lsp.source.task_folder import read_task_folder

KERNELBENCH_CLASS = "Model"
MAX_RECORDED = 8
"""Maximum recorded configurations of a target: each may need a capture of its own."""


@dataclass(frozen=True)
class TargetLocation:
    """Code in a file that can be optimized. Lines are 1-based and inclusive; `line` is that of the `def` or `class`."""

    symbol: str
    kind: TargetKind
    line: int
    end_line: int


def read_target(target: str, directory: Path) -> TargetSource:
    """Read the declaration of `target`. `directory` is the base of relative paths.

    `target` is ``file.py::symbol``, a KernelBench file, or a robust-kbench task folder. Raises TargetError with file,
    line and next step; for unknown shapes the next step is a pragma based on the signature.
    """
    file, separator, symbol = target.partition("::")
    path = Path(os.path.abspath(directory / file))
    if not file or not os.path.exists(path):
        raise TargetError(
            "there is no such file", file=file or target, next_step=_suggest_file(file or target, symbol, directory)
        )
    if path.is_dir():
        return read_task_folder(target, path, symbol)
    if path.suffix != ".py":
        raise TargetError("a target is a Python file", file=file, next_step="name it as file.py::symbol")
    source = read_python_file(path, file)
    if separator:
        return _read_symbol(target, symbol, path, source)
    return _read_kernelbench(target, path, source)


def targets_in(source: PythonFile) -> tuple[TargetLocation, ...]:
    """List the functions at the top of a file, and its modules, those inside of classes too."""
    found = []
    for symbol, node in source.named.items():
        is_class = isinstance(node, ast.ClassDef)
        is_target = source.is_module_class(node) if isinstance(node, ast.ClassDef) else "." not in symbol
        if is_target and node.name not in _INPUT_FUNCTIONS:
            kind: TargetKind = "module" if is_class else "function"
            found.append(TargetLocation(symbol, kind, node.lineno, node.end_lineno or node.lineno))
    return tuple(found)


def read_symbol(symbol: str, path: Path, source: PythonFile, example: Example = EXAMPLES[0]) -> TargetSource:
    """Return the result of `read_target` for ``path::symbol``, from a text in memory. Raises TargetError; `example` is
    what its pragmas are filled in with."""
    return _read_symbol(f"{path.name}::{symbol}", symbol, path, source, example)


_INPUT_FUNCTIONS = ("get_inputs", "get_init_inputs")


def _read_symbol(
    target: str, symbol: str, path: Path, source: PythonFile, example: Example = EXAMPLES[0]
) -> TargetSource:
    node = _find(symbol, source)
    if isinstance(node, ast.ClassDef):
        return _describe(_Subject(target, symbol, "module", path, source, _forward_of(node, source), node, example))
    outer = source.definition(symbol.rsplit(".", 1)[0]) if "." in symbol else None
    owner = outer if isinstance(outer, ast.ClassDef) else None
    kind: TargetKind = "method" if owner is not None else "function"
    return _describe(_Subject(target, symbol, kind, path, source, node, owner, example))


def _read_kernelbench(target: str, path: Path, source: PythonFile) -> TargetSource:
    model = source.definition(KERNELBENCH_CLASS)
    if isinstance(model, ast.ClassDef) and source.definition("get_inputs") is not None:
        return _describe(_Subject(target, "", "kernelbench", path, source, _forward_of(model, source), model))
    names = [location.symbol for location in targets_in(source)]
    message = "the target names no symbol, and the file is no KernelBench file (class Model and get_inputs)"
    examples = " or ".join(f"{source.file}::{name}" for name in names[:3])
    next_step = f"write {examples}" if names else "name a file with a function or an nn.Module"
    raise TargetError(message, file=source.file, line=1, next_step=next_step)


def _find(symbol: str, source: PythonFile) -> Definition:
    found = source.definition(symbol) if symbol else None
    if isinstance(found, ast.AsyncFunctionDef):
        message = f"'{symbol}' is an async function"
        raise TargetError(message, file=source.file, line=found.lineno, next_step="name a plain function")
    if found is not None:
        return found
    line, message = _explain_missing(symbol, source)
    raise TargetError(message, file=source.file, line=line, next_step=_suggest_symbol(symbol, source))


def _explain_missing(symbol: str, source: PythonFile) -> tuple[int, str]:
    if "::" in symbol:
        return 1, f"'{symbol}' is no symbol: write {symbol.replace('::', '.')}"
    head, named = symbol.split(".")[0], [*source.named.values()]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == head for alias in node.names):
            origin = "." * node.level + (node.module or "")
            return node.lineno, f"'{head}' is imported here from {origin}: name the file that defines it"
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == head for t in node.targets):
            return node.lineno, f"'{head}' is a variable here: name the function or class that it comes from"
        if isinstance(node, Definition) and node.name == symbol.rpartition(".")[2] and node not in named:
            return node.lineno, f"'{symbol}' is defined inside a function: move it to the top of the file"
    return 1, f"the file defines no '{symbol}'" if symbol else "no symbol after '::'"


def _suggest_symbol(symbol: str, source: PythonFile) -> str:
    names = _all_symbols(source)
    near = difflib.get_close_matches(symbol.replace("::", "."), names, n=3, cutoff=0.5)
    near = near or [name for name in names if name.split(".")[-1].lower() == symbol.split(".")[-1].lower()]
    listed = ", ".join(near or names[:5])
    if not listed:
        return "name a file with a function or an nn.Module"
    return f"did you mean {listed}?" if near else f"the file defines {listed}"


def _all_symbols(source: PythonFile) -> list[str]:
    return [symbol for symbol, node in source.named.items() if "." not in symbol or node.name[:2] != "__"]


def _suggest_file(file: str, symbol: str, directory: Path) -> str:
    """Return files of this folder with a similar name, spelled as a target: ``models/gate.py::Gate``."""
    name, _, meant = os.path.basename(file).partition(":")
    parts = [part for part in (*file.partition(":")[0].split("."), meant or symbol) if part]
    module = f"{'/'.join(parts[:-1])}.py"
    if parts and (directory / module).is_file():  # named as in Python: models.gate.Gate
        return f"did you mean {module}::{parts[-1]}?"
    folder = Path(os.path.abspath(directory / os.path.dirname(file)))
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError:
        return f"the folder {folder} does not exist"
    names = [entry.name for entry in entries if entry.suffix == ".py" or entry.is_dir()]
    wanted = name if name.endswith(".py") or name in names else f"{name}.py"
    near = [wanted] if wanted in names else difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    end = f"::{symbol or meant}" if symbol or meant else ""
    listed = [os.path.join(os.path.dirname(file), each) + (end if each.endswith(".py") else "") for each in near]
    return f"did you mean {' or '.join(listed)}?" if listed else f"check the path: {folder / name}"


def _forward_of(node: ast.ClassDef, source: PythonFile) -> FunctionNode:
    found = source.inherited(node, "forward")
    if isinstance(found, FunctionNode):
        return found
    elsewhere = source.base_elsewhere(node)
    if elsewhere and elsewhere.rpartition(".")[2] != "Module":
        message = f"'{node.name}' inherits forward from '{elsewhere}', which no file beside this one defines"
        next_step = f"define forward in '{node.name}': return super().forward(...) with its arguments named"
    elif source.is_module_class(node):
        message = f"the nn.Module '{node.name}' defines no forward in this file"
        next_step = "define forward here, or name the file that does"
    else:
        message, next_step = f"the class '{node.name}' is no nn.Module", f"name a method: {node.name}.method"
    raise TargetError(message, file=source.file, line=node.lineno, next_step=next_step)


@dataclass(frozen=True)
class _Subject:
    """A target in its file: `function` is called, and `owner` is the class to construct first."""

    target: str
    symbol: str
    kind: TargetKind
    path: Path
    source: PythonFile
    function: FunctionNode
    owner: ast.ClassDef | None
    example: Example = EXAMPLES[0]

    @property
    def definition(self) -> Definition:
        """The definition that the target names, where a pragma belongs."""
        return self.owner if self.owner is not None and self.kind != "method" else self.function

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return parameters_of(self.function, of_class=self.owner is not None)

    @property
    def uses_get_inputs(self) -> bool:
        """Return True for a KernelBench file's Model, the only definition that uses `get_inputs`."""
        has_model = self.source.definition(KERNELBENCH_CLASS) is not None
        is_model = self.kind == "kernelbench" or self.symbol in (KERNELBENCH_CLASS, f"{KERNELBENCH_CLASS}.forward")
        return is_model or not has_model

    def defines(self, name: str) -> bool:
        return self.uses_get_inputs and self.source.definition(name) is not None

    def error(self, message: str, line: int, next_step: str) -> TargetError:
        return TargetError(message, file=self.source.file, line=line, next_step=next_step)

    def proposal(self, pragma: Pragma) -> Proposal:
        has_init_inputs = self.defines("get_init_inputs")
        return propose(Signature(self.source, self.function, self.owner, pragma, has_init_inputs), self.example)

    def example_pragma(self, pragma: Pragma | None = None) -> str:
        return self.proposal(pragma or Pragma()).pragma(needed(self.parameters))


def _describe(subject: _Subject) -> TargetSource:
    """Describe the target by its text; a recorded run adds configurations, and replaces what the text leaves open."""
    pragma = _read_pragma(subject)
    recorded = list(_recorded_configurations(subject, is_alone=not pragma.says_inputs))
    usual, is_recorded = recorded[0] if recorded else None, False
    try:
        inputs = _inputs(subject, pragma)
    except TargetError:
        if usual is None or pragma.says_inputs:
            raise
        inputs, is_recorded = usual.inputs, True
    try:
        init_arguments = _init_arguments(subject, pragma)
    except TargetError:
        if usual is None or pragma.init is not None:
            raise
        init_arguments = usual.init_arguments
    if usual is not None and is_recorded and pragma.init is None and not subject.defines("get_init_inputs"):
        init_arguments = usual.init_arguments  # also of a constructor that the text does not show, or needs none
    own = identities(inputs or ()), init_arguments
    return TargetSource(
        target=subject.target,
        file=str(subject.path),
        symbol=subject.symbol,
        kind=subject.kind,
        line=subject.definition.lineno,
        digest=target_digest(subject.source, subject.definition.lineno, subject.definition.end_lineno or 0),
        parameters=tuple(parameter.name for parameter in subject.parameters),
        inputs=inputs,
        init_arguments=init_arguments,
        configurations=tuple(c for c in recorded if (identities(c.inputs), c.init_arguments) != own),
        inputs_are_recorded=is_recorded,
        has_get_inputs=subject.defines("get_inputs"),
        has_get_init_inputs=subject.defines("get_init_inputs"),
        example_pragma=subject.example_pragma(pragma),
    )


def _recorded_configurations(subject: _Subject, *, is_alone: bool) -> Iterator[InputConfiguration]:
    """Yield the configurations of a recorded run that still fit the text, the most frequent first, each once. With
    `is_alone` the text states no inputs."""
    symbol = subject.symbol.removesuffix(".forward") or KERNELBENCH_CLASS
    recorded = recorded_target(subject.path, symbol)
    configurations = recorded.configurations if recorded is not None else ()
    known: list[object] = []
    texts = inputs_with_floats(configurations, subject.function if is_alone else None)
    for found, text in zip(configurations, texts, strict=True):
        lines = [PragmaLine(text, 1), *([PragmaLine(f"init:{found.init}", 1)] if found.init else [])]
        try:
            pragma = parse_pragma(lines)
            inputs, init_arguments = _inputs(subject, pragma), _init_arguments(subject, pragma)
        except (PragmaError, TargetError):
            continue  # the code has changed since the recording
        key = identities(inputs or ()), init_arguments
        if not found.opaque and inputs and key not in known and len(known) < MAX_RECORDED:
            known.append(key)
            name = f"recorded {found.inputs}"
            yield InputConfiguration(name=name, inputs=inputs, init_arguments=init_arguments)


def _read_pragma(subject: _Subject) -> Pragma:
    try:
        return parse_pragma(_pragma_lines(subject))
    except PragmaError as error:
        raise subject.error(error.message, error.line, f"e.g. {subject.example_pragma()}") from None


def _pragma_lines(subject: _Subject) -> list[PragmaLine]:
    """Return the function's pragma lines, the `init:` lines of its class and constructor, and for `forward` their other
    lines, too."""
    lines = list(subject.source.pragmas_of(subject.function))
    if subject.owner is not None:
        constructor = subject.source.inherited(subject.owner, "__init__")
        around = [*subject.source.pragmas_of(subject.owner)]
        around += subject.source.pragmas_of(constructor) if constructor is not None else []
        is_forward = subject.function.name == "forward"
        lines += [line for line in around if line.is_init or is_forward]
    return sorted(set(lines), key=lambda line: line.line)


def _inputs(subject: _Subject, pragma: Pragma) -> tuple[TargetInput, ...] | None:
    """Return the inputs; None when only `get_inputs` defines them."""
    try:
        items = _tensor_items(subject, pragma)
        if not items and not pragma.says_inputs and subject.parameters:
            if subject.defines("get_inputs"):
                return None
            raise _no_shapes(subject, pragma)
        _check_pragma_names(subject, pragma, items)
        _check_complete(subject, pragma, items)
        _check_sizes_known(subject, pragma, items)
        return _bound_inputs(subject, pragma, items)
    except PragmaError as error:
        raise subject.error(error.message, error.line, f"e.g. {subject.example_pragma()}") from None


def _tensor_items(subject: _Subject, pragma: Pragma) -> dict[str, TensorItem]:
    """Return tensors by parameter name, from the pragma, else from the annotation."""
    items = {}
    for parameter in subject.parameters:
        item = pragma.tensors.get(parameter.name)
        if item is None and parameter.name not in pragma.values:
            item = tensor_item(parameter.name, parameter.annotation, pragma)
        if item is not None:
            items[parameter.name] = item
    return items


def _check_pragma_names(subject: _Subject, pragma: Pragma, items: dict[str, TensorItem]) -> None:
    """Require that every name is a parameter or the size of some dim."""
    if subject.function.args.kwarg is not None:
        return
    names = [parameter.name for parameter in subject.parameters]
    dims = {
        name
        for item in (*items.values(), *pragma.parts)
        for part in (*item.dims, *(item.bounds or ()))
        for name in free_names(part)
    }
    given: list[TensorItem | NumberItem | ConstantItem] = [*pragma.tensors.values(), *pragma.values.values()]
    for item in given:
        is_size = isinstance(item, NumberItem) and item.name in dims
        if item.name not in names and not is_size:
            raise PragmaError(_no_parameter(item.name, subject.function.name, names), item.line)


def _no_parameter(name: str, function: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(names)}"
    return f"'{name}' is no parameter of {function}: {hint}"


def _check_complete(subject: _Subject, pragma: Pragma, items: dict[str, TensorItem]) -> None:
    required = [p for p in subject.parameters if not p.has_default]
    missing = [p for p in required if p.name not in items and p.name not in pragma.values]
    if missing:
        names = ", ".join(f"'{parameter.name}'" for parameter in missing)
        message = f"unknown shape of {names} in `{subject.function.name}`"
        raise _unknown(subject, pragma, message, subject.function.lineno)


def _check_sizes_known(subject: _Subject, pragma: Pragma, items: dict[str, TensorItem]) -> None:
    for item in (*items.values(), *pragma.parts):
        unknown = sorted({name for dim in item.dims for name in free_names(dim)} - pragma.sizes.keys())
        if unknown:
            message = f"the dim '{unknown[0]}' of '{item.name}' has no size"
            raise _unknown(subject, pragma, message, item.line)


def _bound_inputs(subject: _Subject, pragma: Pragma, items: dict[str, TensorItem]) -> tuple[TargetInput, ...]:
    inputs: list[TargetInput] = []
    names = [parameter.name for parameter in subject.parameters]
    if subject.function.args.kwarg is not None:
        items = {**pragma.tensors, **items}
        sizes = {name for item in (*items.values(), *pragma.parts) for dim in item.dims for name in free_names(dim)}
        names += [name for name in (*pragma.tensors, *pragma.values) if name not in {*names, *sizes}]
    for name in names:
        if name in items:
            inputs.append(bind_tensor(items[name], pragma.sizes))
        elif name in pragma.numbers:
            inputs.append(ScalarInput(name=name, value=pragma.numbers[name].value))
        elif name in pragma.constants:
            constant = pragma.constants[name]
            parts = tuple(bind_tensor(tensor, pragma.sizes) for tensor in constant.tensors)
            inputs.append(ConstantInput(name=name, literal=constant.literal, tensors=parts))
    return tuple(inputs)


def _no_shapes(subject: _Subject, pragma: Pragma) -> TargetError:
    message = f"unknown input shapes for `{subject.symbol or subject.function.name}`"
    lost = subject.source.lost_pragma_above(subject.function)
    if lost is not None and not pragma.says_inputs:
        message += f": line {lost} must begin with `# kernel-lsp:`, with no empty line below"
    elif unstated := unstated_argument(subject.path, subject.symbol.removesuffix(".forward")):
        message += f": recorded, but a pragma cannot state '{unstated}'"
    return _unknown(subject, pragma, message, subject.function.lineno)


def _unknown(subject: _Subject, pragma: Pragma, message: str, line: int) -> TargetError:
    """Return the error of a target that lacks pragmas, with all that it lacks."""
    proposal = subject.proposal(pragma)
    pragmas = tuple(_lacking(subject, pragma, proposal))
    if proposal.objects and subject.owner is not None:
        name = proposal.objects[0]
        message = f"constructor argument '{name}' of `{subject.owner.name}` is an object of an unknown class"
        line, pragmas = subject.owner.lineno, ()
        next_step = f"write how to construct it above the class: {INIT_PREFIX}{name}=Config(width=64)"
    else:
        place = "the class" if pragmas and pragmas[0][1].startswith(INIT_PREFIX) else "it"
        places = [f"line {at}" for at, _ in pragmas] if len(pragmas) > 1 else [place]
        next_step = "\n".join(f"add above {at}: {text}" for at, (_, text) in zip(places, pragmas, strict=False))
        next_step = next_step or "give each name in a dim a size: T=512"
    return UnknownInputsError(message, file=subject.source.file, line=line, next_step=next_step, pragmas=pragmas)


def _lacking(subject: _Subject, pragma: Pragma, proposal: Proposal) -> Iterator[tuple[int, str]]:
    """Yield the pragmas that make the target complete, each with the line to insert it above."""
    init = _missing_init(subject, pragma)
    if init and subject.owner is not None:
        extra = [name for name in proposal.init if name not in init and name not in (pragma.init or {})]
        yield subject.owner.lineno, proposal.init_pragma([*init, *extra])
    items = _tensor_items(subject, pragma)
    names = [p.name for p in subject.parameters if p.name not in items and p.name not in pragma.values]
    required = [p.name for p in subject.parameters if p.name in names and not p.has_default]
    has_none = not items and not pragma.says_inputs
    if not (has_none and subject.defines("get_inputs")) and (required or (has_none and names)):
        shown = [name for name in names if name in (required or names) or name in proposal.called]
        yield subject.function.lineno, proposal.pragma(shown)
    if proposal.sizes:
        yield subject.function.lineno, proposal.sizes_pragma


def _init_arguments(subject: _Subject, pragma: Pragma) -> dict[str, InitArgument] | None:
    owner = subject.owner
    if owner is None:
        return None
    constructor = subject.source.inherited(owner, "__init__")
    if not isinstance(constructor, FunctionNode):
        return pragma.init
    parameters = parameters_of(constructor, of_class=True)
    given = pragma.init or {}
    names = [parameter.name for parameter in parameters]
    unknown = [name for name in given if name not in names] if constructor.args.kwarg is None else []
    if unknown:
        message = _no_parameter(unknown[0], f"{owner.name}.__init__", names)
        proposal = subject.proposal(Pragma())
        raise subject.error(message, pragma.init_line, f"e.g. {proposal.init_pragma([*proposal.init])}")
    missing = _missing_init(subject, pragma)
    if missing:
        message = f"unknown constructor argument '{missing[0]}' of `{owner.name}`"
        raise _unknown(subject, pragma, message, constructor.lineno)
    return pragma.init


def _missing_init(subject: _Subject, pragma: Pragma) -> list[str]:
    """Return the constructor arguments that nothing gives a value."""
    constructor = subject.source.inherited(subject.owner, "__init__") if subject.owner is not None else None
    if not isinstance(constructor, FunctionNode) or (pragma.init is None and subject.defines("get_init_inputs")):
        return []
    parameters = parameters_of(constructor, of_class=True)
    return [p.name for p in parameters if not p.has_default and p.name not in (pragma.init or {})]
