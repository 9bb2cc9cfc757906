"""A target as described by its source text, before any of it runs."""

from __future__ import annotations

from typing import Literal

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.model import Noun
from kernel_lsp.core.task import TargetKind


class TensorInput(Noun):
    """A tensor that a pragma or an annotation describes. `dim_names` has a name or None per dim."""

    kind: Literal["tensor"] = "tensor"
    name: str
    dtype: DType
    shape: tuple[int, ...]
    dim_names: tuple[str | None, ...] = ()
    integer_range: tuple[int, int] | None = None
    """Range [low, high) of an integer tensor used as an index."""


class ScalarInput(Noun):
    """A Python number specified by a pragma."""

    kind: Literal["scalar"] = "scalar"
    name: str
    value: float | int | bool


class AttributeValue(Noun):
    """A value for a float attribute of a module, by its path; `name` is the task's argument."""

    name: str
    path: str
    value: float


class InputConfiguration(Noun):
    """Further inputs that a target must be correct for, e.g. from a recorded run, with its constructor's arguments."""

    name: str
    inputs: tuple[TensorInput | ScalarInput, ...]
    init_arguments: dict[str, float | int | bool | str] | None = None


class TargetSource(Noun):
    """Location of a target and the inputs declared in its text. `inputs` is None without a pragma or annotations: then
    `get_inputs` (`has_get_inputs`) or a robust-kbench folder's configurations define them.

    `symbol` is empty for a KernelBench file or a task folder. `example_pragma` is a pragma to add when nothing declares
    inputs.
    """

    target: str
    file: str
    """The Python file; for a robust-kbench folder its `func_forward.py`."""
    symbol: str
    kind: TargetKind
    line: int
    parameters: tuple[str, ...]
    """Parameters of the function or of `forward`, without `self`."""
    inputs: tuple[TensorInput | ScalarInput, ...] | None
    init_arguments: dict[str, float | int | bool | str] | None = None
    """Keyword arguments to construct a module with, from ``# kernel-lsp: init: dim=4096, eps=1e-6``."""
    attributes: tuple[AttributeValue, ...] | None = None
    """Attributes to set before a capture with other numbers; None for the capture of a task."""
    configurations: tuple[InputConfiguration, ...] = ()
    """Recorded configurations other than `inputs`, the most frequent first."""
    inputs_are_recorded: bool = False
    """True if the text declares no inputs: `inputs` is then the most frequent recorded configuration."""
    digest: str = ""
    """Identifies its text, without calls that were inserted by us; empty for a task folder."""
    has_get_inputs: bool = False
    has_get_init_inputs: bool = False
    configuration: int = 0
    """Index of a task folder's configuration to capture alone; 0 captures the first and covers others."""
    example_pragma: str
