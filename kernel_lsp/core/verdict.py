"""Outcomes as values; failure is never represented by None."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kernel_lsp.core.finding import Finding
from kernel_lsp.core.measurement import Comparison, Estimate, Measurement
from kernel_lsp.core.model import SCHEMA_VERSION, Noun


class KernelFacts(Noun):
    """Facts about one compiled kernel, from ptxas. `symbol` is its mangled name."""

    kernel: str
    symbol: str
    n_registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    shared_bytes: int


class Built(Noun):
    """The build succeeded. `ptx` is the PTX text, `cubins` the machine code of its modules in base64, several if it was
    compiled in parts; `symbols` maps each name expression to its symbol."""

    kind: Literal["built"] = "built"
    architecture: str
    ptx: str = Field(repr=False)
    cubins: tuple[str, ...] = Field((), repr=False)
    symbols: dict[str, str]
    kernels: tuple[KernelFacts, ...] = ()
    warnings: tuple[Finding, ...] = ()
    compile_s: float = 0.0
    from_cache: bool = False


class BuildFailed(Noun):
    """The build failed; the findings give locations."""

    kind: Literal["build_failed"] = "build_failed"
    findings: tuple[Finding, ...]
    log: str = ""


BuildOutcome = Annotated[Built | BuildFailed, Field(discriminator="kind")]


class TensorError(Noun):
    """Error of one output against the fp64 reference. `relative_l2` is ||out - ref|| / ||ref||; budgets are the
    tolerances for the dtype. `n_nans_lost` counts numbers where PyTorch has NaN and a number is correct, too;
    `n_cut_off` counts 16-bit results that were truncated instead of rounded, if nearly all were. `worst_index` locates
    the largest error beyond its tolerance."""

    output: str
    relative_l2: float
    relative_l2_budget: float
    max_error: float
    max_error_budget: float
    n_wrong: int
    n_elements: int
    n_nans_lost: int = 0
    n_cut_off: int = 0
    worst_index: tuple[int, ...] | None = None
    expected: float | None = None
    found: float | None = None


class CaseResult(Noun):
    """One case: an operation, shapes and an input family. `n_blocks_run` of `n_blocks` ran if blocks were sampled.
    `device` is the executor or the GPU's name."""

    device: str = "PTX executor (CPU)"
    operation: str
    family: str
    shapes: dict[str, tuple[int, ...]]
    n_blocks: int
    n_blocks_run: int
    errors: tuple[TensorError, ...]


class Correct(Noun):
    """Every case is within its tolerance and no check fired."""

    kind: Literal["correct"] = "correct"
    cases: tuple[CaseResult, ...]


class Mismatch(Noun):
    """A case exceeds its tolerance; `failed` is the first such case."""

    kind: Literal["mismatch"] = "mismatch"
    message: str
    failed: CaseResult
    cases: tuple[CaseResult, ...] = ()


class Crashed(Noun):
    """The kernel performed an illegal operation, such as an out-of-bounds access, a trap or a deadlock at a barrier, or
    its process died."""

    kind: Literal["crashed"] = "crashed"
    message: str
    findings: tuple[Finding, ...] = ()


class TimedOut(Noun):
    """The kernel did not finish within the deadline. The findings name the thread that did not end, and its location,
    if known."""

    kind: Literal["timed_out"] = "timed_out"
    message: str
    deadline_s: float
    findings: tuple[Finding, ...] = ()


class Unsupported(Noun):
    """The result is unknown. Never equivalent to clean."""

    kind: Literal["unsupported"] = "unsupported"
    message: str
    instruction: str | None = None
    line: int | None = None


class Stalled(Unsupported):
    """A check had too little CPU time within its wall-clock guard, so the result is unknown."""


class Rejected(Noun):
    """The integrity gate rejected it before it ran; the findings give reasons."""

    kind: Literal["rejected"] = "rejected"
    message: str
    findings: tuple[Finding, ...] = ()


CheckOutcome = Annotated[
    Correct | Mismatch | Crashed | TimedOut | Unsupported | Rejected | BuildFailed, Field(discriminator="kind")
]


class ConfigurationOutcome(Noun):
    """Support for one configuration of its task's folder; `message` is the reason if the kernel cannot serve it."""

    name: str
    is_served: bool
    message: str = ""


class Verdict(Noun):
    """Results of `evaluate` for one candidate on one device."""

    schema_version: int = SCHEMA_VERSION
    candidate_id: str
    depth: Literal["precheck", "rank", "screen", "full"] = "full"
    """``precheck``: as ``screen``, on the executor alone, before judges and hardware. ``screen``: built, one case
    checked, scored, to rank a search. ``full``: every case; only this is "verified"."""
    device: str
    """Device of the verdict: ``PTX executor (CPU)`` or the GPU's name."""
    outcome: CheckOutcome
    findings: tuple[Finding, ...] = ()
    kernels: tuple[KernelFacts, ...] = ()
    program_hash: str = ""
    """Hash of the compiled instructions, independent of the source text; empty when the build failed."""
    library_steps: tuple[str, ...] = ()
    """Vendor library functions that the kernel calls, e.g. ``aten::mm``; empty for a kernel without any."""
    foreign: str = ""
    """``torch extension`` or ``ModelNew`` for a kernel whose own host code runs; empty for one with a launch plan."""
    tolerance: str = "strict"
    """Tolerance of the comparison: ours, or that of another benchmark (`verify/foreign/foreign_cases.py`)."""
    by_tolerance: dict[str, str] = {}
    """``correct``, or why not, by tolerance; empty unless all were asked for. Values alone differ between them."""
    times: dict[str, Comparison] = {}
    """Comparison against eager by operation name."""
    configurations: tuple[ConfigurationOutcome, ...] = ()
    """Configurations of a task folder with several; those that share the first one's capture are served with it."""
    estimate: Estimate | None = None
    measurement: Measurement | None = None
    notes: tuple[str, ...] = ()
    evaluate_s: float = 0.0
    stages_s: dict[str, float] = {}
    """Seconds by stage: ``build``, ``executor``, ``references``, ``gpu wait``, ``gpu cases`` and so on."""

    @property
    def is_correct(self) -> bool:
        return self.outcome.kind == "correct"
