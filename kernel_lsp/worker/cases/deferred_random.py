"""Let the user's code return large random tensors that are made later, where they are needed."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..capture.inputs import TensorLeaf
from .families import PLAIN

DRAWN_ELEMENTS = 1 << 26
"""Elements from which a tensor of `torch.rand` is made later: 256 MiB."""
KEEPS_VALUES = frozenset(("detach", "cpu", "contiguous"))
"""Functions that return a tensor's own memory. With more arguments, such as a memory format, they may copy it."""


class DeferredRandom(TorchFunctionMode):
    """Returns stand-ins for large tensors of `torch.rand` on processors. Once the user's code has returned, `seed_of`
    tells which of its tensors are such. Code that looks at one, or computes with it, is ended by a RuntimeError, and
    `was_read` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.was_read = False
        self._seeds: dict[int, tuple[torch.Tensor, int]] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if function is torch.rand and given.keys() <= PLAIN:
            like = torch.empty(*args, **{**given, "device": "meta"})
            device = torch.empty(0, device=given.get("device")).device  # the code may have set another default
            is_plain = like.dtype is torch.float32 and device.type == "cpu"
            if is_plain and like.numel() >= DRAWN_ELEMENTS:
                return self._stand_in(like)
        is_kept = getattr(function, "__name__", "") in KEEPS_VALUES and len(args) == 1 and not given
        if not is_kept and any(map(self._is_stand_in, pytree.tree_leaves((args, given)))):
            self.was_read = True
            raise RuntimeError("large random numbers are read")
        return function(*args, **given)

    def seed_of(self, value: torch.Tensor) -> int | None:
        """Return the seed of a tensor that stands for numbers; None for one that holds its own."""
        return self._seeds[value.untyped_storage().data_ptr()][1] if self._is_stand_in(value) else None

    def _stand_in(self, like: torch.Tensor) -> torch.Tensor:
        with torch.device("cpu"):
            made = TensorLeaf("", torch.float32, tuple(like.shape)).empty()
            seed = int(torch.randint(1 << 62, ()).item())
        self._seeds[made.untyped_storage().data_ptr()] = (made, seed)
        return made

    def _is_stand_in(self, value: Any) -> bool:
        is_stored = isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type == "cpu"
        return is_stored and value.untyped_storage().data_ptr() in self._seeds
