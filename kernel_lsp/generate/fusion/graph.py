"""The definitions that the outputs need: who reads whom, and which are roots, that something computes once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernel_lsp.generate.fusion.reads import live_tensors, operands_of, scalars_of
from kernel_lsp.generate.scalar import Access, Loop, Operation
from kernel_lsp.generate.scalar_walk import accesses, nodes
from kernel_lsp.generate.tensor import Attention, Buffer, Definition, Pointwise, Reduction, Tensor

MAX_REPEATED_NODES = 60
"""A pointwise definition larger than this that several kernels read is computed once and stored."""
MAX_FREE_OPERATIONS = 2
_COSTLY = "exp exp2 expm1 log log1p log2 log10 erf erfc tanh sigmoid gelu gelu_tanh silu pow sin cos tan"
COSTLY = frozenset(_COSTLY.split())


class DefinitionGraph:
    """What there is to fuse. Hard definitions (reductions, contractions, scans, scatters, library results) and outputs
    are roots; so are the pointwise ones in `forced`, which inlining would compute again and again."""

    def __init__(
        self, tensors: Sequence[Tensor], outputs: Sequence[Tensor], definitions: Mapping[Tensor, Definition]
    ) -> None:
        self.outputs = outputs
        self.definitions = {tensor: definitions.get(tensor, tensor.definition) for tensor in tensors}
        self.live = live_tensors(outputs, self.definitions)
        self.consumers = self._find_consumers()
        self.forced: set[Tensor] = set()
        self._needs: dict[Tensor, frozenset[Tensor]] = {}
        self._find_forced()

    def reads(self, tensor: Tensor) -> list[Tensor]:
        """The tensors that its definition mentions."""
        scalars = scalars_of(self.definitions[tensor])
        return list(dict.fromkeys(access.tensor for access in accesses(*scalars)))

    def is_hard(self, tensor: Tensor) -> bool:
        """Whether it takes more than an expression per element."""
        return not isinstance(self.definitions[tensor], Buffer | Pointwise)

    def is_root(self, tensor: Tensor) -> bool:
        """Whether some kernel must compute it."""
        if isinstance(self.definitions[tensor], Buffer):
            return False
        return self.is_hard(tensor) or tensor in self.forced or tensor in self.outputs

    def needs(self, tensor: Tensor) -> frozenset[Tensor]:
        """The roots whose memory it reads, when pointwise outputs are inlined rather than read."""
        if tensor not in self._needs:
            found: set[Tensor] = set()
            for read in self.reads(tensor):
                if self.is_hard(read) or read in self.forced:
                    found.add(read)
                elif not isinstance(self.definitions[read], Buffer):
                    found |= self.needs(read)
            self._needs[tensor] = frozenset(found)
        return self._needs[tensor]

    def sources(self, tensor: Tensor) -> frozenset[Tensor]:
        """The stored tensors that it reads in the end."""
        found: set[Tensor] = set()
        pending = [tensor]
        while pending:
            for read in self.reads(pending.pop()):
                if isinstance(self.definitions[read], Buffer) or self.is_hard(read) or read in self.forced:
                    found.add(read)
                else:
                    pending.append(read)
        return frozenset(found)

    # --- below: what is computed once although no output asks for it

    def _find_consumers(self) -> dict[Tensor, list[Tensor]]:
        """Who reads a tensor, with views looked through."""
        consumers: dict[Tensor, list[Tensor]] = {tensor: [] for tensor in self.live}
        for reader in reversed(self.live):
            readers = consumers[reader] if self._is_view(reader) and reader not in self.outputs else [reader]
            for tensor in self.reads(reader):
                consumers[tensor].extend(entry for entry in readers if entry not in consumers[tensor])
        return consumers

    def _is_view(self, tensor: Tensor) -> bool:
        definition = self.definitions[tensor]
        return isinstance(definition, Pointwise) and isinstance(definition.body, Access)

    def _find_forced(self) -> None:
        """Pointwise definitions to store although no output asks for them."""
        operands = {operand for tensor in self.live for operand in operands_of(self.definitions[tensor])}
        for tensor in reversed(self.live):
            definition = self.definitions[tensor]
            if isinstance(definition, Pointwise) and (
                tensor in operands or (not self._is_view(tensor) and self._repeats_work(tensor, definition))
            ):
                self.forced.add(tensor)

    def _repeats_work(self, tensor: Tensor, definition: Pointwise) -> bool:
        consumers = self.consumers[tensor]
        if _is_free(definition):
            return False
        if any(self._rereads(consumer) for consumer in consumers):
            return True
        has_loop = any(isinstance(node, Loop) for node in nodes(definition.body))
        if has_loop:
            return len(consumers) > 1 or any(self._leads_to_hard(consumer) for consumer in consumers)
        return len(consumers) > 1 and self._size_of_inlined(tensor, set()) > MAX_REPEATED_NODES

    def _rereads(self, consumer: Tensor) -> bool:
        """Whether the consumer reads each element of what it reads several times."""
        definition = self.definitions[consumer]
        if isinstance(definition, Attention) or (
            isinstance(definition, Reduction) and definition.contraction is not None
        ):
            return True
        return any(isinstance(node, Loop) for node in nodes(*scalars_of(definition)))

    def _leads_to_hard(self, tensor: Tensor) -> bool:
        if tensor in self.forced:
            return False
        if self.is_hard(tensor):
            return True
        return any(self._leads_to_hard(consumer) for consumer in self.consumers[tensor])

    def _size_of_inlined(self, tensor: Tensor, seen: set[Tensor]) -> int:
        definition = self.definitions[tensor]
        if tensor in seen or not isinstance(definition, Pointwise):
            return 0
        seen.add(tensor)
        here = sum(3 if isinstance(node, Operation) and node.name in COSTLY else 1 for node in nodes(definition.body))
        return here + sum(self._size_of_inlined(read, seen) for read in self.reads(tensor))


def _is_free(definition: Pointwise) -> bool:
    """Whether recomputing it is as good as reading it: casts, a scale or a shift of at most one tensor."""
    if any(isinstance(node, Loop) for node in nodes(definition.body)):
        return False
    operations = [node for node in nodes(definition.body) if isinstance(node, Operation)]
    n_reads = sum(1 for _ in accesses(definition.body))
    return n_reads == 0 or (n_reads == 1 and len(operations) <= MAX_FREE_OPERATIONS and _are_cheap(operations))


def _are_cheap(operations: Sequence[Operation]) -> bool:
    return all(operation.name in ("cast", "mul", "add", "sub", "neg") for operation in operations)
