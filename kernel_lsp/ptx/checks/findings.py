"""Describe faults in words, with their position in the `.cu` file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

from kernel_lsp.ptx.analysis.variable_places import ApartPlaces, SharedLayout
from kernel_lsp.ptx.compile.emitter import Site
from kernel_lsp.ptx.run.buffers import Buffer
from kernel_lsp.ptx.run.layout import (
    CLUSTER_OFFSET_HALF,
    FIRST_CLUSTER_WINDOW,
    GRID_WORKSPACE_WINDOW,
    LOCAL_WINDOW,
    MATRIX_STRIDE_BYTES,
    N_WINDOWS,
    NULL_WINDOW,
    PARAM_WINDOW,
    SHARED_WINDOW,
    WARP_SIZE,
    WINDOW_SHIFT,
    FaultKind,
    window_base,
)
from kernel_lsp.ptx.text.syntax import Location, Module

FAR_BYTES = 1 << 36
"""Distance in bytes from which an address is not attributed to a tensor. A 32-bit index reaches half as far."""
Position = tuple[int, int, int]
ERROR = "error"
WARNING = "warning"
NULL_PAGE_BYTES = 1 << 20
"""Size in bytes of the range above address 0 that is attributed to null pointers."""


@dataclass(frozen=True)
class Other:
    """Describe the other side of a race: its thread, its place and its access. `sees_signal`: a signal of the other
    block was seen, but no fence followed. `is_of_cluster`: both blocks belong to one cluster."""

    block: Position
    thread: Position
    line: int | None
    verb: str
    is_of_warp: bool
    sees_signal: bool
    is_of_cluster: bool


@dataclass(frozen=True)
class Fault:
    """Describe a thread's fault. `address` is generic, or an offset for shared memory by its own address.
    `other` is set for races only."""

    kind: FaultKind
    site: Site
    address: int
    other: Other | None = None


@dataclass(frozen=True)
class Place:
    """Identify the thread and the block of a fault; empty for a fault of the whole launch."""

    kernel: str
    block: Position | None
    thread: Position | None


@dataclass(frozen=True)
class MemoryMap:
    """Map windows to variables, for messages. `variables` are (name, bytes) of module variables. `n_cluster_blocks` is
    0 where no block sees another's memory. `local` and `shared` give the layout of those memories."""

    buffers: dict[int, Buffer]
    variables: dict[int, tuple[str, int]]
    n_shared_bytes: int
    local: ApartPlaces
    n_cluster_blocks: int = 0
    n_workspace_bytes: int = 0
    shared: SharedLayout | None = None
    shared_start: int = 0
    """Address of the first byte of shared memory."""


class FindingLog:
    """Collect findings as JSON objects, one per code and line."""

    def __init__(self, module: Module, file_name: str, limit: int) -> None:
        self._module, self._file_name, self._limit = module, file_name, limit
        self._found: dict[tuple[str, int | None, str], dict[str, object]] = {}

    @property
    def is_full(self) -> bool:
        return len(self._found) >= self._limit

    def add(
        self,
        code: str,
        message: str,
        location: Location | None,
        place: Place,
        *,
        severity: str = ERROR,
        n_occurrences: int = 1,
    ) -> None:
        line, column, callee = self.user_line(location)
        key = (code, line, place.kernel)
        if key in self._found:
            self._found[key]["n_occurrences"] += n_occurrences  # type: ignore[operator]  # a count
            return
        if self.is_full:
            return
        self._found[key] = {
            "code": code,
            "severity": severity,
            "message": message + callee,
            "source": "executor",
            "file": self._file_name,
            "line": line,
            "column": column,
            "kernel": place.kernel,
            "block": place.block,
            "thread": place.thread,
            "n_occurrences": n_occurrences,
        }

    def as_json(self) -> list[dict[str, object]]:
        return list(self._found.values())

    def user_line(self, location: Location | None) -> tuple[int | None, int | None, str]:
        """Return line and column in the user's file, and a description of the real location of inlined code."""
        if location is None:
            return None, None, ""
        main_file = self._main_file()
        at: Location | None = location
        while at is not None and at.file != main_file:
            at = at.inlined_at
        if at is None:
            return None, None, f" (in {self._file(location.file)}:{location.line})"
        callee = "" if at is location else f" (in code from {self._file(location.file)}:{location.line}, called here)"
        return at.line or None, at.column or None, callee

    def _main_file(self) -> int:
        wanted = PurePath(self._file_name).name
        matching = [index for index, path in self._module.files.items() if PurePath(path).name == wanted]
        return matching[0] if matching else min(self._module.files, default=1)

    def _file(self, index: int) -> str:
        return PurePath(self._module.files.get(index, "?")).name


