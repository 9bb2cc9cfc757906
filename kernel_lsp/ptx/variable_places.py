"""Where the variables of a kernel lie in their spaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernel_lsp.ptx.syntax import Function, Variable

DYNAMIC_SHARED_ALIGN = 16


@dataclass(frozen=True)
class SharedLayout:
    """Offsets of a kernel's shared variables. Dynamic shared memory starts at `n_static_bytes`."""

    offsets: dict[str, int]
    n_static_bytes: int
    has_dynamic: bool


@dataclass
class Places:
    """Byte offsets of variables in one space."""

    offsets: dict[str, int] = field(default_factory=dict)
    n_bytes: int = 0

    def add(self, variable: Variable) -> None:
        start = round_up(self.n_bytes, max(1, variable.align))
        self.offsets[variable.name] = start
        self.n_bytes = start + variable.n_bytes


def shared_layout(kernel: Function, module_variables: Sequence[Variable]) -> SharedLayout:
    places, dynamic = Places(), []
    for variable in (*module_variables, *kernel.variables):
        if variable.space != "shared":
            continue
        if variable.is_extern:
            dynamic.append(variable.name)
        else:
            places.add(variable)
    n_static = round_up(places.n_bytes, DYNAMIC_SHARED_ALIGN) if dynamic else places.n_bytes
    return SharedLayout({**places.offsets, **dict.fromkeys(dynamic, n_static)}, n_static, bool(dynamic))


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
