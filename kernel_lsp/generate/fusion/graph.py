"""Dependency graph of the live definitions: what they read, their consumers, and the roots, which some kernel computes
once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index, divide_exactly
from kernel_lsp.generate.ir.scalar import Access, IndexValue, Loop, Operation, Scalar, accesses, nodes
from kernel_lsp.generate.ir.tensor import (
    Attention,
    AttentionGradient,
    Buffer,
    Contraction,
    Definition,
    LibraryResult,
    LogSums,
    LoopResult,
    Phases,
    Pointwise,
    Reduction,
    Routine,
    Scan,
    Scatter,
    StepLoop,
    Tensor,
    pattern_of,
)


def live_tensors(outputs: Sequence[Tensor], definitions: Mapping[Tensor, Definition]) -> list[Tensor]:
    """Return every tensor that the outputs depend on, in the order of definition. `definitions` overrides the tensors'
    own."""
    found: set[Tensor] = set()
    pending = list(outputs)
    while pending:
        tensor = pending.pop()
        if tensor not in found:
            found.add(tensor)
            scalars = scalars_of(definitions.get(tensor, tensor.definition))
            pending.extend(access.tensor for access in accesses(*scalars))
    return sorted(found, key=lambda tensor: tensor.serial)


def scalars_of(definition: Definition) -> list[Scalar]:
    """Return every scalar that the definition evaluates; library calls and routines read their operands."""
    match definition:
        case Reduction(contraction=Contraction(form_by_phases=Phases(left=left, right=right))):
            return [left, right]
        case Pointwise(_, body) | Reduction(body=body) | Scan(body=body):
            return [body]
        case Attention():
            return [definition.query_part, definition.key_part, definition.value, definition.score]
        case LogSums(result=result):
            return [result]
        case AttentionGradient():
            factors = [definition.query_part, definition.key_part, definition.value, definition.grad, definition.score]
            return [*factors, *(definition.statistics or ())]
        case Scatter():
            carriers: list[Scalar] = [IndexValue(index) for index in definition.index]
            return [definition.body, *carriers, definition.base]
        case LoopResult(loop=loop):
            return loop_scalars(loop)
        case LibraryResult() | Routine():
            return [Access(operand, [as_index(0)] * len(operand.shape)) for operand in operands_of(definition)]
    return []


def loop_scalars(loop: StepLoop) -> list[Scalar]:
    """Return what a loop reads of other tensors, element by element."""
    own = {tensor for entry in loop.tensors for tensor in (entry.now, entry.before)}
    bodies = [entry.definition.body for entry in loop.tensors]
    bodies += [entry.first.body for entry in loop.tensors if entry.first is not None]
    return [access for access in accesses(*bodies) if access.tensor not in own]


def operands_of(definition: Definition) -> list[Tensor]:
    """Return the tensors that a library call, a routine or a contraction by phases needs in memory; none for other
    definitions."""
    if isinstance(definition, Routine):
        return list(definition.operands)
    if isinstance(definition, Reduction) and definition.contraction is not None:
        phases = definition.contraction.form_by_phases
        return list(definition.contraction.stored if phases is None else phases.stored)
    if not isinstance(definition, LibraryResult):
        return []
    return [argument for argument in definition.call.arguments if isinstance(argument, Tensor)]


MAX_REPEATED_NODES = 60
"""Maximum nodes per element of a pointwise definition that several kernels recompute. A larger one is computed once and
stored. What it reads of smaller tensors does not count: that is computed once for many elements."""
MIN_BROADCAST = 32
"""Minimum elements that read each element of a sum, found by a loop of each thread, for the sum to be stored."""
MAX_FREE_OPERATIONS = 2
_COSTLY = "exp exp2 expm1 log log1p log2 log10 erf erfc tanh sigmoid gelu gelu_tanh silu pow sin cos tan"
COSTLY = frozenset(_COSTLY.split())


class DefinitionGraph:
    """Dependency graph of the definitions to fuse.

    Hard definitions (reductions, contractions, scans, scatters, library results, routines) and outputs are roots.
    Pointwise definitions in `forced` are roots too: inlining would recompute them many times. Definitions in `inlined`
    are computed where they are read, including their loops.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        definitions: Mapping[Tensor, Definition],
        inlined: frozenset[Tensor],
    ) -> None:
        self.outputs, self.inlined = outputs, inlined
        self.definitions = {tensor: definitions.get(tensor, tensor.definition) for tensor in tensors}
        self._reads: dict[Tensor, list[Tensor]] = {}
        self.live = live_tensors(outputs, self.definitions)
        self.consumers = self._find_consumers()
        self.forced: set[Tensor] = set()
        self._needs: dict[Tensor, frozenset[Tensor]] = {}
        self._find_forced()

    def reads(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors in its definition."""
        if tensor not in self._reads:
            scalars = scalars_of(self.definitions[tensor])
            self._reads[tensor] = list(dict.fromkeys(access.tensor for access in accesses(*scalars)))
        return self._reads[tensor]

    def is_hard(self, tensor: Tensor) -> bool:
        """Return True if the definition needs more than one expression per element."""
        return not isinstance(self.definitions[tensor], Buffer | Pointwise)

    def is_root(self, tensor: Tensor) -> bool:
        """Return True if some kernel must compute the tensor."""
        if isinstance(self.definitions[tensor], Buffer):
            return False
        return self.is_hard(tensor) or tensor in self.forced or tensor in self.outputs

    def needs(self, tensor: Tensor) -> frozenset[Tensor]:
        """Return the roots whose memory it reads, when pointwise outputs are inlined rather than read."""
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
        """Return the stored tensors that it depends on."""
        reads = self._read_through(tensor, lambda each: not self._is_stored(each))
        return frozenset(read for read in reads if self._is_stored(read))

    def rereads(self, tensor: Tensor, roots: Iterable[Tensor]) -> bool:
        """Return True if the definition, with what it reads inlined, reads elements of one of the roots several times:
        a thread that computes both would compute each of those elements again."""
        needed = self.needs(tensor).intersection(roots)
        if not needed:
            return False
        between = self._read_through(tensor, lambda each: not self._is_stored(each))
        readers = [tensor, *(read for read in between if not self._is_stored(read))]
        return any(self._rereads(reader, root) for reader in readers for root in needed & self.needs(reader))

    def _is_stored(self, tensor: Tensor) -> bool:
        return isinstance(self.definitions[tensor], Buffer) or self.is_hard(tensor) or tensor in self.forced

    def _read_through(self, tensor: Tensor, is_passed: Callable[[Tensor], bool]) -> Iterator[Tensor]:
        """Yield what it reads, directly or through tensors that `is_passed`, each once."""
        seen, pending = {tensor}, [tensor]
        while pending:
            for read in self.reads(pending.pop()):
                if read in seen:
                    continue
                seen.add(read)
                yield read
                if is_passed(read):
                    pending.append(read)

    def _find_consumers(self) -> dict[Tensor, list[Tensor]]:
        """Return the consumers of each tensor. A view is replaced by its own consumers."""
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
        """Collect pointwise definitions that are stored although they are no outputs."""
        operands = {operand for tensor in self.live for operand in operands_of(self.definitions[tensor])}
        for tensor in reversed(self.live):
            definition = self.definitions[tensor]
            if not isinstance(definition, Pointwise) or tensor in self.inlined:
                continue
            is_better_stored = self._repeats_work(tensor, definition) or self._closes_rows(tensor)
            if tensor in operands or (is_better_stored and not self._is_view(tensor)):
                self.forced.add(tensor)

    def _repeats_work(self, tensor: Tensor, definition: Pointwise) -> bool:
        consumers = self.consumers[tensor]
        if self._holds_loop(tensor) and any(_is_broadcast(tensor, consumer) for consumer in consumers):
            return True
        if _is_free(definition) and not self._rounds_work(tensor, definition):
            return False
        if any(self._rereads(consumer, tensor) for consumer in consumers):
            return True
        if any(isinstance(node, Loop) for node in nodes(definition.body)):
            return len(consumers) > 1 or any(self._leads_to_hard(consumer) for consumer in consumers)
        is_large = len(consumers) > 1 and self._size_of_inlined(tensor) > MAX_REPEATED_NODES
        return is_large and not self._stays_in_rows(tensor)

    def _rounds_work(self, tensor: Tensor, definition: Pointwise) -> bool:
        """Return True for the rounding to 16 bits of a value that takes work and that nothing stores before: tensor
        cores multiply the rounded one, so that the value itself has no reader that would repeat the work."""
        reads = [access.tensor for access in accesses(definition.body)]
        if len(reads) != 1 or tensor.dtype.itemsize >= reads[0].dtype.itemsize or tensor.shape != reads[0].shape:
            return False
        inner = self.definitions[reads[0]]
        if not isinstance(inner, Pointwise) or reads[0] in self.inlined or self._is_view(reads[0]):
            return False
        return not _is_free(inner) and not self._repeats_work(reads[0], inner)

    def _holds_loop(self, tensor: Tensor) -> bool:
        """Return True if an element of the pointwise definition takes a loop, its own or that of what it alone reads:
        roundings to 16 bits lie between a product of few terms and its sigmoid."""
        definition = self.definitions[tensor]
        if not isinstance(definition, Pointwise):
            return False
        if any(isinstance(node, Loop) for node in nodes(definition.body)):
            return True
        own = (read for read in self.reads(tensor) if self.consumers[read] == [tensor])
        return any(read.n_elements == tensor.n_elements and self._holds_loop(read) for read in own)

    def _stays_in_rows(self, tensor: Tensor) -> bool:
        """Return True if sums over rows of the tensor, and what has its elements and needs such a sum, are its only
        consumers. One kernel has the row on chip for all of them, and a store would take a write and two reads."""
        sums = [entry for entry in self.consumers[tensor] if self.is_hard(entry)]
        others = [entry for entry in self.consumers[tensor] if entry not in sums]
        rows = {self._row_length(entry) for entry in sums}
        if not others or len(rows) != 1 or None in rows:
            return False
        return all(
            entry.n_elements == tensor.n_elements and not self._reductions_below(entry).isdisjoint(sums)
            for entry in others
        )

    def _row_length(self, tensor: Tensor) -> Index | None:
        """Return the length of the rows that a reduction combines, one after the other in memory; None for others."""
        definition = self.definitions[tensor]
        if not isinstance(definition, Reduction) or definition.contraction is not None:
            return None
        pattern = pattern_of(definition)
        return pattern[1][1] if [kind for kind, _ in pattern] == ["o", "r"] else None

    def _closes_rows(self, tensor: Tensor) -> bool:
        """Return True if the tensor has one value per row, computed from longer rows, and is then summed. The kernel of
        the rows has all inputs at hand; the sum would read them again."""
        consumers = self.consumers[tensor]
        if not consumers or not all(isinstance(self.definitions[entry], Reduction) for entry in consumers):
            return False
        rows = [read for read in self._reductions_below(tensor) if read.n_elements == tensor.n_elements]
        return bool(rows) and self._size_of_inlined(tensor) > MAX_FREE_OPERATIONS

    def _reductions_below(self, tensor: Tensor) -> set[Tensor]:
        """Return the reductions that it reads through pointwise definitions."""
        reads = self._read_through(tensor, lambda each: isinstance(self.definitions[each], Pointwise))
        return {
            read
            for read in reads
            if isinstance(found := self.definitions[read], Reduction) and found.contraction is None
        }

    def _rereads(self, consumer: Tensor, tensor: Tensor) -> bool:
        """Return True if the consumer reads elements of the tensor several times."""
        definition = self.definitions[consumer]
        if isinstance(definition, LoopResult):
            reductions = (each.definition for each in definition.loop.tensors if isinstance(each.definition, Reduction))
            return any(access.tensor is tensor for each in reductions for access in accesses(each.body))
        if isinstance(definition, Attention | AttentionGradient) or (
            isinstance(definition, Reduction) and definition.contraction is not None
        ):
            return True
        if not any(isinstance(node, Loop) and _turns(node) for node in nodes(*scalars_of(definition))):
            return False
        return not (isinstance(definition, Pointwise) and _reads_once(definition, tensor))

    def _leads_to_hard(self, tensor: Tensor) -> bool:
        if tensor in self.forced:
            return False
        if self.is_hard(tensor):
            return True
        return any(self._leads_to_hard(consumer) for consumer in self.consumers[tensor])

    def _size_of_inlined(self, tensor: Tensor) -> int:
        """Return the nodes per element of the definition with all pointwise definitions of its size inlined."""
        found, pending = {tensor}, [tensor]
        size = 0
        while pending:
            definition = self.definitions[reader := pending.pop()]
            if not isinstance(definition, Pointwise) or reader.n_elements != tensor.n_elements:
                continue
            operations = (node for node in nodes(definition.body) if isinstance(node, Operation))
            size += sum(1 for _ in nodes(definition.body)) + 2 * sum(node.name in COSTLY for node in operations)
            pending += [read for read in self.reads(reader) if read not in found]
            found.update(pending)
        return size


def _is_broadcast(tensor: Tensor, consumer: Tensor) -> bool:
    """Return True if many elements of the consumer read each element of the tensor, or an open number of them."""
    per_element = divide_exactly(consumer.n_elements, tensor.n_elements)
    return per_element is not None and (per_element.constant is None or per_element.constant >= MIN_BROADCAST)


def _turns(loop: Loop) -> list[Variable]:
    """Return the variables of a loop that take more than one value."""
    return [variable for variable in loop.loop_variables if variable.extent.constant != 1]


def _reads_once(definition: Pointwise, tensor: Tensor) -> bool:
    """Return True if no element of the tensor is read by two iterations of the definition's one loop, over all
    elements: the windows do not overlap."""
    loops = [node for node in nodes(definition.body) if isinstance(node, Loop)]
    reads = [access for access in accesses(definition.body) if access.tensor is tensor]
    if len(loops) != 1 or len(reads) != 1:
        return False
    taps = _turns(loops[0])
    outer = [variable for variable in definition.variables if variable.extent.constant != 1]
    covered: list[Variable] = []
    for index in reads[0].index:
        found = _disjoint_window(index, taps)
        if found is None:
            return False
        covered += found
    return len(covered) == len(set(covered)) and set(covered) == {*taps, *outer}


def _disjoint_window(index: Index, taps: Sequence[Variable]) -> list[Variable] | None:
    """Return the variables of ``position * stride + tap`` with at most `stride` taps; None for any other index."""
    terms = [(monomial[0], factor) for monomial, factor in index.terms if len(monomial) == 1]
    variables = [atom for atom, _ in terms if isinstance(atom, Variable)]
    if len(variables) != len(terms) or any(len(monomial) > 1 for monomial, _ in index.terms) or len(terms) > 2:
        return None
    steps = {atom: factor for atom, factor in terms if isinstance(atom, Variable)}
    tap = next((variable for variable in variables if variable in taps), None)
    if len(variables) == 2:
        stride = next((factor for variable, factor in steps.items() if variable is not tap), 0)
        if tap is None or steps[tap] != 1 or (tap.extent.constant or stride + 1) > stride:
            return None
    return variables


def _is_free(definition: Pointwise) -> bool:
    """Return True if recomputation costs no more than a read: casts, a scale or a shift of at most one tensor."""
    if any(isinstance(node, Loop) for node in nodes(definition.body)):
        return False
    operations = [node for node in nodes(definition.body) if isinstance(node, Operation)]
    n_reads = sum(1 for _ in accesses(definition.body))
    return n_reads == 0 or (n_reads == 1 and len(operations) <= MAX_FREE_OPERATIONS and _are_cheap(operations))


def _are_cheap(operations: Sequence[Operation]) -> bool:
    return all(operation.name in ("cast", "mul", "add", "sub", "neg") for operation in operations)
