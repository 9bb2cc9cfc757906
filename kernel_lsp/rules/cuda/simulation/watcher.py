"""Watch what a simulated block does: elements that several threads access, indices, barriers that some do not reach."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from tree_sitter import Node

from kernel_lsp.core.expression import ExpressionError, evaluate_int, parse
from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.simulation.accesses import Access, conflicts, is_same
from kernel_lsp.rules.cuda.simulation.assumed_block import Shape, whole_text
from kernel_lsp.rules.cuda.simulation.calls import Caller
from kernel_lsp.rules.cuda.simulation.contributions import Contributions, may_reduce
from kernel_lsp.rules.cuda.simulation.loops import MAX_EXCHANGING_ROUNDS
from kernel_lsp.rules.cuda.simulation.machine import Frame, Loop, Split, Stopped
from kernel_lsp.rules.cuda.simulation.values import (
    ALONG,
    BLOCK,
    CHOSEN,
    DATA,
    ELECTED,
    GUESSED,
    LOADED,
    MIXED,
    SIZE,
    WARP,
    Cell,
    Memory,
    Place,
    Value,
    key_of,
    lanes,
    room_of,
)
from kernel_lsp.rules.cuda.variables import type_bytes

MIN_CONFLICTS = 16
"""Minimum threads of a warp in one bank of shared memory."""
MIN_OPEN_STRIDE = 1_000_000
"""Bytes between neighbouring threads above which the distance is a size that the text does not say."""
MAX_ACCESSES = 32
"""Maximum accesses of one array between two barriers that later ones are compared with."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: the code of its rule, where it is, and what its message and its fix need."""

    code: str
    node: Node
    kind: str
    detail: str = ""
    cause: Node | None = None
    """The other access of a race, its loop, or the condition of a `return`."""