def describe(fault: Fault, memory: MemoryMap) -> tuple[str, str]:
    """Return the code and the message of a fault."""
    if fault.kind == FaultKind.TRAP:
        return "trap", "executes a trap instruction"
    if fault.kind == FaultKind.ASSERT:
        return "assert-failed", "an assertion fails"
    if fault.kind == FaultKind.UNINITIALISED:
        return "uninitialized-read", _describe_uninitialised(fault, memory)
    if fault.kind in (FaultKind.RACE_OF_BLOCKS, FaultKind.RACE_OF_THREADS):
        return "race", _describe_race(fault, memory)
    if fault.kind == FaultKind.STALE_READ:
        return "race", _describe_stale_read(fault, memory)
    if fault.kind == FaultKind.PROXY:
        return "race", _describe_proxies(fault, memory)
    if fault.kind == FaultKind.SOURCE_IN_USE:
        return "copy-in-flight", _describe_source(fault, memory)
    if fault.kind == FaultKind.CLUSTER_STEP:
        return "cluster-barrier", _describe_step(fault.site)
    if fault.kind in (FaultKind.WARP_INCOMPLETE, FaultKind.WARP_DISAGREES):
        return "incomplete-warp", _describe_warp(fault)
    if fault.kind == FaultKind.BARRIER_DIVERGES:
        return "divergent-barrier", (
            "part of a warp waits at this barrier, and the rest of the warp at another: all threads of a warp that have"
            " not ended must come to the same __syncthreads()"
        )
    if fault.kind == FaultKind.SHARED_GAP:
        return "out-of-bounds-write" if fault.site.is_write else "out-of-bounds-read", _describe_gap(fault, memory)
    if fault.kind == FaultKind.BULK_SIZE:
        return "misaligned-access", f"copies {fault.address} bytes at once, not a multiple of {fault.site.n_bytes}"
    if fault.kind == FaultKind.COPY_IN_FLIGHT:
        place = f"at byte {fault.address} of shared memory"
        return "copy-in-flight", f"{_verb(fault.site)} {place}, which an asynchronous copy may not have brought yet"
    if fault.kind == FaultKind.COPY_LEFT:
        message = f"a thread ends while its copy of {fault.address} bytes may still read them from shared memory"
        return "copy-in-flight", f"{message}: cp.async.bulk.wait_group(.read) is missing, or its group is not committed"
    if fault.kind in _BARRIER_MESSAGES:
        return "barrier-object", _BARRIER_MESSAGES[fault.kind].format(fault.address)
    if fault.kind in (FaultKind.MATRIX_ADDRESS, FaultKind.MATRIX_STRIDE):
        return "misaligned-access", _describe_alignment(fault, memory)
    if fault.kind in (FaultKind.BLOCK_NOT_STARTED, FaultKind.BLOCK_ENDED):
        return "cluster-memory", _describe_absent_block(fault)
    return _describe_access(fault, memory)


_BARRIER_MESSAGES = {
    FaultKind.BARRIER_MISSING: "uses an mbarrier where none is initialised, or not yet",
    FaultKind.BARRIER_COUNT: "initialises an mbarrier for {} arrivals; there can be 1 to 1048575",
    FaultKind.BARRIER_ARRIVALS: "arrives at an mbarrier ({} at once) more often than its phase expects",
    FaultKind.BARRIER_BYTES: "an mbarrier would wait for {} bytes; it can count 1048575",
}


@dataclass(frozen=True)
class _Target:
    """Describe the memory that contains an address, or the nearest one."""

    name: str
    start: int
    n_bytes: int
    is_read_only: bool = False


def _verb(site: Site) -> str:
    verb = "updates" if site.is_read and site.is_write else ("reads" if site.is_read else "writes")
    return f"{verb} {site.n_bytes} byte{'s' if site.n_bytes != 1 else ''}"


