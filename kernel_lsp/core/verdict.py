"""Outcomes are values. Nothing here is ever None to mean failure."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kernel_lsp.core.finding import Finding
from kernel_lsp.core.measurement import Comparison, Estimate, Measurement
from kernel_lsp.core.model import SCHEMA_VERSION, Noun


class KernelFacts(Noun):
    """What ptxas says of one compiled kernel. `symbol` is its mangled name."""

    kernel: str
    symbol: str
    n_registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    shared_bytes: int


class Built(Noun):
    """It compiled. `ptx` is the text of the PTX, `cubin` the machine code in base64; `symbols` maps each name
    expression to its symbol."""

    kind: Literal["built"] = "built"
    architecture: str
    ptx: str = Field(repr=False)
    cubin: str = Field("", repr=False)
    symbols: dict[str, str]
    kernels: tuple[KernelFacts, ...] = ()
    warnings: tuple[Finding, ...] = ()
    compile_s: float = 0.0
    from_cache: bool = False


class BuildFailed(Noun):
    """It did not compile; the findings say where."""

    kind: Literal["build_failed"] = "build_failed"
    findings: tuple[Finding, ...]
    log: str = ""


BuildOutcome = Annotated[Built | BuildFailed, Field(discriminator="kind")]


class TensorError(Noun):
    """How far one output is from the fp64 reference. `relative_l2` is ||out - ref|| / ||ref||; budgets are what the
    dtype allows here. `n_nans_lost` are numbers where PyTorch has NaN and leaving it out is right, too; `n_cut_off`
    are results of 16 bits that were cut off, where nearly all were. `worst_index` is where the largest error beyond its
    budget is."""

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
    """One case: an operation, shapes and an input family. `n_blocks_run` of `n_blocks` ran when blocks were sampled.
    `device` is where: the executor or the GPU's name."""

    device: str = "PTX executor (CPU)"
    operation: str
    family: str
    shapes: dict[str, tuple[int, ...]]
    n_blocks: int
    n_blocks_run: int
    errors: tuple[TensorError, ...]


class Correct(Noun):
    """Every case is inside its budget and no check fired."""

    kind: Literal["correct"] = "correct"
    cases: tuple[CaseResult, ...]


class Mismatch(Noun):
    """A case is outside its budget: `failed` is the first such case."""

    kind: Literal["mismatch"] = "mismatch"
    message: str
    failed: CaseResult
    cases: tuple[CaseResult, ...] = ()


class Crashed(Noun):
    """The kernel did what a kernel may not do: an access out of bounds, a trap, a deadlock at a barrier. Or the process
    that ran it died."""

    kind: Literal["crashed"] = "crashed"
    message: str
    findings: tuple[Finding, ...] = ()


class TimedOut(Noun):
    """No end within the deadline. The findings say which thread found none, and where, if that is known."""

    kind: Literal["timed_out"] = "timed_out"
    message: str
    deadline_s: float
    findings: tuple[Finding, ...] = ()


class Unsupported(Noun):
    """We cannot tell. Never the same as clean."""

    kind: Literal["unsupported"] = "unsupported"
    message: str
    instruction: str | None = None
    line: int | None = None


class Rejected(Noun):
    """The integrity gate refused it before it ran; the findings say why."""

    kind: Literal["rejected"] = "rejected"
    message: str
    findings: tuple[Finding, ...] = ()


CheckOutcome = Annotated[
    Correct | Mismatch | Crashed | TimedOut | Unsupported | Rejected | BuildFailed, Field(discriminator="kind")
]


class ConfigurationOutcome(Noun):
    """Whether a kernel serves one configuration of its task's folder; `message` says why it does not."""

    name: str
    is_served: bool
    message: str = ""


class Verdict(Noun):
    """Everything `evaluate` found out about one candidate on one device."""

    schema_version: int = SCHEMA_VERSION
    candidate_id: str
    depth: Literal["precheck", "screen", "full"] = "full"
    """``precheck``: as ``screen``, by the executor alone, before judges and hardware. ``screen``: built, one case
    checked, scored, to rank a search. ``full``: every case; only this is "verified"."""
    device: str
    """Where it was reached: ``PTX executor (CPU)`` or the GPU's name."""
    outcome: CheckOutcome
    findings: tuple[Finding, ...] = ()
    kernels: tuple[KernelFacts, ...] = ()
    program_hash: str = ""
    """Of the instructions that it compiled to, whatever its text looks like; empty when it did not compile."""
    library_steps: tuple[str, ...] = ()
    """The vendor library functions that it calls, e.g. ``aten::mm``; empty for a kernel that is all its own."""
    foreign: str = ""
    """``torch extension`` or ``ModelNew`` for a kernel whose own host code runs; empty for one with a launch plan."""
    tolerance: str = "strict"
    """Which errors were allowed: ours, or the tolerance of another benchmark (`verify/foreign/tolerances.py`)."""
    times: dict[str, Comparison] = {}
    """By operation name: against eager."""
    configurations: tuple[ConfigurationOutcome, ...] = ()
    """Of a task folder with several: those that share the first one's capture are served with it."""
    estimate: Estimate | None = None
    measurement: Measurement | None = None
    notes: tuple[str, ...] = ()
    evaluate_s: float = 0.0
    stages_s: dict[str, float] = {}
    """Where the time went, by stage: ``build``, ``executor``, ``references``, ``gpu wait``, ``gpu cases`` and so on."""

    @property
    def is_correct(self) -> bool:
        return self.outcome.kind == "correct"
