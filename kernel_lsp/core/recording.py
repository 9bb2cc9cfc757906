"""A recorded run of the user's program: the targets that it called, their configurations and their share of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from kernel_lsp.core.model import Noun

RECORDING_VERSION: Literal[1] = 1
MAX_TARGETS = 512
MAX_CONFIGURATIONS = 64
MAX_TEXT = 4_096
"""Maximum characters of a configuration's inputs or constructor arguments."""

Text = Annotated[str, Field(max_length=MAX_TEXT, pattern=r"^[^\x00-\x1f\x7f]*$")]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=1 << 53)]


class RecordedProgram(Noun):
    """The program that an entry is of, where that is another than the last one."""

    command: tuple[str, ...]
    date: str
    device: str


class RecordedConfiguration(Noun):
    """Calls of a target with the same shapes, dtypes, layouts, scalars and mode. `inputs` and `init` are written as in
    a pragma; `init` is None for a function. `opaque` names the arguments that a pragma cannot state."""

    inputs: Text
    init: Text | None = None
    opaque: tuple[Text, ...] = ()
    layouts: dict[Text, Text] = {}
    """Strides of inputs that are not contiguous."""
    mode: Literal["", "training", "eval"] = ""
    grad: bool = False
    """Autograd recorded the call."""
    n_calls: Count
    source: RecordedProgram | None = None


class RecordedTarget(Noun):
    """A function or module of the workspace. Times are means per step and include what the target calls. `share` is
    their part of a step, forward and backward, of the program that last called the target."""

    share: Annotated[float, Field(ge=0, le=1)]
    forward_us: Amount
    backward_us: Amount
    n_calls: Count
    n_calls_of_others: Count = 0
    """Calls of configurations beyond the listed ones."""
    is_module: bool = False
    source: RecordedProgram | None = None
    configurations: Annotated[tuple[RecordedConfiguration, ...], Field(max_length=MAX_CONFIGURATIONS)]
    """The most frequent first, whichever program called."""


class Recording(Noun):
    """The last recorded run, as in `.kernel-lsp/recorded.json`, with what earlier runs of other programs recorded.
    Targets are named by file, relative to the workspace, and symbol; the largest share of the last program comes first.
    """

    version: Literal[1]
    command: tuple[str, ...]
    date: str
    device: str
    torch: str
    seconds: Amount
    n_steps: Count
    step_us: Amount
    targets: Annotated[dict[Text, RecordedTarget], Field(max_length=MAX_TARGETS)]


SpeedupKind = Literal["measured", "estimated", "roofline"]


class Speedup(Noun):
    """Speedup of a target: by its verified kernel, or at most, at the speed of light."""

    ratio: Annotated[float, Field(gt=0)]
    kind: SpeedupKind


class HotSpot(Noun):
    """A recorded target. `gain` is the part of a step that its kernel saves (Amdahl's law), or without a known
    `speedup` could save at most."""

    target: str
    share: float
    gain: float
    speedup: Speedup | None
    n_calls: int
    inputs: str
    source: RecordedProgram | None = None


def with_earlier(recording: Recording, earlier: Recording) -> Recording:
    """Return a new recording together with what other programs recorded earlier; its own program's is replaced."""
    last = RecordedProgram(command=earlier.command, date=earlier.date, device=earlier.device)
    targets = dict(recording.targets)
    for name, target in earlier.targets.items():
        kept = [_of_program(each, each.source or target.source or last) for each in target.configurations]
        kept = [each for each in kept if each.source is not None and each.source.command != recording.command]
        source = target.source or last
        if name in targets:
            targets[name] = _with_configurations(targets[name], kept)
        elif source.command != recording.command and len(targets) < MAX_TARGETS:
            targets[name] = target.model_copy(update={"source": source, "configurations": tuple(kept)})
    return recording.model_copy(update={"targets": targets})


def rank_hot_spots(recording: Recording, speedups: Mapping[str, Speedup]) -> tuple[HotSpot, ...]:
    """Rank the recorded targets by share times headroom, the largest gain first."""
    found = [_hot_spot(name, target, speedups.get(name)) for name, target in recording.targets.items()]
    return tuple(sorted(found, key=lambda spot: (-spot.gain, -spot.share)))


def _of_program(configuration: RecordedConfiguration, source: RecordedProgram) -> RecordedConfiguration:
    return configuration.model_copy(update={"source": source})


def _with_configurations(target: RecordedTarget, earlier: Sequence[RecordedConfiguration]) -> RecordedTarget:
    """Return a target with the configurations that other programs called it with, where its own has none of them."""
    known = {(each.inputs, each.init, each.mode) for each in target.configurations}
    others = [each for each in earlier if (each.inputs, each.init, each.mode) not in known]
    found = sorted((*target.configurations, *others), key=lambda each: -each.n_calls)
    return target.model_copy(update={"configurations": tuple(found[:MAX_CONFIGURATIONS])})


def _hot_spot(name: str, target: RecordedTarget, speedup: Speedup | None) -> HotSpot:
    headroom = 1.0 if speedup is None else max(0.0, 1.0 - 1.0 / speedup.ratio)
    counted = [each for each in target.configurations if each.source in (None, target.source)]
    return HotSpot(
        target=name,
        share=target.share,
        gain=target.share * headroom,
        speedup=speedup,
        n_calls=target.n_calls,
        inputs=counted[0].inputs if counted else "",
        source=target.source,
    )
