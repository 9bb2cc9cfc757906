"""Emit the LLVM IR of one kernel: a function that runs one thread from its resume point to its next yield.

`register_ir.py` has the registers and their places in the thread's frame. Every access is checked inline against the
limits of its window. A failed inline check calls the scheduler's slow path, which decides, traces and records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernel_lsp.ptx.analysis.kernel_traits import (
    MATRIX_OPCODES,
    asks_who_is_active,
    can_be_torn,
    can_spin,
    ended_by,
    has_bulk_stores,
    is_talk,
    may_yield,
    meets_others,
    mentions_clusters,
    polling_blocks,
    registers_read_as_bits,
    waits_for_grid,
)
from kernel_lsp.ptx.analysis.variable_places import ApartPlaces, SharedLayout, round_up
from kernel_lsp.ptx.compile.fragments import ALL_LANES
from kernel_lsp.ptx.compile.register_ir import FRAME_SLOT_BYTES, WAY_FACTOR, RegisterIr
from kernel_lsp.ptx.compile.warp_batches import WarpBatch
from kernel_lsp.ptx.races.sites import race_flags
from kernel_lsp.ptx.run.layout import (
    WARP_SIZE,
    Context,
    CopyQueue,
    FaultKind,
    Info,
    Operation,
    Status,
    StoreQueue,
    Thread,
)
from kernel_lsp.ptx.text.flow import Block, build_blocks, live_after
from kernel_lsp.ptx.text.syntax import (
    Function,
    Instruction,
    Register,
    UnsupportedPtxError,
    Variable,
)

LOCAL_ALIGN = 16


@dataclass(frozen=True)
class Site:
    """Describe one instruction that can fault."""

    instruction: Instruction
    space: str = ""
    n_bytes: int = 0
    is_read: bool = False
    is_write: bool = False


@dataclass
class EmittedKernel:
    """Hold the IR of a kernel and its metadata. `parameters` are (offset, variable). `yields` has the instruction of
    each resume point, None for a backward branch. `local` lays out a thread's own variables, including those of inlined
    functions; `n_local_stride` is the distance in bytes between threads."""

    name: str
    text: str
    blocks: list[Block]
    sites: list[Site]
    yields: list[Instruction | None]
    shared: SharedLayout
    parameters: tuple[tuple[int, Variable], ...]
    n_parameter_bytes: int
    local: ApartPlaces
    n_local_stride: int
    n_frame_bytes: int
    can_spin: bool
    polling: frozenset[int]
    uses_clusters: bool
    warp_functions: dict[str, str]
    """IR of the kernel's warp-collective functions, by name."""


Handler = Callable[["Emitter", Instruction], None]


def emit_kernel(
    kernel: Function, symbols: dict[str, int], shared_variables: Sequence[Variable], handlers: dict[str, Handler]
) -> EmittedKernel:
    """Return the IR of `kernel`, whose calls are inlined. `symbols` are generic addresses of module variables;
    `shared_variables` are those declared outside of functions. Raises UnsupportedPtxError."""
    emitter = Emitter(kernel, symbols, shared_variables)
    for block in emitter.blocks:
        emitter.emit_block(block, handlers)
    return emitter.finish()