class Watcher(Caller):
    """A block whose accesses and barriers are checked."""

    def __init__(self, function: Function, shape: Shape) -> None:
        self.root, self.shape = function, shape
        super().__init__(function.file, function.file.functions_by_name, shape.block)
        self.block_origins = 0 if shape.is_known else GUESSED
        self.faults: dict[tuple[str, int], Fault] = {}
        self.warp_epoch = 0
        self.unset: dict[str, tuple[Memory, Node]] = {}
        """The first read of each shared array that nothing has set so far."""
        self.patterns: set[str] = set()
        """The arrays with a slow access pattern."""
        self.is_misfit = False
        """True if the assumed block has more threads than an array has elements."""
        self.memories: dict[int, Memory] = {}
        self.has_lock = "atomicCAS" in function.text or "atomicExch" in function.text
        self.is_grid = "blockIdx" in function.text
        self.contributions = Contributions(self.n_threads, shape.is_known) if may_reduce(whole_text(function)) else None

    def run_kernel(self) -> None:
        """Run the kernel until it ends, or until the simulation knows no further."""
        function = self.root
        frame = Frame(function.file.parsed, None, False, [{}])
        frame.returned = [False] * self.n_threads
        self.frames.append(frame)
        frame.constants = self.template_values(function.definition.outer, list(self.shape.template))
        for parameter in function.parameters:
            self.declare(parameter.name, self._given(parameter))
        self.dynamic_bytes = self._dynamic_bytes()
        try:
            self.run(function.body)
        except (Stopped, RecursionError):
            return
        for site in () if self.contributions is None else self.contributions.lost():
            self.note("KL273", site, "lost")
        for memory, node in self.unset.values():
            if not memory.written and not memory.is_set:
                self.note("KL248", node, "unset", memory.name)

    def _dynamic_bytes(self) -> int | None:
        """Return the dynamic shared memory that the launch gives, for these arguments."""
        launch = self.shape.launch
        if launch is None or launch.shared is None:
            return None
        cells = (self.cell(parameter.name) for parameter in self.root.parameters)
        numbers = [None if cell is None else cell.value.number for cell in cells]
        known = {f"a{place}": number for place, number in enumerate(numbers) if isinstance(number, int)}
        try:
            return evaluate_int(parse(launch.shared), known)
        except ExpressionError:
            return None

    def _given(self, parameter) -> Cell:
        if parameter.is_pointer:
            kind = "shared" if self.root.is_in_shared(parameter) else "global"
            memory = Memory(parameter.name, kind, type_bytes(parameter.element) or 4)
            memory.is_float = not parameter.type_facts.is_integer
            memory.is_set, memory.is_volatile = True, "volatile" in parameter.words
            return Cell(Value(0, 0, False, memory, memory.width), parameter.type_text)
        if parameter.element in ("float", "double", "half", "__half"):
            return Cell(Value(None), parameter.type_text)
        return Cell(self.fresh(), parameter.type_text)

    def guessed(self, name: str) -> Value:
        return Value(self.shape.guess, SIZE)

    # places

    def sites(self, node: Node) -> tuple[Node, ...]:
        """Return the calls that lead to a node, and the node: macros stand for what they contain."""
        found: list[Node] = []
        for frame in self.frames[1:]:
            if frame.call is not None:
                found.append(frame.call)
            if frame.is_macro:
                return tuple(found) if found else (self.root.body,)
        return (*found, node)

    def note(self, code: str, node: Node, kind: str, detail: str = "", cause: Node | None = None) -> None:
        self.faults.setdefault((code, node.start_byte), Fault(code, node, kind, detail, cause))

    # barriers

    def barrier(self, node: Node) -> None:
        self._check_divergence(node)
        for memory in self.memories.values():
            memory.accesses.clear()
            memory.is_racing = False

    def _check_divergence(self, node: Node) -> None:
        sites = self.sites(node)
        for split in reversed(self.splits):
            depth = min(split.depth, len(sites)) - 1
            self.note("KL202", sites[depth], "branch", self._text_of(split))
            return
        for frame in self.frames:
            for split in frame.left:
                if not split.is_of_warps:
                    site = sites[min(split.depth, len(sites)) - 1]
                    self.note("KL203", site, "return", self._text_of(split), split.condition)
                    return
        is_sure = self.shape.is_known or not self.origins & GUESSED
        if is_sure and self.mask is not None and not all(self.mask) and not self._left_whole_warps():
            self.note("KL202", sites[0], "exact")

    def _text_of(self, split: Split) -> str:
        return split.condition.text.decode(errors="replace") if split.condition.text else ""

    def _left_whole_warps(self) -> bool:
        """Return whether the missing threads are those of whole warps that have returned."""
        returned = self.frames[0].returned
        missing = [not each for each in self.threads()]
        if any(is_missing and not has_returned for is_missing, has_returned in zip(missing, returned, strict=True)):
            return False
        return all(len(set(returned[first : first + WARP])) == 1 for first in range(0, self.n_threads, WARP))

    def warp_barrier(self, node: Node, is_whole: bool) -> None:
        self.warp_epoch += 1
        if not is_whole or self.n_threads % WARP:
            return
        sites = self.sites(node)
        left = [split for frame in self.frames for split in frame.left]
        for kind, splits in (("branch", self.splits), ("return", left)):
            if any(self._leaves_lanes(split) for split in splits):
                split = next(filter(self._leaves_lanes, splits))
                self.note("KL206", sites[min(split.depth, len(sites)) - 1], kind)
        is_split = self.shape.is_known and self.splits_warps(self.mask)
        if is_split and not any(self.frames[0].returned):
            inner = (depth for depth, frame in enumerate(self.frames[1:]) if self.splits_warps(frame.entered))
            self.note("KL206", sites[min(next(inner, len(sites)), len(sites) - 1)], "branch")

    def _leaves_lanes(self, split: Split) -> bool:
        """Return whether some lanes of a warp go another way: in a block of one dim, unless sizes fit the blocks."""
        return not split.is_of_warps and self.block[1] == 1 and (split.is_exact or not self.file.fits_its_launches)

    def forget(self, is_ordered: bool = True) -> None:
        for memory in (*self.memories.values(), *self.shared_memories.values()):
            memory.is_set = True
            if is_ordered:
                memory.accesses.clear()
                memory.is_racing = False

    # contributions of threads to reductions

    def contributed(self, place: Place, node: Node) -> list[int] | None:
        if self.contributions is None:
            return None
        found = self.contributions.loaded(place, self.threads(), self.sites(node)[-1])
        self.n_exchanges = self.contributions.n_exchanges
        return found

    def exchanged(self, name: str, values: list[Value], node: Node) -> list[int] | None:
        if self.contributions is None:
            return None
        found = self.contributions.shuffled(name, values, self.threads(), self.sites(node)[-1])
        self.n_exchanges = self.contributions.n_exchanges
        return found

    def left_loop(self, loop: Loop) -> None:
        is_partial = loop.is_open or loop.round_ > MAX_EXCHANGING_ROUNDS
        if self.contributions is not None and is_partial and self.n_exchanges > loop.n_exchanges:
            self.contributions.is_followed = False

    def needs_all_rounds(self, loop: Loop) -> bool:
        if self.contributions is None or not self.contributions.is_followed or self.n_exchanges == loop.n_exchanges:
            return False
        return not any(each.is_open for each in (*self.outer_loops, *self.loops) if each is not loop)

    # accesses

    def _beyond(self, base: Value, index: Value) -> str:
        """Return why an index is out of bounds in some thread, or an empty text."""
        memory, number = base.memory, index.number
        if (
            memory is None
            or number is None
            or index.origins
            or self.origins & (DATA | ELECTED | SIZE | GUESSED) & ~self._harmless()
        ):
            return ""
        first, extent = room_of(base, memory)
        if extent is None:
            return ""
        numbers = [first + each for each in lanes(number, self.n_threads)]
        mask = self.threads()
        is_one = (
            not isinstance(number, list)
            or len({each for each, is_active in zip(number, mask, strict=True) if is_active}) == 1
        )
        for thread, (each, is_active) in enumerate(zip(numbers, mask, strict=True)):
            if is_active and each >= extent and not self.shape.is_known and not is_one:
                self.is_misfit = True
            if (
                is_active
                and not 0 <= each < extent
                and (self._is_beyond_for_sure(each, extent) or (thread < WARP and (is_one or each < 0)))
            ):
                return (
                    f"thread {thread} has index {each} of {extent} elements"
                    if isinstance(number, list)
                    else f"{each} is beyond the {extent} elements"
                )
        return ""

    def _is_beyond_for_sure(self, index: int, extent: int) -> bool:
        """Return whether the block is that of a launch, or the array has room for each of the threads but a few."""
        is_close = self.shape.is_known and self.shape.is_implied and extent >= max(self.block) and index - extent < WARP
        return (self.shape.is_known and not self.shape.is_implied) or is_close

    def _harmless(self) -> int:
        """Return the origins of conditions that keep no thread of a full block away: ``i < n`` of an index across the
        grid."""
        is_harmless = all(bool(each.origins & BLOCK) or not each.origins & SIZE for each in self.conditions)
        return SIZE if is_harmless else 0

    def access(self, place: Place, kind: str, node: Node, value: Value | None = None) -> None:
        memory = place.memory
        if self.contributions is not None and kind in ("write", "atomic"):
            is_sure = not self._is_unsure()
            self.contributions.stored(place, value, self.threads(), is_sure, kind == "atomic")
        if place.problem:
            sites = self.sites(node)
            self.note("KL218", sites[-1], "index", place.problem)
        self.spend(30)
        if isinstance(place.address.number, list):
            self._check_pattern(place, place.address.number, node)
        if memory.limit is not None:
            self._check_limit(place, memory.limit, node)
        if memory.kind == "shared":
            self._access_shared(place, kind, node, value)
        elif memory.kind == "global" and kind == "write":
            self._check_update(place, node, value)

    def _check_limit(self, place: Place, limit: int, node: Node) -> None:
        """Note an access behind the dynamic shared memory of the launch. Sizes that are unknown have the same numbers
        on both sides, so that only a small distance shows that they are the same sizes."""
        uncertain = (self.origins & ~self._harmless()) | (place.address.origins & ~SIZE)
        if place.address.number is None or uncertain & ~(BLOCK | sum(ALONG)):
            return
        pairs = zip(lanes(place.address.number, self.n_threads), self.threads(), strict=True)
        end = max(address for address, is_active in pairs if is_active) + place.width
        if limit < end <= limit + MIN_OPEN_STRIDE and self.shape.launch is not None:
            self.note("KL233", node, str(self.shape.launch.place))

    def _check_pattern(self, place: Place, addresses: list[int], node: Node) -> None:
        """Note accesses of a warp that its memory serves one thread at a time: in one bank, or in as many sectors."""
        memory = place.memory
        first = addresses[:WARP]
        if memory.name in self.patterns or len(first) < WARP or not all(self.threads()[:WARP]) or self.block[0] < WARP:
            return
        if memory.kind == "shared" and memory.extents and place.width == 4 and not place.address.origins:
            banks = [address // 4 % WARP for address in set(first)]
            if max(map(banks.count, banks)) >= MIN_CONFLICTS:
                self.patterns.add(memory.name)
                self.note("KL211", self.sites(node)[-1], "banks")
        steps = {two - one for one, two in pairwise(first)}
        is_strided = memory.kind == "global" and len(steps) == 1 and abs(min(steps)) > MIN_OPEN_STRIDE
        is_of_structure = node.type == "call_expression" or _is_member_access(node)
        if is_strided and (len(self.frames) > 1 or is_of_structure or self._is_by_function(node)):
            self.patterns.add(memory.name)
            self.note("KL210", self.sites(node)[0], "stride")

    def _is_by_function(self, node: Node) -> bool:
        """Return whether a function of the file computes the index; `strides` follows other indices."""
        variables = (each for name in self.root.names_in(node) for each in self.root.named(name))
        values = " ".join(self.root.source(each.value) for each in variables if each.value is not None)
        return any(f"{name}(" in values for name in self.file.returned_values)

    def _access_shared(self, place: Place, kind: str, node: Node, value: Value | None) -> None:
        memory = place.memory
        self.memories.setdefault(id(memory), memory)
        self._check_set(place, kind, node, value)
        if kind == "write":
            self._check_update(place, node, value)
        if kind == "lock":
            memory.is_volatile = True
        if memory.is_racing or memory.is_volatile or self.n_threads < WARP:
            return
        address = place.address
        number = address.number
        mask = None if self.mask is None else list(self.mask)
        rounds = {id(loop): loop.round_ for loop in (*self.outer_loops, *self.loops)}
        new = Access(
            kind, self.sites(node), number, mask, place.member, self.origins, self.path, self.warp_epoch, place.width,
            value is not None and value.differs, rounds,
        )  # fmt: skip
        if address.origins & MIXED or (number is None and (not address.varies or address.is_own)):
            return
        for old in memory.accesses:
            if old.kind == kind == "read" or (old.kind == kind == "atomic"):
                continue
            self.spend(self.n_threads // 4)
            if conflicts(old, new, self.n_threads):
                self._note_race(old, new, memory)
                break
        if len(memory.accesses) < MAX_ACCESSES and not any(is_same(old, new) for old in memory.accesses):
            memory.accesses.append(new)

    def _check_set(self, place: Place, kind: str, node: Node, value: Value | None) -> None:
        """Note reads of elements that nothing has set, by ``+=`` or otherwise."""
        memory, number = place.memory, place.address.number
        if kind == "write" and value is not None and _key_of(place) in value.loads:
            return
        if kind == "write":
            is_exact = number is not None and not place.address.origins and not self.origins
            if not is_exact or place.member or place.width != memory.width:
                memory.is_set = True
            else:
                pairs = zip(lanes(number, self.n_threads), self.threads(), strict=True)
                memory.written.update([address for address, is_active in pairs if is_active])
        elif not memory.is_set and not memory.written and memory.name not in self.unset:
            self.unset[memory.name] = (memory, self.sites(node)[-1])
        elif self._is_set_in_part(place) and number is None:
            self.note("KL248", self.sites(node)[-1], "part", memory.name)

    def _is_set_in_part(self, place: Place) -> bool:
        """Return whether an element that data choose may be one that no thread of the launch's block has set."""
        memory = place.memory
        n_elements = math.prod(each or 0 for each in memory.extents)
        is_exact = not memory.is_set and self.shape.launch is not None and not self.has_skipped
        is_any = bool(place.address.origins & DATA) and not self.origins & ELECTED
        return is_exact and is_any and len(memory.written) < n_elements

    def _note_race(self, old: Access, new: Access, new_memory: Memory) -> None:
        """Note the race at the later access, in the function in which the two are apart."""
        depth = next((i for i, (a, b) in enumerate(zip(old.sites, new.sites, strict=False)) if a.id != b.id), 0)
        node = new.sites[min(depth, len(new.sites) - 1)]
        if depth == 0 and old.sites[0].id == new.sites[0].id:
            node = new.sites[-1]
        changed = [loop for loop, round_ in old.rounds.items() if new.rounds.get(loop, round_) != round_]
        is_later, cause = bool(changed), old.sites[min(depth, len(old.sites) - 1)]
        if is_later:  # the barrier is missing in the loop
            loop = next(loop for loop in (*self.outer_loops, *self.loops) if id(loop) == changed[0])
            node, cause = new.sites[min(loop.depth, len(new.sites) - 1)], loop.node
        new_memory.is_racing = True
        kind = (
            ("round" if old.kind == "read" else "step")
            if is_later
            else ("overtaken" if old.kind == "read" else "unordered")
        )
        self.note("KL208" if is_later else "KL207", node, kind, "", cause)

    # updates

    def _check_update(self, place: Place, node: Node, value: Value | None) -> None:
        """Note updates of one element by several threads, or by each block, that are no atomic operation."""
        memory, address = place.memory, place.address
        key = _key_of(place)
        control = frozenset().union(*(each.loads for each in self.conditions)) if self.conditions else frozenset()
        if value is None or key not in value.loads | control or memory.is_volatile or self.has_lock:
            return
        if self.origins & ELECTED or address.origins & ELECTED:
            return
        site = self.sites(node)[-1]
        if address.number is None:
            is_by_data = address.varies and address.loads and not address.is_own
            if is_by_data and not self._is_in_a_segment(address, control):
                self.note("KL219", site, "index")
            return
        mask = self.threads()
        if sum(mask) > 1 and not isinstance(address.number, list):
            if value.differs or key in value.loads:
                self.note("KL219", site, "all")
            return
        if isinstance(address.number, list):
            chosen = [number for number, is_active in zip(address.number, mask, strict=True) if is_active]
            if len(set(chosen)) < len(chosen) and not address.origins & MIXED:
                self.note("KL219", site, "index")
                return
        if memory.kind == "global" and self.is_grid and address.origins & (LOADED | BLOCK) == LOADED:
            if not self._is_in_a_segment(address, control):
                self.note("KL219", site, "index")
            return
        if memory.kind != "global" or not self.is_grid or self.frames[0].left:
            return
        everywhere = address.origins | self.origins
        if not everywhere & (BLOCK | DATA | CHOSEN) or self._is_of_all_blocks(place, value):
            self.note("KL219", site, "blocks")

    def _is_in_a_segment(self, address: Value, control: frozenset) -> bool:
        """Return whether the element lies between two loads of one array, ``offsets[i]`` and ``offsets[i + 1]``."""
        starts = {memory for memory, *_ in address.loads}
        return any(memory in starts for memory, *_ in control - address.loads)

    def _is_of_all_blocks(self, place: Place, value: Value) -> bool:
        """Return whether the blocks along an axis of the grid update one element, each by data of its own."""
        if (place.address.origins | self.origins) & (DATA | CHOSEN) or "==" in self.root.text:
            return False
        return any(value.origins & along and not place.address.origins & along for along in ALONG)


def _key_of(place: Place) -> tuple:
    """Return the key of an element among the loads of a value."""
    return id(place.memory), key_of(place.address), place.member


def _is_member_access(node: Node) -> bool:
    """Return whether the node is an element of a structure's array, which `strides` does not follow: ``m.data[i]``."""
    array = node.child_by_field_id(fields.ARGUMENT) if node.type == "subscript_expression" else None
    return array is not None and array.type == "field_expression"
