"""Selected lines as a target: their function, with shapes from the capture of the surrounding function."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.core.task import GraphNode, Task, TaskTensor, TensorType
from kernel_lsp.engine.messages import ExtractedLines
from kernel_lsp.source.extraction import OWN, SIZES, extract
from kernel_lsp.source.python_file import import_line, import_style, read_python_file
from kernel_lsp.source.selection import select


def extract_lines(task: Task, file: Path, symbol: str, first_line: int, last_line: int) -> ExtractedLines:
    """Extract the lines of `symbol` as a function; `task` is the captured `symbol`. Raises TargetError when that is
    impossible."""
    source = read_python_file(file, str(file))
    selection = select(source, symbol, first_line, last_line)
    name = f"{task.name}_lines_{selection.first_line}_{selection.last_line}"
    found = extract(source, selection, name, known_values(task, file, selection.first_line))
    return ExtractedLines(
        name=found.name,
        function=found.function,
        function_line=found.function_line,
        call=found.call,
        first_line=found.first_line,
        last_line=found.last_line,
        replaced="\n".join(source.lines[found.first_line - 1 : found.last_line]),
        global_names=found.global_names,
        import_line=import_line(source.tree),
        import_style=import_style(file, source.tree),
    )


def known_values(task: Task, file: Path, before_line: int) -> dict[str, str]:
    """Return the known values that lines from `before_line` on may use, as pragma items."""
    known = {SIZES: ", ".join(f"{symbol.name}={symbol.captured}" for symbol in task.symbols)}
    for path, value in task.module_settings.items():
        if isinstance(value, bool | int | float):
            known[f"{OWN}{path}"] = repr(int(value) if isinstance(value, bool) else value)
    for argument in task.arguments:
        if not isinstance(argument, TaskTensor):
            known[argument.name] = repr(argument.value)
        elif argument.role == "input":
            known[argument.name] = _item(argument.type, argument.integer_range)
        else:
            known[f"{OWN}{argument.qualified_name or argument.name}"] = _item(argument.type, argument.integer_range)
    known |= {str(node.user_name): _item(node.types[0]) for node in _assigned(task, file, before_line) if node.types[0]}
    return known


# --- below


def _assigned(task: Task, file: Path, before_line: int) -> list[GraphNode]:
    """Return the nodes whose values are assigned to names above a line, in order; the last assignment of a name
    wins."""
    return [
        node
        for node in task.forward.nodes
        if node.user_name is not None
        and len(node.types) == 1
        and node.source is not None
        and Path(node.source.file) == file
        and node.source.line < before_line
    ]


def _item(type_: TensorType, integer_range: tuple[int, int] | None = None) -> str:
    """``i64[B, T] in [0, 50257)``"""
    text = f"{type_.dtype.value}[{', '.join(type_.shape)}]"
    return text if integer_range is None else f"{text} in [{integer_range[0]}, {integer_range[1]})"