def _describe_access(fault: Fault, memory: MemoryMap) -> tuple[str, str]:
    site, address = fault.site, fault.address
    code = "out-of-bounds-write" if site.is_write else "out-of-bounds-read"
    if site.space != "shared" and -NULL_PAGE_BYTES < address < NULL_PAGE_BYTES:
        return "null-pointer", f"{_verb(site)} at address {address:#x}: the pointer is null"
    rank = (address >> WINDOW_SHIFT) - FIRST_CLUSTER_WINDOW
    if 0 < memory.n_cluster_blocks <= rank < N_WINDOWS:
        return code, f"{_verb(site)} in a block that the cluster does not have: its {memory.n_cluster_blocks} are fewer"
    if site.space == "shared" and address >= CLUSTER_OFFSET_HALF and site.instruction.has("shared", "shared__cta"):
        return code, f"{_verb(site)} of another block's shared memory, which needs .shared::cluster, not .shared"
    target = _find_target(fault, memory)
    if target is None:
        return code, f"{_verb(site)} at address {address & (1 << 64) - 1:#x}, which belongs to no tensor"
    offset = address - target.start
    if offset < 0:
        return code, f"{_verb(site)}, {-offset} bytes before the start of {target.name}"
    if offset + site.n_bytes > target.n_bytes:
        return code, f"{_verb(site)}, {_past_end(offset - target.n_bytes)} the end of {target.name}"
    if address % site.n_bytes:
        return "misaligned-access", f"{_verb(site)} at byte {offset} of {target.name}, not a multiple of {site.n_bytes}"
    if not target.is_read_only:
        return "keeps-state", f"{_verb(site)} at byte {offset} of {target.name}: it would keep state between launches"
    return "write-to-input", f"{_verb(site)} at byte {offset} of {target.name}, which is an input"


def _describe_gap(fault: Fault, memory: MemoryMap) -> str:
    """Describe an access behind a shared variable and before the next."""
    assert memory.shared is not None
    offset = fault.address
    if fault.site.space != "shared":
        offset -= window_base(fault.address >> WINDOW_SHIFT) + memory.shared_start
    ends = {memory.shared.offsets[name] + n_bytes: name for name, n_bytes in memory.shared.sizes.items()}
    end = max((end for end in ends if end < offset + fault.site.n_bytes), default=0)
    return f"{_verb(fault.site)}, {_past_end(offset - end)} the end of the shared variable {_plain(ends.get(end, ''))}"


def _plain(symbol: str) -> str:
    """Return the unqualified name of a variable from its mangled symbol (Itanium ABI: length and name come last)."""
    lengths = re.finditer(r"(?=(\d+)([A-Za-z_]\w*)$)", symbol)
    return next((match[2] for match in lengths if match[1] == str(len(match[2]))), symbol)


def _describe_step(site: Site) -> str:
    if site.instruction.has("arrive"):
        return "arrives at the barrier of the cluster again without having waited there"
    return "waits at the barrier of the cluster without having arrived there"


def _describe_warp(fault: Fault) -> str:
    """Describe a fault of a warp, whose address is the mask of the participating lanes."""
    if fault.kind == FaultKind.WARP_DISAGREES:
        return "the lanes of a warp give different addresses or strides for one matrix; all must give the same"
    n_lanes = fault.address.bit_count()
    return (
        f"{n_lanes} lanes of a warp take part in {fault.site.instruction.opcode}, which needs all {WARP_SIZE} of them"
    )


def _describe_alignment(fault: Fault, memory: MemoryMap) -> str:
    what = "reads" if fault.site.is_read else "writes"
    if fault.kind == FaultKind.MATRIX_STRIDE:
        multiple = min(fault.site.n_bytes, MATRIX_STRIDE_BYTES)
        return f"{what} a matrix whose rows are {fault.address} bytes apart, not a multiple of {multiple}"
    target = _find_target(fault, memory)
    place = f"byte {fault.address - target.start} of {target.name}" if target else f"address {fault.address:#x}"
    return f"{what} a matrix at {place}, not a multiple of {fault.site.n_bytes}"


def _describe_absent_block(fault: Fault) -> str:
    start = f"{_verb(fault.site)} of the shared memory of block {_rank(fault)} of the cluster, which has"
    if fault.kind == FaultKind.BLOCK_ENDED:
        return f"{start} ended: a block must stay, at a last cluster.sync(), until the others are done with its memory"
    return f"{start} not started: all blocks of a cluster run for sure only after a first cluster.sync()"


def _rank(fault: Fault) -> int:
    return (fault.address >> WINDOW_SHIFT) - FIRST_CLUSTER_WINDOW


def _past_end(distance: int) -> str:
    if distance < 0:
        return "across"
    return "right after" if distance == 0 else f"{distance} bytes past"


def _describe_uninitialised(fault: Fault, memory: MemoryMap) -> str:
    target = _find_target(fault, memory)
    name = target.name if target else "memory"
    offset = fault.address - target.start if target else fault.address
    return f"{_verb(fault.site)} at byte {offset} of {name}, which nothing has written"


