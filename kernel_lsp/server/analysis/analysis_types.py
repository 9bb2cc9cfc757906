"""What the static analysis says of one text. Plain data, made by `server.analysis.analysis_worker` in its own
process."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pydantic import TypeAdapter

from kernel_lsp.rules.finding import RuleFinding, TextRange
from kernel_lsp.source.python_file import ImportStyle

DIGEST_CHARACTERS = 16
NO_RANGE = TextRange(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Place:
    """A call of a target: `range` is the whole call, `callee` its name."""

    symbol: str
    range: TextRange
    callee: TextRange


@dataclass(frozen=True, slots=True)
class Target:
    """Something that can be optimized. `line` is that of its `def` or `class`, `forward_line` that of the code that
    computes; both 0-based, and `end_line` is its last. `digest` changes when its text does.

    `inputs` are its shapes in words, empty when nothing says them: then `problem` says what is missing, and `pragma` is
    what to add above `pragma_line`, when that is all that is missing.
    """

    symbol: str
    is_module: bool
    line: int
    end_line: int
    forward_line: int
    digest: str
    inputs: str = ""
    problem: str = ""
    pragma: str = ""
    pragma_line: int = -1


@dataclass(frozen=True, slots=True)
class Use:
    """A place where our operator stands for PyTorch code: `range` becomes `original` again, and of the import line
    nothing stays when this was its only use."""

    name: str
    range: TextRange
    original: str
    import_range: TextRange = NO_RANGE


@dataclass(frozen=True, slots=True)
class Kernel:
    """A `__global__` function with a body. Lines are 0-based and inclusive. `n_threads` are those of a block where the
    plan says a number, else 0."""

    name: str
    line: int
    end_line: int
    n_threads: int = 0


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything the server knows of a text without running anything. `import_line` is where one more import goes.
    `task` is what the launch plan says the kernel computes; empty without a plan."""

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
        """The target that the line is inside of."""
        return next((target for target in self.targets if target.line <= line <= target.end_line), None)

    def kernel_at(self, line: int) -> Kernel | None:
        return next((kernel for kernel in self.kernels if kernel.line <= line <= kernel.end_line), None)


def digest_of(text: str) -> str:
    """What a target's `digest` is for its text, comments and decorators above it included."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:DIGEST_CHARACTERS]


ANALYSIS: TypeAdapter[Analysis] = TypeAdapter(Analysis)
EMPTY = Analysis()
