"""A target as its text shows it, before any of it runs."""

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
    """[low, high) for integers that index something."""


class ScalarInput(Noun):
    """A Python number that a pragma gives."""

    kind: Literal["scalar"] = "scalar"
    name: str
    value: float | int | bool


class TargetSource(Noun):
    """Where a target is and what its text says of its inputs. `inputs` is None when neither pragma nor annotations say:
    then `get_inputs` must (`has_get_inputs`), or a robust-kbench folder's configurations.

    `symbol` is empty for a KernelBench file or a task folder. `example_pragma` is what to add when nothing says.
    """

    target: str
    file: str
    """The Python file; for a robust-kbench folder its `func_forward.py`."""
    symbol: str
    kind: TargetKind
    line: int
    parameters: tuple[str, ...]
    """Of the function or of `forward`, without `self`."""
    inputs: tuple[TensorInput | ScalarInput, ...] | None
    init_arguments: dict[str, float | int | bool | str] | None = None
    """Keyword arguments to construct a module with, from ``# kernel-lsp: init: dim=4096, eps=1e-6``."""
    has_get_inputs: bool = False
    has_get_init_inputs: bool = False
    example_pragma: str
