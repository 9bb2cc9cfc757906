"""The static analysis in its own process: reads texts, writes `Analysis` objects, one JSON line each. With the argument
`targets` it lists the targets of one file or folder instead.

Parsing holds the interpreter lock, and a broken grammar could crash the process; neither may affect the server that
answers the editor. No user code is run, and nothing but the given text is read.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from kernel_lsp.core.finding import Severity
from kernel_lsp.core.task import ConstantInput, TargetSource, TensorInput
from kernel_lsp.errors import TargetError, UnknownInputsError
from kernel_lsp.plan.parser import parse as parse_plan
from kernel_lsp.process.stdio import claim_stdout
from kernel_lsp.process.tree import step_back
from kernel_lsp.rules import cuda, pytorch
from kernel_lsp.rules.cuda.parsing import ParsedCuda
from kernel_lsp.rules.finding import RuleFinding, in_order
from kernel_lsp.server.analysis.analysis_types import (
    ANALYSIS,
    EMPTY,
    Analysis,
    Kernel,
    Place,
    Target,
    TextRange,
    Use,
    below,
)
from kernel_lsp.source.call_sites import OPERATOR_MARK, USE_PREFIX
from kernel_lsp.source.cuda import KernelLines, ParsedSource, kernel_lines_in
from kernel_lsp.source.formulas import computes_tensors
from kernel_lsp.source.launch_blocks import launched_blocks
from kernel_lsp.source.notebook import without_magics
from kernel_lsp.source.python_file import (
    FunctionNode,
    PythonFile,
    import_line,
    import_style,
    parse_python,
    symbol_called,
    target_digest,
)
from kernel_lsp.source.pytorch import TargetLocation, read_symbol, targets_in
from kernel_lsp.source.workspace_files import MAX_FILE_BYTES, MAX_FILES, python_files

MAX_TREES_KEPT = 8
NICENESS = 2
"""Scheduling priority: below the editor and the server, above the jobs."""
CELL_SCHEMES = ("vscode-notebook-cell:", "notebook-cell:")
NO_INPUTS = "none"
BYTE_ORDER_MARK = "\ufeff"
PRAGMA_CODE = "pragma"
TORCH = "torch"
"""A text without this word has no targets."""

KERNEL_MARK = b"__global__"
_trees: OrderedDict[str, ParsedCuda] = OrderedDict()


def main() -> None:
    """Answer requests until stdin ends."""
    stdout = claim_stdout()
    step_back(NICENESS)
    if sys.argv[1:] == ["targets"]:
        stdout.write(json.dumps(scan(Path(json.loads(sys.stdin.readline())["folder"]))).encode() + b"\n")
        return
    _warm_up()
    for line in sys.stdin.buffer:
        request = json.loads(line)

        def reply(analysis: Analysis, n_more: int, number: int = request["id"]) -> None:
            message = {"id": number, "analysis": ANALYSIS.dump_python(analysis, mode="json"), "n_more": n_more}
            stdout.write(json.dumps(message).encode() + b"\n")
            stdout.flush()

        above = request.get("above", ())
        analysis = analyse(request["language"], request["path"], request["text"], above, lambda part: reply(part, 1))
        reply(analysis, 0)


def analyse(
    language: str, path: str, text: str, above: Sequence[str] = (), soon: Callable[[Analysis], None] = lambda _: None
) -> Analysis:
    """Analyse a text; an unsupported language gets an empty analysis. `above` are the notebook cells above the text:
    they are in scope but not analysed. `soon` receives early partial results of a text whose analysis takes long."""
    if language == "python" and above:
        together = "\n".join(map(without_magics, (*above, text)))
        return below(_analyse_python(Path(path), together), sum(cell.count("\n") + 1 for cell in above))
    if language == "python":
        return _analyse_python(Path(path), without_magics(text) if path.startswith(CELL_SCHEMES) else text)
    return _analyse_cuda(path, text, soon) if language == "cuda" else EMPTY


def targets_of(path: Path, text: str) -> tuple[Target, ...]:
    """Return the targets of a Python text; none of an operator that we wrote, or if it does not parse."""
    if TORCH not in text or text.startswith(OPERATOR_MARK):
        return ()
    try:
        return tuple(_targets(path, parse_python(text, str(path), origin=path), {}))
    except TargetError:
        return ()


def scan(folder: Path) -> dict[str, Any]:
    """List the targets in a file or below a folder, as far as `MAX_FILES` reaches."""
    files = [folder] if folder.is_file() else list(islice(python_files(folder), MAX_FILES + 1))
    targets = [target for file in files[:MAX_FILES] for target in _targets_in_file(file)]
    return {"targets": targets, "is_complete": len(files) <= MAX_FILES}


def _targets_in_file(file: Path) -> Iterator[dict[str, Any]]:
    try:
        text = file.read_text(encoding="utf-8") if file.stat().st_size <= MAX_FILE_BYTES else ""
    except (OSError, UnicodeDecodeError):
        return
    for target in targets_of(file, text):
        names = ("symbol", "is_module", "line", "inputs")
        yield {"uri": file.as_uri(), **{name: getattr(target, name) for name in names}}


def _warm_up() -> None:
    """Build the grammars' tables and the rules' queries before the first request."""
    analyse("cuda", "", "__global__ void kernel(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 0.0f; }\n")
    analyse("python", "", "import torch\n\ndef function(x: torch.Tensor):\n    return torch.relu(x)\n")
    _trees.clear()


def _analyse_cuda(path: str, text: str, soon: Callable[[Analysis], None]) -> Analysis:
    previous = _trees.pop(path, None)
    tree = cuda.parse(text, previous)
    _trees[path] = tree
    if len(_trees) > MAX_TREES_KEPT:
        _trees.popitem(last=False)
    plan = parse_plan(text).plan
    blocks = launched_blocks(text, plan)
    return Analysis(
        findings=cuda.check(text, tree=tree, soon=lambda found: soon(Analysis(found))),
        kernels=tuple(
            Kernel(k.name, k.first_line - 1, k.last_line - 1, blocks.get(k.name, ())) for k in _kernels_in(tree)
        ),
        has_plan=plan is not None,
        task=(plan.task or "") if plan is not None else "",
    )


def _kernels_in(tree: ParsedCuda) -> tuple[KernelLines, ...]:
    """Return the lines of the kernels in a file."""
    return kernel_lines_in(ParsedSource(tree.data, tree.tree.root_node)) if KERNEL_MARK in tree.data else ()


def _analyse_python(path: Path, text: str) -> Analysis:
    """Analyse a Python text. One that does not parse as a whole yields the targets of its valid parts, without
    calls. An operator that kernel-lsp wrote has nothing to improve: it yields nothing."""
    if text.startswith(OPERATOR_MARK):
        return EMPTY
    module = pytorch.parse(text) if TORCH in text else None
    findings = pytorch.check(text, tree=module)
    try:
        source = parse_python(
            text.removeprefix(BYTE_ORDER_MARK), str(path), module.tree if module is not None else None, origin=path
        )
    except TargetError:
        return Analysis(findings=findings)
    wrong: dict[int, str] = {}
    targets = tuple(_targets(path, source, wrong)) if TORCH in text else ()
    findings = tuple(in_order([*findings, *(_of_pragma(source, line, message) for line, message in wrong.items())]))
    if module is not None and not module.is_complete:
        return Analysis(findings=findings, targets=targets)
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    places = tuple(_places(source, calls, {target.symbol for target in targets}))
    return Analysis(
        findings=findings,
        targets=targets,
        places=places,
        uses=tuple(_uses(source, calls)),
        import_line=import_line(source.tree, (place.range.start_line + 1 for place in places)),
        import_style=import_style(path, source.tree),
    )


def _targets(path: Path, source: PythonFile, wrong: dict[int, str]) -> Iterator[Target]:
    """Yield the targets; add the pragmas that cannot be read to `wrong`, by line."""
    for location in targets_in(source):
        target = _target(path, location, source, wrong)
        has_inputs = target.inputs not in ("", NO_INPUTS)
        if has_inputs or computes_tensors(location.symbol, source):
            yield target


def _of_pragma(source: PythonFile, line: int, message: str) -> RuleFinding:
    text = source.lines[line - 1]
    place = TextRange(line - 1, len(text) - len(text.lstrip()), line - 1, len(text))
    return RuleFinding(PRAGMA_CODE, "unreadable pragma", Severity.WARNING, message, place, "")


def _target(path: Path, location: TargetLocation, source: PythonFile, wrong: dict[int, str]) -> Target:
    inputs, problem = "", ""
    pragmas: tuple[tuple[int, str], ...] = ()
    try:
        inputs = _inputs_text(read_symbol(location.symbol, path, source))
    except TargetError as error:
        problem = error.message
        if isinstance(error, UnknownInputsError):
            pragmas = tuple((line - 1, text) for line, text in error.pragmas)
        elif error.line in {pragma.line for pragma in source.pragmas}:
            wrong[error.line] = error.message
    return Target(
        symbol=location.symbol,
        is_module=location.kind == "module",
        line=location.line - 1,
        end_line=location.end_line - 1,
        forward_line=_forward_line(location, source) - 1,
        digest=target_digest(source, location.line, location.end_line),
        inputs=inputs,
        problem=problem,
        pragmas=pragmas,
    )


def _inputs_text(found: TargetSource) -> str:
    if found.inputs is None:
        return "by get_inputs()"
    parts = []
    for value in found.inputs:
        if isinstance(value, TensorInput):
            parts.append(f"{value.name}: {value.dtype.value}[{', '.join(map(str, value.shape))}]")
        else:
            parts.append(f"{value.name} = {value.literal if isinstance(value, ConstantInput) else value.value}")
    return ", ".join(parts) or NO_INPUTS


def _forward_line(location: TargetLocation, source: PythonFile) -> int:
    found = source.definition(f"{location.symbol}.forward") if location.kind == "module" else None
    is_here = isinstance(found, FunctionNode) and location.line <= found.lineno <= location.end_line
    return found.lineno if is_here and found is not None else location.line


def _places(source: PythonFile, calls: Sequence[ast.Call], symbols: set[str]) -> Iterator[Place]:
    """Yield the calls of targets, except those already replaced by our operator."""
    wrapped = {id(call.args[0]) for call in calls if _is_wrapper(call)}
    for call in calls:
        symbol = symbol_called(call.func, source.named)
        if symbol in symbols and id(call) not in wrapped:
            yield Place(symbol, _range(call, source), _range(call.func, source))


def _uses(source: PythonFile, all_calls: Sequence[ast.Call]) -> Iterator[Use]:
    """Yield the calls inserted by `Use the optimized operator here`."""
    imported = {name: statement for statement in source.tree.body for name in _imported_names(statement)}
    calls = [call for call in all_calls if isinstance(call.func, ast.Name) and call.func.id in imported]
    for call in calls:
        assert isinstance(call.func, ast.Name)
        name = call.func.id
        statement = imported[name]
        n_uses = sum(isinstance(other.func, ast.Name) and other.func.id == name for other in calls)
        line = statement.lineno - 1
        gone = (
            TextRange(line, 0, (statement.end_lineno or statement.lineno), 0) if n_uses == 1 else TextRange(0, 0, 0, 0)
        )
        if _is_wrapper(call):
            original = ast.get_source_segment("\n".join(source.lines), call.args[0]) or ""
            yield Use(name, _range(call, source), original, gone)


def _imported_names(statement: ast.stmt) -> list[str]:
    """Return the name that a statement imports alone, be it in one way or in two: see `import_statement`."""
    match statement:
        case ast.ImportFrom(names=[alias]):
            return [alias.asname or alias.name]
        case ast.Try(body=[inside], handlers=[ast.ExceptHandler(body=[outside])], orelse=[], finalbody=[]):
            names = _imported_names(inside)
            return names if names == _imported_names(outside) else []
    return []


def _is_wrapper(call: ast.Call) -> bool:
    is_named = isinstance(call.func, ast.Name) and call.func.id.startswith(USE_PREFIX)
    return is_named and len(call.args) == 1 and isinstance(call.args[0], ast.Call | ast.Name | ast.Attribute)


def _range(node: ast.expr, source: PythonFile) -> TextRange:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = _column(source, node.lineno, node.col_offset)
    end = _column(source, node.end_lineno, node.end_col_offset)
    return TextRange(node.lineno - 1, start, node.end_lineno - 1, end)


def _column(source: PythonFile, line: int, offset: int) -> int:
    """Convert an `ast` column, in UTF-8 bytes, to code points."""
    text = source.lines[line - 1]
    return offset if text.isascii() else len(text.encode(errors="replace")[:offset].decode(errors="replace"))


if __name__ == "__main__":
    main()
