"""Results of the static analysis of one text, as plain data. `server.analysis.analysis_worker` makes them in its own
process."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from kernel_lsp.rules.finding import RuleFinding, TextRange
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
    """A `__global__` function with a body. Lines are 0-based and inclusive. `n_threads` is the block size where the
    plan gives a number, else 0."""

    name: str
    line: int
    end_line: int
    n_threads: int = 0


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
        """Return the target that contains the line."""
        return next((target for target in self.targets if target.line <= line <= target.end_line), None)

    def kernel_at(self, line: int) -> Kernel | None:
        return next((kernel for kernel in self.kernels if kernel.line <= line <= kernel.end_line), None)


ANALYSIS: TypeAdapter[Analysis] = TypeAdapter(Analysis)
EMPTY = Analysis()
