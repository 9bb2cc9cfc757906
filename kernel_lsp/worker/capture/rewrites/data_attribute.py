"""Trace `tensor.data`, which an export cannot: it makes a constant of what it does not follow."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

DATA: Any = torch.Tensor.data


class DataIsDetached(TorchFunctionMode):
    """Returns ``tensor.detach()`` for ``tensor.data``: the same values in the same memory. The gradients differ where
    such a tensor is changed in place, which autograd does not see: `changes_data` says that it may be."""

    def __init__(self) -> None:
        super().__init__()
        self._is_read, self.changes_data = False, False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__self__", None) is DATA and function.__name__ == "__get__":
            self._is_read = True
            return args[0].detach()
        name = getattr(function, "__name__", "")
        is_in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name[:3] == "__i"
        self.changes_data = self.changes_data or (self._is_read and is_in_place)
        return function(*args, **(kwargs or {}))
