"""State of a fusion: the computed roots, the pending ones, and scalars in terms of computed roots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernel_lsp.generate.fusion.graph import DefinitionGraph
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index
from kernel_lsp.generate.ir.scalar import Access, Constant, IndexValue, Scalar, masked, rewrite
from kernel_lsp.generate.ir.sizes import Sizes
from kernel_lsp.generate.ir.tensor import Buffer, Pointwise, Tensor


class NotReadyError(Exception):
    """The scalar reads a root that no earlier group has computed."""


class Progress:
    """`computed` are the roots of the groups so far, `pending` those without a group; `hints` are the names of scalars
    in the user's code. Results join a reduction in `joined` where they read its rows, which lie side by side. What a
    tensor in `written_to` would have is in its copy alone."""

    def __init__(self, graph: DefinitionGraph, sizes: Sizes, joined: frozenset[Tensor] = frozenset()) -> None:
        self.graph, self.sizes, self.joined = graph, sizes, joined
        self.computed: set[Tensor] = set()
        self.pending = [tensor for tensor in graph.live if graph.is_root(tensor)]
        self.hints: dict[bytes, str] = {}
        self.written_to: dict[Tensor, Tensor] = {}
        self._expanded: dict[bytes, Scalar] = {}
        self._local: frozenset[Tensor] = frozenset()
        self._n_variables = 0

    def is_ready(self, tensor: Tensor, group: Iterable[Tensor] = ()) -> bool:
        """Return True if all dependencies are computed, by earlier groups or by the roots of its own group."""
        return self.graph.needs(tensor) <= self.computed.union(group)

    def finish(self, roots: Sequence[Tensor]) -> None:
        """Mark the tensors as computed by a group."""
        self.computed |= set(roots)
        self.pending = [tensor for tensor in self.pending if tensor not in roots]
        self._expanded = {}

    def variable(self, name: str, extent: Index) -> Variable:
        """Return a fresh coordinate of a group."""
        self._n_variables += 1
        return Variable(name, -self._n_variables, extent)

    def element(
        self, tensor: Tensor, index: tuple[Index, ...], local: frozenset[Tensor] = frozenset()
    ) -> Scalar | None:
        """Return a pointwise tensor's element at `index`, expanded; None when it reads a root that is not computed
        yet."""
        definition = self.graph.definitions[tensor]
        assert isinstance(definition, Pointwise)
        try:
            return self.expand(definition.body.substitute(dict(zip(definition.variables, index, strict=True))), local)
        except NotReadyError:
            return None

    def expand(self, scalar: Scalar, local: frozenset[Tensor] = frozenset()) -> Scalar:
        """Return the scalar with pointwise definitions inlined. Accesses to `local` roots and to computed ones stay.
        Raises NotReadyError for a read of any other root."""
        if local != self._local:
            self._local, self._expanded = local, {}
        return rewrite(scalar, self._expand_access)

    def _expand_access(self, access: Access) -> Scalar:
        done = self._expanded.get(access.digest)
        if done is None:
            done = self._expanded[access.digest] = self._inline(access)
        return done

    def _inline(self, access: Access) -> Scalar:
        tensor = access.tensor
        definition = self.graph.definitions[tensor]
        if (copy := self.written_to.get(tensor)) is not None:
            return Access(copy, access.index, access.mask)
        if isinstance(definition, Buffer) or tensor in self._local or tensor in self.computed:
            return access
        if not isinstance(definition, Pointwise):
            raise NotReadyError(tensor.name)
        body = definition.body.substitute(dict(zip(definition.variables, access.index, strict=True)))
        expanded = rewrite(body, self._expand_access)
        if access.mask is not None:
            expanded = masked(access.mask, expanded)
        if not isinstance(expanded, Access | Constant | IndexValue):
            self.hints.setdefault(expanded.digest, tensor.name)
        return expanded