class Emitter(RegisterIr):
    """Hold the state of one kernel's translation, and the operations that instruction handlers use."""

    def __init__(self, kernel: Function, symbols: dict[str, int], shared_variables: Sequence[Variable]) -> None:
        super().__init__(kernel, symbols, shared_variables)
        self.kernel = kernel
        self.blocks = build_blocks(kernel)
        self.sites: list[Site] = []
        self.resume_labels: list[str] = []
        self.yields: list[Instruction | None] = []
        self.position = 0
        self.warp_functions: dict[str, str] = {}
        self.batch = WarpBatch()
        self.n_batches = 0
        self.n_matrix_bytes = 0
        self.has_copies = False
        self.has_bulk_stores = has_bulk_stores(self.blocks)
        self.can_spin = can_spin(self.blocks)
        self.polling = polling_blocks(self.blocks) if self.can_spin else frozenset()
        self.notes_ways = asks_who_is_active(self.blocks)
        self.waits_for_grid = waits_for_grid(self.blocks)
        self.can_be_torn = can_be_torn(self.blocks)
        self.race_flags = race_flags(self.blocks)
        self.read_as_bits = registers_read_as_bits(self.blocks)
        self.maps_addresses = any(i.opcode == "mapa" for block in self.blocks for i in block.instructions)
        """Flag: a shared-memory address may belong to another block."""
        self.live: dict[int, frozenset[str]] = {}

    # areas of a thread's frame

    def matrix_area(self, n_bytes: int) -> str:
        """Return the area, of at least `n_bytes`, for the thread's operands and results of warp-collective steps."""
        self.n_matrix_bytes = max(self.n_matrix_bytes, n_bytes)
        return "%matrix"

    def copy_queue(self) -> str:
        """Return the address of the thread's `CopyQueue`."""
        self.has_copies = True
        return self.op("ptrtoint ptr %copies to i64")

    def store_queue(self) -> str:
        """Return the address of the thread's `StoreQueue`."""
        return self.op("ptrtoint ptr %stores to i64")

    # faults and yields

    def site(self, site: Site) -> int:
        self.sites.append(site)
        return len(self.sites) - 1

    def slow_check(self, function: str, info: int, address: str, is_fine: str) -> None:
        """Branch on `is_fine`. Otherwise call `function`, and leave the kernel when it reports a fault."""
        fine, slow = self.label(), self.label()
        self.line(f"br i1 {is_fine}, label %{fine}, label %{slow}, !prof !0")
        self.begin(slow)
        verdict = self.op(f"call i64 @{function}(i64 %context.i, i64 %thread.i, i64 {info}, i64 {address}) cold")
        failed = self.op(f"icmp ne i64 {verdict}, 0")
        self.line(f"br i1 {failed}, label %fault, label %{fine}, !prof !1")
        self.begin(fine)

    def raise_fault(self, instruction: Instruction, kind: FaultKind) -> None:
        """End the thread with a fault. Later code is unreachable."""
        site = self.site(Site(instruction))
        self.op(f"call i64 @fault(i64 %context.i, i64 %thread.i, i64 {site}, i64 0, i64 {int(kind)}) cold")
        self.line("br label %fault")
        self.begin(self.label())

    def fault_unless(self, is_fine: str, site: Site, address: str, kind: FaultKind) -> None:
        """End the thread with a fault at that address where `is_fine` is false."""
        fine, bad = self.label(), self.label()
        self.line(f"br i1 {is_fine}, label %{fine}, label %{bad}, !prof !0")
        self.begin(bad)
        place = f"i64 {self.site(site)}, i64 {address}, i64 {int(kind)}"
        self.op(f"call i64 @fault(i64 %context.i, i64 %thread.i, {place}) cold")
        self.line("br label %fault")
        self.begin(fine)

    def give_way(self, instruction: Instruction) -> None:
        """Yield before the instruction. Another thread may end its wait."""
        self.yield_to_scheduler(
            instruction, self.live_after_current() | frozenset(instruction.used), Status.OUT_OF_FUEL
        )

    def give_way_if_interrupted(self, instruction: Instruction) -> None:
        """Yield before a communicating access, in runs with interruptions and up to their limit."""
        live = self.live_after_current() | frozenset(instruction.used) if self.can_be_torn else frozenset()
        is_possible = not self.batch.steps and all(self.storage.get(name) != "i128" for name in live)
        if not self.can_be_torn or not is_talk(instruction) or not is_possible:
            return
        stopped, on = self.label(), self.label()
        slot = self.field("%context", Context.INTERRUPTIONS)
        left = self.op(f"load i64, ptr {slot}")
        self.line(f"br i1 {self.op(f'icmp sgt i64 {left}, 0')}, label %{stopped}, label %{on}, !prof !1")
        self.begin(stopped)
        self.line(f"store i64 {self.op(f'sub i64 {left}, 1')}, ptr {slot}")
        self.yield_to_scheduler(instruction, live, Status.OUT_OF_FUEL)
        self.line(f"br label %{on}")
        self.begin(on)

    def yield_to_scheduler(self, instruction: Instruction | None, live: frozenset[str], status: Status) -> None:
        """Save the live registers, return `status`, and continue here when resumed."""
        resume = self.label()
        self.resume_labels.append(resume)
        self.yields.append(instruction)
        kept = sorted(name for name in live if name in self.storage)
        for name in kept:
            self.save(name)
        self.line(f"store i64 {len(self.resume_labels)}, ptr %resume.slot")
        self.save_fuel()
        self.line(f"ret i64 {int(status)}")
        self.begin(resume)
        for name in kept:
            self.restore(name)

    def save_fuel(self) -> None:
        self.store_thread_field(Thread.FUEL, self.op("load i64, ptr %fuel"))

    def live_after_current(self) -> frozenset[str]:
        """Return the registers that are live after the current instruction."""
        return self.live[self.position]

    # blocks

    def emit_block(self, block: Block, handlers: dict[str, Handler]) -> None:
        self.begin(f"b{block.index}")
        self.count(block)
        self.live = dict(enumerate(live_after(block))) if self.keeps_live(block) else {}
        for position, instruction in enumerate(block.instructions):
            self.position = position
            if instruction.opcode not in MATRIX_OPCODES:
                self.settle(instruction)
            handler = handlers.get(instruction.opcode)
            if handler is None:
                raise UnsupportedPtxError(f"the instruction '{instruction.opcode}'", instruction)
            try:
                handler(self, instruction)
            except UnsupportedPtxError as error:
                raise UnsupportedPtxError(error.reason, error.instruction or instruction) from None
            except (ValueError, KeyError, IndexError, AttributeError) as error:
                # The handler raised on a form that it does not support, so report exactly that.
                raise UnsupportedPtxError(f"this form ({error})", instruction) from None
        self.end_batch(block.live_out | ended_by(block))
        self.end_block(block)

    def keeps_live(self, block: Block) -> bool:
        """Check whether threads may yield within the block."""
        return self.waits_for_grid or self.can_be_torn or may_yield(block)

    def settle(self, instruction: Instruction) -> None:
        """Complete the batch before an instruction that is not one of its steps, if the instruction depends on it."""
        if not self.batch.steps:
            return
        touched = {*instruction.used, *instruction.defined}
        if meets_others(instruction) or not touched.isdisjoint(self.batch.held):
            self.end_batch(self.live[self.position] | touched)

    def end_batch(self, live: frozenset[str]) -> None:
        """Wait for the warp to run the batch. `live` are the registers needed afterwards."""
        batch, self.batch = self.batch, WarpBatch()
        if not batch.steps:
            return
        self.n_batches += 1
        functions = batch.functions(f"{self.kernel.name}.batch{self.n_batches}")
        self.warp_functions.update((function.name, function.text) for function in functions)
        first_site = min([self.site(Site(step.instruction)) for step in batch.steps])
        values = {
            Thread.C: str(first_site),
            Thread.MATRIX_AREA: self.op(f"ptrtoint ptr {self.matrix_area(batch.n_bytes)} to i64"),
            Thread.WARP_FUNCTION: f'ptrtoint (ptr @"{functions[0].name}" to i64)',
            Thread.OPERATION: str(int(Operation.MATRIX)),
            # Lanes that wait at different instructions must not be matched with each other.
            Thread.MASK: str(ALL_LANES | (len(self.resume_labels) + 1) << WARP_SIZE),
        }
        for place, value in values.items():
            self.store_thread_field(place, value)
        self.yield_to_scheduler(batch.steps[0].instruction, live - batch.held.keys(), Status.WARP)
        for name, held in batch.held.items():
            if name in live:
                width = f"i{held.n_bits}"
                value = self.op(f"load {width}, ptr {self.field('%matrix', held.offset)}, align 1")
                self.write(Register(name), value, width)

    def count(self, block: Block) -> None:
        if block.n_instructions == 0:
            return
        counter = self.field("%counts", 8 * block.index)
        n_before = self.op(f"load i64, ptr {counter}")
        self.line(f"store i64 {self.op(f'add i64 1, {n_before}')}, ptr {counter}")
        fuel = self.op("load i64, ptr %fuel")
        self.line(f"store i64 {self.op(f'sub i64 {fuel}, {block.n_instructions}')}, ptr %fuel")
        if block.index in self.polling:
            polled = self.op(f"add i64 {self.thread_field(Thread.POLLED)}, {block.n_instructions}")
            self.store_thread_field(Thread.POLLED, polled)

    def end_block(self, block: Block) -> None:
        if any(target <= block.index for target in block.targets):
            self.check_fuel(block)
        if not block.targets:
            if self.has_bulk_stores:
                n_left = self.op(f"load i64, ptr {self.field('%stores', StoreQueue.N_COPIES)}")
                self.slow_check("check_stores_ended", 0, self.store_queue(), self.op(f"icmp eq i64 {n_left}, 0"))
            self.save_fuel()
            self.line(f"ret i64 {int(Status.EXITED)}")
        elif block.selector is not None:
            self.note_way(block, self.coerce(self.read(block.selector, "i32"), "i32", "i64"))
            self.switch(block)
        elif block.guard is not None:
            condition = self.read(block.guard.register, "i1")
            if block.terminator is not None:  # else it is one instruction under a guard
                self.note_way(block, self.coerce(condition, "i1", "i64"))
            taken, not_taken = block.targets if not block.guard.is_negated else block.targets[::-1]
            self.line(f"br i1 {condition}, label %b{taken}, label %b{not_taken}")
        else:
            self.line(f"br label %b{block.targets[0]}")

    def note_way(self, block: Block, chosen: str) -> None:
        """Update the path hash: threads with the same branch history have equal hashes, others very rarely."""
        if self.notes_ways:
            branch = self.op(f"add i64 {chosen}, {(block.index + 1) << WARP_SIZE}")
            mixed = self.op(f"add i64 {self.thread_field(Thread.WAY)}, {branch}")
            self.store_thread_field(Thread.WAY, self.op(f"mul i64 {mixed}, {WAY_FACTOR}"))

    def switch(self, block: Block) -> None:
        assert block.selector is not None
        cases = " ".join(f"i32 {index}, label %b{target}" for index, target in enumerate(block.targets))
        self.line(f"switch i32 {self.read(block.selector, 'i32')}, label %b{block.targets[-1]} [{cases}]")

    def check_fuel(self, block: Block) -> None:
        """Check the fuel before a backward branch.
        A kernel that cannot wait for others never resumes, so its loop keeps its natural form."""
        empty, fine = self.label(), self.label()
        spent = self.op(f"icmp slt i64 {self.op('load i64, ptr %fuel')}, 0")
        self.line(f"br i1 {spent}, label %{empty}, label %{fine}, !prof !1")
        self.begin(empty)
        if self.can_spin:
            last = block.terminator or (block.instructions[-1] if block.instructions else None)
            self.yield_to_scheduler(last, block.live_out | ended_by(block), Status.OUT_OF_FUEL)
            self.line(f"br label %{fine}")
        else:
            self.save_fuel()
            self.store_thread_field(Thread.OPERATION, str(block.index))
            self.line(f"ret i64 {int(Status.OUT_OF_FUEL)}")
        self.begin(fine)

    # the whole function

    def finish(self) -> EmittedKernel:
        for block in self.blocks:
            assert all(target < len(self.blocks) for target in block.targets)
        frame = Thread.FRAME + FRAME_SLOT_BYTES * len(self.slots)
        arguments_at = round_up(frame, 16)
        matrix_at = round_up(arguments_at + self.arguments.n_bytes, 16)
        copies_at = round_up(matrix_at + self.n_matrix_bytes, 8)
        stores_at = copies_at + (int(CopyQueue.N_BYTES) if self.has_copies else 0)
        n_store_bytes = int(StoreQueue.N_BYTES) if self.has_bulk_stores else 0
        text = "\n".join([*self.head(arguments_at, matrix_at, copies_at, stores_at), *self.lines, *self.tail()])
        return EmittedKernel(
            name=self.kernel.name,
            text=text,
            blocks=self.blocks,
            sites=self.sites,
            yields=self.yields,
            shared=self.shared,
            parameters=tuple((self.parameters.offsets[variable.name], variable) for variable in self.kernel.parameters),
            n_parameter_bytes=self.parameters.n_bytes,
            local=self.local,
            n_local_stride=round_up(self.local.n_bytes, LOCAL_ALIGN),
            n_frame_bytes=round_up(stores_at + n_store_bytes, 64),
            can_spin=self.can_spin,
            polling=self.polling,
            uses_clusters=self.maps_addresses or mentions_clusters(self.blocks),
            warp_functions=self.warp_functions,
        )

    def head(self, arguments_at: int, matrix_at: int, copies_at: int, stores_at: int) -> list[str]:
        arguments = (
            "ptr noalias %thread, ptr noalias %counts, ptr noalias readonly %table, ptr noalias readonly %launch"
        )
        lines = [
            f'define i64 @"{self.kernel.name}"({arguments}, ptr %context) #1 {{',
            "entry:",
            "  %context.i = ptrtoint ptr %context to i64",
            "  %thread.i = ptrtoint ptr %thread to i64",
            f"  %arguments = getelementptr i8, ptr %thread, i64 {arguments_at}",
            f"  %matrix = getelementptr i8, ptr %thread, i64 {matrix_at}",
            f"  %copies = getelementptr i8, ptr %thread, i64 {copies_at}",
            f"  %stores = getelementptr i8, ptr %thread, i64 {stores_at}",
            f"  %resume.slot = getelementptr i8, ptr %thread, i64 {int(Thread.RESUME)}",
            f"  %fuel.slot = getelementptr i8, ptr %thread, i64 {int(Thread.FUEL)}",
            "  %fuel = alloca i64",
            "  %fuel.start = load i64, ptr %fuel.slot",
            "  store i64 %fuel.start, ptr %fuel",
        ]
        lines += self.allocations(self.kernel.name)
        start = ["start:", *self.cleared_copies(), "  br label %b0"]
        if not self.resume_labels:
            return [*lines, "  br label %start", *start]
        cases = " ".join(f"i64 {index + 1}, label %{label}" for index, label in enumerate(self.resume_labels))
        resumed = ["  %resume = load i64, ptr %resume.slot", f"  switch i64 %resume, label %start [{cases}]"]
        return [*lines, *resumed, *start]

    def cleared_copies(self) -> list[str]:
        """Return the IR that resets the copy queues: a thread starts without copies."""
        copies = (CopyQueue.N_GROUPS, CopyQueue.HEAD, CopyQueue.TAIL) if self.has_copies else ()
        stores = (StoreQueue.N_GROUPS, StoreQueue.N_COPIES) if self.has_bulk_stores else ()
        heads = [*(("copies", int(at)) for at in copies), *(("stores", int(at)) for at in stores)]
        places = [f"  %{queue}.{at} = getelementptr i8, ptr %{queue}, i64 {at}" for queue, at in heads]
        return [*places, *(f"  store i64 0, ptr %{queue}.{at}" for queue, at in heads)]

    def tail(self) -> list[str]:
        return [
            "fault:",
            "  %fuel.left = load i64, ptr %fuel",
            "  store i64 %fuel.left, ptr %fuel.slot",
            f"  ret i64 {int(Status.FAULT)}",
            "}",
            "",
        ]


def access_info(site: int, n_bytes: int, *, reads: bool, writes: bool, race_flags: int = 0) -> int:
    """Return the `Info` word that describes an access to the slow path."""
    info = site | ((n_bytes.bit_length() - 1) << Info.LOG2_SHIFT) | race_flags
    return info | (int(Info.READS) if reads else 0) | (int(Info.WRITES) if writes else 0)
