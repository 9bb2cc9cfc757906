"""Suggest pragmas from a signature, with guessed values that are easy to correct."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernel_lsp.core.expression import free_names
from kernel_lsp.source.annotation import annotation_kind, tensor_item
from kernel_lsp.source.pragma import InitValue, Pragma, PragmaError, TensorItem
from kernel_lsp.source.python_file import Parameter


@dataclass(frozen=True)
class UnknownSize:
    """A named dim without a size."""

    name: str
    tensor: str


def example_pragma(parameters: Sequence[Parameter]) -> str:
    """Return ``# kernel-lsp: x=f32[1024, 4096], weight=f32[4096], eps=1e-6`` for the parameters without a default, or
    for all when every one has a default."""
    needed = [parameter for parameter in parameters if not parameter.has_default] or list(parameters)
    items = ", ".join(_example_item(parameter) for parameter in needed)
    return f"# kernel-lsp: {items or 'x=f32[1024, 4096]'}"


def example_init_pragma(parameters: Sequence[Parameter], given: Mapping[str, InitValue]) -> str:
    """Return ``# kernel-lsp: init: dim=1024`` for a constructor, with given arguments and guesses for the others."""
    items = [f"{name}={value!r}" for name, value in given.items()]
    items += [f"{p.name}={_example_init_value(p)}" for p in parameters if not p.has_default and p.name not in given]
    return f"# kernel-lsp: init: {', '.join(items)}"


def example_sizes_pragma(items: Iterable[TensorItem], sizes: Mapping[str, int]) -> tuple[UnknownSize, str] | None:
    """Return the first dim without a size, and a pragma with sizes for all such dims; None when every dim has one."""
    unknown: dict[str, str] = {}
    for item in items:
        for dim in item.dims:
            for name in sorted(free_names(dim) - sizes.keys()):
                unknown.setdefault(name, item.name)
    if not unknown:
        return None
    name, tensor = next(iter(unknown.items()))
    return UnknownSize(name, tensor), f"# kernel-lsp: {', '.join(f'{dim}={_EXAMPLE_DIM}' for dim in unknown)}"


# --- below: guesses by name, from what PyTorch code commonly calls things

_EXAMPLE_DIM = 1024
_EXAMPLE_SHAPES = {1: (4096,), 2: (1024, 4096), 3: (8, 512, 1024), 4: (8, 64, 56, 56)}
"""Example shapes by rank: rows of a matrix, a batch of sequences, a batch of images."""
_VECTORS = ("weight", "bias", "gamma", "beta", "scale", "shift", "mean", "var", "running_mean", "running_var")
_INDICES = ("target", "targets", "label", "labels", "index", "indices", "tokens", "token_ids", "input_ids", "ids")
_FLOATS = {"eps": "1e-6", "epsilon": "1e-6", "alpha": "1.0", "temperature": "0.7", "dropout": "0.0", "p": "0.0"}


def _example_item(parameter: Parameter) -> str:
    match annotation_kind(parameter.annotation):
        case "float":
            value = _FLOATS.get(parameter.name, "0.5")
        case "int":
            value = "-1" if parameter.name in ("dim", "axis") else "4"
        case "bool":
            value = "True"
        case "none" if parameter.name in _FLOATS:
            value = _FLOATS[parameter.name]
        case _:
            value = _example_tensor(parameter)
    return f"{parameter.name}={value}"


def _example_init_value(parameter: Parameter) -> str:
    """Return an example constructor argument, usually a size."""
    kind = annotation_kind(parameter.annotation)
    if parameter.name in _FLOATS:
        return _FLOATS[parameter.name]
    return {"float": "0.5", "bool": "True"}.get(kind, str(_EXAMPLE_DIM))


def _example_tensor(parameter: Parameter) -> str:
    try:
        known = tensor_item(parameter.name, parameter.annotation, Pragma())
    except PragmaError:
        known = None
    if known is not None:
        dims = ", ".join(f"{dim}={_EXAMPLE_DIM}" if str(dim).isidentifier() else str(dim) for dim in known.dims)
        return f"{known.dtype}[{dims}]"
    if parameter.name in _INDICES:
        return "i64[1024] in [0, 1000)"
    if "mask" in parameter.name:
        return "bool[1024, 4096]"
    if parameter.rank:
        return f"f32[{', '.join(map(str, _EXAMPLE_SHAPES.get(parameter.rank, (8,) * parameter.rank)))}]"
    return "f32[4096]" if parameter.name in _VECTORS else "f32[1024, 4096]"
