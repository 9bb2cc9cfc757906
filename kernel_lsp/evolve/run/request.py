"""The request of a run, stored with it, so that it resumes unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.model import Noun
from kernel_lsp.errors import TargetError
from kernel_lsp.evolve.propose.prompt_builder import assemble
from kernel_lsp.evolve.run.reuse import TunedSchedule


class ModelChoices(Noun):
    """The models of a run and their use; the settings of the same names. Without `models` it uses none."""

    models: tuple[str, ...] = ()
    model_base_url: str | None = None
    model_prices: str | None = None
    budget_usd: float | None = None
    model_deadline_s: float = 600.0
    model_idle_deadline_s: float = 120.0
    model_max_tokens: int = 16_384
    model_concurrency: int = 8
    model_requests_per_minute: float | None = None
    temperatures: tuple[float, ...] = (0.7,)
    strategy: Literal["evolve", "best-of-n", "beam", "agent"] = "evolve"
    ensemble: Literal["bandit", "uniform"] = "bandit"
    repair_rounds: int = 3
    islands: int = 2
    early_stop: Literal["on", "off"] = "on"
    judges: Literal["off", "filter"] = "off"
    judge_threshold: float = 0.35

    @classmethod
    def of(cls, settings: Settings) -> ModelChoices:
        return cls(**{name: getattr(settings, name) for name in cls.model_fields})

    def overrides(self) -> dict[str, Any]:
        """Return the overrides for `load_settings`."""
        return {name: getattr(self, name) for name in type(self).model_fields}


class SeedKernel(Noun):
    """Copy of a kernel from which a search starts."""

    name: str
    text: str

    def candidate(self, target: str) -> Candidate:
        """Return it as the first candidate, with `target` on its `task:` line, since results may go to another
        folder."""
        origin = Origin(proposer="user", description=f"the given {self.name}")
        return Candidate(text=assemble(self.text, target), origin=origin)


def read_seed_kernel(path: Path) -> SeedKernel:
    """Read the `.cu` file. Raises TargetError when it cannot be read as text."""
    try:
        return SeedKernel(name=path.name, text=path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"the kernel cannot be read: {error.strerror or error}"
        raise TargetError(message, file=str(path), next_step="check the path and its permissions") from None
    except UnicodeDecodeError:
        raise TargetError("the kernel is not UTF-8 text", file=str(path), line=1, next_step="name a .cu file") from None


class OptimizeRequest(Noun):
    """`target` is relative to `directory`; paths are absolute, so that a run can be resumed from elsewhere."""

    target: str
    directory: Path
    backward: bool = False
    device: str = "auto"
    target_gpu: str
    generations: int
    proposals: int
    seed: int
    out: Path | None = None
    python: Path | None = None
    choices: ModelChoices = ModelChoices()
    seed_kernels: tuple[SeedKernel, ...] = ()
    """The first candidates, which the search starts from and is compared with."""
    replay: Path | None = None
    """A recording that replies in place of every model."""
    tuned: TunedSchedule | None = None
    """The winner of an earlier search, found when the run began: a resumed run proposes the same."""
    peers: tuple[str, ...] = ()
    """Functions ``FILE::NAME`` of other libraries, timed beside PyTorch's baselines."""

    def given(self, target: str) -> tuple[Candidate, ...]:
        """Return the initial candidates, each once, with `target` on their `task:` line."""
        candidates = [kernel.candidate(target) for kernel in self.seed_kernels]
        return tuple({candidate.id: candidate for candidate in candidates}.values())

    @model_validator(mode="before")
    @classmethod
    def _one_seed_kernel(cls, value: Any) -> Any:
        """Accept archived runs from when there could be only one."""
        if not isinstance(value, dict) or "seed_kernel" not in value:
            return value
        others = {name: field for name, field in value.items() if name != "seed_kernel"}
        return others | {"seed_kernels": [value["seed_kernel"]] if value["seed_kernel"] is not None else []}
