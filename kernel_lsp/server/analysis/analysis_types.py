"""Results of the static analysis of one text, as plain data. `server.analysis.analysis_worker` makes them in its own
process."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from kernel_lsp.rules.finding import RuleFinding, TextRange, shifted_finding, shifted_range
from kernel_lsp.server.documents.documents import Document
from kernel_lsp.source.launch_blocks import LaunchedBlock
from kernel_lsp.source.python_file import ImportStyle

NO_RANGE = TextRange(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Place:
    """A call of a target: `range` is the whole call, `callee` its name."""

    symbol: str
    range: TextRange
    callee: TextRange


@dataclass(frozen=True, slots=True)
class Target:
    """A function, module or block that can be optimized. `line` is that of its `def` or `class`, `forward_line` that of
    the code that computes; both are 0-based, and `end_line` is the last. `digest` changes with the text.

    `inputs` describes the input shapes and is empty when they are unknown. `problem` then says what is missing, and
    `pragmas`, where pragmas would fix it, are the lines to insert above with their texts.
    """

    symbol: str
    is_module: bool
    line: int
    end_line: int
    forward_line: int
    digest: str
    inputs: str = ""
    problem: str = ""
    pragmas: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Use:
    """A call where our operator replaces PyTorch code. Reverting restores `original` in `range`, and removes the import
    when this was its only use."""

    name: str
    range: TextRange
    original: str
    import_range: TextRange = NO_RANGE


@dataclass(frozen=True, slots=True)
class Kernel:
    """A `__global__` function with a body. Lines are 0-based and inclusive. `blocks` are those of its launches in the
    file, where their sizes are constants."""

    name: str
    line: int
    end_line: int
    blocks: tuple[LaunchedBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class Analysis:
    """Static analysis of one text. `import_line` is the line for one more import. `task` is the operation that the
    launch plan declares, empty without a plan."""

    findings: tuple[RuleFinding, ...] = ()
    targets: tuple[Target, ...] = ()
    places: tuple[Place, ...] = ()
    uses: tuple[Use, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    import_line: int = 0
    import_style: ImportStyle = "absolute"
    has_plan: bool = False
    task: str = ""

    def target(self, symbol: str) -> Target | None:
        return next((target for target in self.targets if target.symbol == symbol), None)

    def target_at(self, line: int) -> Target | None:
        """Return the innermost target that contains the line."""
        around = [target for target in self.targets if target.line <= line <= target.end_line]
        return max(around, key=lambda target: target.line, default=None)

    def kernel_at(self, line: int) -> Kernel | None:
        return next((kernel for kernel in self.kernels if kernel.line <= line <= kernel.end_line), None)


ANALYSIS: TypeAdapter[Analysis] = TypeAdapter(Analysis)
EMPTY = Analysis()


def carried(document: Document, analysis: Analysis, serial: int) -> Analysis:
    """Return the analysis with current line numbers. Omits what the edits touched, and everything that is only useful
    for editing: fixes, calls, imports."""
    if serial == document.serial:
        return analysis
    findings = ((finding, range_now(document, finding.range, serial)) for finding in analysis.findings)
    targets = (_target(document, target, serial) for target in analysis.targets)
    kernels = (_kernel(document, kernel, serial) for kernel in analysis.kernels)
    return replace(
        analysis,
        findings=tuple(replace(finding, range=now, fixes=()) for finding, now in findings if now is not None),
        targets=tuple(target for target in targets if target is not None),
        kernels=tuple(kernel for kernel in kernels if kernel is not None),
        places=(),
        uses=(),
    )


def below(analysis: Analysis, n_lines: int) -> Analysis:
    """Return the analysis of the lines below the first `n_lines`, renumbered from 0."""
    moved = replace(
        analysis,
        findings=tuple(shifted_finding(f, -n_lines) for f in analysis.findings if f.range.start_line >= n_lines),
        targets=tuple(_lifted(target, n_lines) for target in analysis.targets if target.line >= n_lines),
        import_line=max(analysis.import_line - n_lines, 0),
    )
    places = [place for place in analysis.places if place.range.start_line >= n_lines]
    uses = [use for use in analysis.uses if use.range.start_line >= n_lines and use.import_range.start_line >= n_lines]
    return replace(
        moved,
        places=tuple(
            replace(p, range=shifted_range(p.range, -n_lines), callee=shifted_range(p.callee, -n_lines)) for p in places
        ),
        uses=tuple(
            replace(u, range=shifted_range(u.range, -n_lines), import_range=shifted_range(u.import_range, -n_lines))
            for u in uses
        ),
    )


def range_now(document: Document, found: TextRange, serial: int) -> TextRange | None:
    """Map a range of an earlier text to the current one; None when its lines were edited."""
    if serial == document.serial:
        return found
    start, end = document.line_now(found.start_line, serial), document.line_now(found.end_line, serial)
    if start is None or end is None or end - start != found.end_line - found.start_line:
        return None
    return TextRange(start, found.start_column, end, found.end_column)


def _target(document: Document, target: Target, serial: int) -> Target | None:
    line = document.line_now(target.line, serial)
    if line is None:
        return None
    forward = document.line_now(target.forward_line, serial)
    return replace(
        target,
        line=line,
        end_line=_end(document, target.end_line, serial, line + target.end_line - target.line),
        forward_line=line if forward is None else forward,
        pragmas=(),
    )


def _lifted(target: Target, n_lines: int) -> Target:
    return replace(
        target,
        line=target.line - n_lines,
        end_line=target.end_line - n_lines,
        forward_line=target.forward_line - n_lines,
        pragmas=tuple((line - n_lines, text) for line, text in target.pragmas),
    )


def _kernel(document: Document, kernel: Kernel, serial: int) -> Kernel | None:
    line = document.line_now(kernel.line, serial)
    if line is None:
        return None
    return replace(kernel, line=line, end_line=_end(document, kernel.end_line, serial, line))


def _end(document: Document, line: int, serial: int, otherwise: int) -> int:
    now = document.line_now(line, serial)
    return otherwise if now is None else now