def _describe_race(fault: Fault, memory: MemoryMap) -> str:
    place = _place_of(fault, memory)
    assert fault.other is not None
    text = f"{_verb(fault.site)} {place}, which {_describe_other(fault.kind, fault.other)}"
    if fault.kind == FaultKind.RACE_OF_BLOCKS and fault.site.instruction.has("cta"):
        text += ": what has the scope of a block is atomic for that block alone"
    return text


def _describe_stale_read(fault: Fault, memory: MemoryMap) -> str:
    place = _place_of(fault, memory)
    assert fault.other is not None
    line = f" at line {fault.other.line}" if fault.other.line is not None else ""
    return (
        f"{_verb(fault.site)} {place} through the read-only cache (__ldg, or const __restrict__), which block"
        f" {fault.other.block} wrote{line} in the same launch: no fence makes that cache look again"
    )


def _describe_proxies(fault: Fault, memory: MemoryMap) -> str:
    assert fault.other is not None
    other = fault.other
    how = "wgmma" if fault.site.instruction.opcode == "wgmma" else "a bulk copy"
    line = f" at line {other.line}" if other.line is not None else ""
    use = ": the value is used after the barrier, so the read may still be under way" if other.verb == "read" else ""
    return (
        f"{_verb(fault.site)} {_place_of(fault, memory)} by {how}, which thread {other.thread} of the block"
        f" {other.verb}{line} with no fence.proxy.async between{use}"
    )


def _describe_source(fault: Fault, memory: MemoryMap) -> str:
    assert fault.other is not None
    line = f" at line {fault.other.line}" if fault.other.line is not None else ""
    return (
        f"{_verb(fault.site)} {_place_of(fault, memory)}, which a bulk copy{line} may still read:"
        " cp.async.bulk.wait_group.read is missing, or a barrier after it"
    )


def _place_of(fault: Fault, memory: MemoryMap) -> str:
    target = _find_target(fault, memory)
    return f"at byte {fault.address - target.start} of {target.name}" if target else "of memory"


def _describe_other(kind: FaultKind, other: Other) -> str:
    did = other.verb + (f" at line {other.line}" if other.line is not None else "")
    if kind == FaultKind.RACE_OF_THREADS:
        missing = "__syncwarp() or __syncthreads()" if other.is_of_warp else "__syncthreads()"
        return f"thread {other.thread} of the block {did} with no {missing} between"
    if other.is_of_cluster:
        return f"block {other.block} of the cluster {did} with no cluster.sync() between"
    if other.sees_signal:
        return f"block {other.block} {did}: its signal was seen, but there is no __threadfence() after that"
    return f"block {other.block} {did} in the same launch with no __threadfence() and signal between"


def _local_target(offset: int, local: ApartPlaces) -> _Target:
    """Return the last variable that begins before the access."""
    start, n_bytes = max((span for span in local.spans if span[0] <= offset), default=(0, local.n_bytes))
    return _Target(f"the thread's local memory ({n_bytes} bytes)", window_base(LOCAL_WINDOW) + start, n_bytes)


def _find_target(fault: Fault, memory: MemoryMap) -> _Target | None:
    if fault.site.space == "shared":
        return _Target("shared memory", 0, memory.n_shared_bytes)
    window = fault.address >> WINDOW_SHIFT
    if window == NULL_WINDOW or not 0 <= window < N_WINDOWS:
        return None
    if window in memory.buffers:
        buffer = memory.buffers[window]
        if abs(fault.address - buffer.base) > buffer.n_bytes + FAR_BYTES:
            return None
        name = f"{buffer.request.name} ({buffer.request.description})"
        return _Target(name, buffer.base, buffer.n_bytes, buffer.is_read_only)
    if window in memory.variables:
        name, n_bytes = memory.variables[window]
        return _Target(f"the variable {name}", window_base(window), n_bytes)
    if window == SHARED_WINDOW:
        return _Target("shared memory", window_base(window) + memory.shared_start, memory.n_shared_bytes)
    if memory.n_cluster_blocks and window >= FIRST_CLUSTER_WINDOW:
        name = f"the shared memory of block {_rank(fault)} of the cluster"
        return _Target(name, window_base(window) + memory.shared_start, memory.n_shared_bytes)
    if window == GRID_WORKSPACE_WINDOW:
        return _Target("what the driver keeps for the grid's barrier", window_base(window), memory.n_workspace_bytes)
    if window == LOCAL_WINDOW:
        return _local_target(fault.address - window_base(window), memory.local)
    return _Target("the parameters", window_base(window), 0) if window == PARAM_WINDOW else None
