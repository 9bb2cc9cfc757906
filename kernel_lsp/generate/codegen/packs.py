"""Vector loads and stores: packs of neighbouring elements that move as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.operators import ADD, Text, loaded
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import Store
from kernel_lsp.generate.index import (
    ONE,
    ZERO,
    Atom,
    Index,
    Variable,
    as_index,
    coefficient,
    divide_exactly,
    divides,
    replace_atoms,
    substitute,
)
from kernel_lsp.generate.row_major import ravel
from kernel_lsp.generate.scalar import Access, Scalar
from kernel_lsp.generate.scalar_walk import accesses
from kernel_lsp.generate.tensor import Tensor

MAX_PACK_BYTES = 16
"""The widest load of a thread on every architecture up to sm_90."""


@dataclass(frozen=True)
class Packing:
    """Flat position ``pack * vector + lane``. With `may_reverse` a pack may also be read and written from its end.

    `multiples` are sizes that the launch's condition makes multiples of `vector`, as such.
    """

    pack: Variable
    lane: Variable
    vector: int
    may_reverse: bool = False
    multiples: Mapping[Atom, Index] = field(default_factory=dict)

    @property
    def flat(self) -> Index:
        if self.vector == 1:
            return as_index(self.pack)
        return as_index(self.pack) * self.vector + as_index(self.lane)

    def substituted(self, stores: Sequence[Store], position: Variable) -> list[Store]:
        """The stores over pack and lane instead of a flat position."""
        replacements = {position: self.flat}
        return [
            replace(
                store,
                index=tuple(substitute(index, replacements) for index in store.index),
                scalar=store.scalar.substitute(replacements),
            )
            for store in stores
        ]

    def pack_position(self, flat: Index) -> Index | None:
        """Which pack of its tensor the element at `flat` is in, when all lanes share it; else None."""
        is_reversed = self.is_reversed(flat)
        if coefficient(flat, self.lane) != ONE and not is_reversed:
            return None
        start = substitute(flat, {self.lane: as_index(self.vector - 1) if is_reversed else ZERO})
        if self.multiples:
            start = replace_atoms(start, lambda atom: self.multiples.get(atom, as_index(atom)))
        if not divides(self.vector, start):
            return None
        return divide_exactly(start, as_index(self.vector))

    def is_reversed(self, flat: Index) -> bool:
        """Whether neighbouring lanes lie in memory from the last to the first."""
        return self.may_reverse and coefficient(flat, self.lane) == ZERO - 1

    def item_of(self, name: str, tensor: Tensor, index: Sequence[Index]) -> str:
        """The lane's element of a pack of `tensor`, as an lvalue."""
        lane = f"{self.vector - 1} - v" if self.is_reversed(ravel(index, tensor.shape)) else "v"
        return f"{name}.item[{lane}]"

    def load(self, scope: Scope, access: Access) -> str:
        """Declare the pack that holds the element; its name."""
        position = self.pack_position(ravel(access.index, access.tensor.shape))
        assert position is not None
        kernel = scope.kernel
        kernel.use("packs")
        name = kernel.pointer(access.tensor)
        text = f"packs<{self.vector}>({name})[{scope.index(position).text}]"
        return scope.declare(f"{name}_pack", f"Pack<{access.dtype.cuda_type}, {self.vector}>", text)

    def address(self, scope: Scope, access: Access) -> str:
        """The address of the pack that holds the element."""
        position = self.pack_position(ravel(access.index, access.tensor.shape))
        assert position is not None
        scope.kernel.use("packs")
        return f"packs<{self.vector}>({scope.kernel.pointer(access.tensor)}) + {scope.index(position).within(ADD)}"

    def item(self, name: str, dtype: DType) -> Text:
        """The lane's element of a pack."""
        return loaded(f"{name}.item[v]", dtype)

    def declare_result(self, scope: Scope, store: Store) -> str | None:
        """Declare a pack for a store that can be one; None for one that goes element by element."""
        is_wide = store.tensor.dtype.itemsize * self.vector > MAX_PACK_BYTES
        if is_wide or self.pack_position(ravel(store.index, store.tensor.shape)) is None:
            return None
        scope.kernel.use("packs")
        name = scope.names.take(f"{scope.kernel.target(store.tensor)}_pack")
        scope.line(f"Pack<{store.tensor.dtype.cuda_type}, {self.vector}> {name};")
        return name

    def store(self, scope: Scope, store: Store, name: str) -> None:
        position = self.pack_position(ravel(store.index, store.tensor.shape))
        assert position is not None
        target = scope.kernel.target(store.tensor)
        scope.line(f"packs<{self.vector}>({target})[{scope.index(position).text}] = {name};")


def find_packed(scalars: Sequence[Scalar], packing: Packing) -> list[Access]:
    """The reads that one vector load per thread can do, in a stable order."""
    found = []
    for access in accesses(*scalars):
        is_small = access.dtype.itemsize * packing.vector <= MAX_PACK_BYTES
        if access.mask is None and is_small:
            position = packing.pack_position(ravel(access.index, access.tensor.shape))
            if position is not None and packing.lane not in position.variables:
                found.append(access)
    return sorted(found, key=lambda access: (access.tensor.serial, access.digest))
