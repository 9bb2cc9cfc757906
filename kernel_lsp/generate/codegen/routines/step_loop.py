"""Kernels of loops whose steps need each other: a block, or a thread where no step reads across elements, walks over
all steps for one place along the batch axes. What steps pass on stays in shared memory or registers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kernel_lsp.core.expression import Constant
from kernel_lsp.core.expression_rules import binary
from kernel_lsp.generate.codegen.accumulator import Accumulator
from kernel_lsp.generate.codegen.kernel import KernelWriter, RenderedKernel, blocks_of, rendered
from kernel_lsp.generate.codegen.operators import ATOM, COMPUTE_TYPE, TERNARY, Text, stored
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import LoopGroup
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index, product
from kernel_lsp.generate.ir.scalar import Loop, Scalar, accesses, nodes
from kernel_lsp.generate.ir.sizes import ravel, to_expression, unravel_safe
from kernel_lsp.generate.ir.tensor import LoopTensor, StepLoop, Tensor
from kernel_lsp.generate.loops.bodies import as_pointwise, elements_of, has_two, shared_bytes

LOCAL_NAMES = ("row", "i", "step", "warp", "lane", "k")
WARP = 32
MIN_WARP_TERMS = 64
"""Minimum terms of a reduction that a warp shares: with fewer, lanes would be idle."""
WARP_KINDS = ("sum", "prod", "max", "min")
MIN_SHARED_TERMS = 1 << 14
"""Minimum terms of a step that blocks share: a barrier of a cluster costs as much as these take in one block."""
MAX_THREAD_ELEMENTS = 96
"""Maximum elements that a thread keeps in registers: a thread has 255, and a step needs others."""
MAX_TERMS_PER_ELEMENT = 4
"""Maximum terms of a step for each element of the largest tensor, where one thread does all: with more, as in a product
with a square matrix, threads share them."""
UNROLLED_STEPS = 8
"""Steps of a thread that are unrolled, so that loads of later steps are in flight."""


def is_by_threads(loop: StepLoop) -> bool:
    """Return True if each element depends on itself alone."""
    return all(elements_of(entry) == 1 and not loops_of(entry) for entry in loop.tensors)


def suits_thread(loop: StepLoop) -> bool:
    """Return True if a thread can keep the elements of a place along the batch, and do their steps alone."""
    sizes = [elements_of(entry) for entry in loop.tensors]
    return sum(sizes) <= MAX_THREAD_ELEMENTS and _terms_of_step(loop) <= MAX_TERMS_PER_ELEMENT * max(sizes)


def default_threads(loop: StepLoop, blocks: int) -> int:
    """Return the threads of a block: those of its largest tensor, or a warp per result of its products."""
    if is_by_threads(loop):
        return 64
    if not blocks:
        return WARP
    wanted = max(elements_of(entry) * (WARP if is_by_warps(loop, entry) else 1) for entry in loop.tensors)
    wanted = -(-wanted // blocks)
    return next((threads for threads in (32, 64, 128, 256, 512) if threads >= wanted), 1024)


def numbers_of_blocks(loop: StepLoop) -> tuple[int, ...]:
    """Return how many blocks may share a place along the batch, the default first; 0 is one thread. Those of a large
    product keep their part of its factor in L1."""
    if is_by_threads(loop):
        return (1,)
    if suits_thread(loop):
        return (0, 1)
    return (8, 1, 2, 4) if _terms_of_step(loop) >= MIN_SHARED_TERMS else (1, 2, 4, 8)


def _terms_of_step(loop: StepLoop) -> int:
    return sum(elements_of(entry) * _n_terms(each) for entry in loop.tensors for each in loops_of(entry))


def _n_terms(loop: Loop) -> int:
    return product(variable.extent for variable in loop.loop_variables).constant or 1


def comment_of(loop: StepLoop, blocks: int) -> str:
    """Return the kernel's comment."""
    n_steps = loop.step.extent.constant
    if is_by_threads(loop):
        return f"One thread per element walks over {n_steps} steps, with what they pass on in registers."
    if not blocks:
        return f"One thread per place along the batch walks over {n_steps} steps, with what they pass on in registers."
    who = "A block" if blocks == 1 else f"A cluster of {blocks} blocks"
    kept = f"{shared_bytes(loop)} bytes of shared memory"
    return f"{who} per place along the batch walks over {n_steps} steps, with what they pass on in {kept}."


@dataclass
class LoopRenderer:
    """Renders the kernel of a loop with `threads` per block, and a cluster of `blocks` for each place along the batch,
    which share the elements of every tensor and have all of them; with 0 blocks, a thread for each place."""

    kernel: KernelWriter
    group: LoopGroup
    threads: int
    blocks: int = 1

    def __post_init__(self) -> None:
        self.loop = self.group.loop
        self.scope = Scope(self.kernel)
        self.names = [self.kernel.names.take(entry.now.name.removesuffix("_step")) for entry in self.loop.tensors]
        for entry, name in zip(self.loop.tensors, self.names, strict=True):
            self.kernel.name_array(entry.now, name)
            self.kernel.name_array(entry.before, name)
        self.batch = self.loop.tensors[0].batch
        self.row = Variable("row", -1 << 20, product(self.batch))
        self.index_type = self.kernel.index_type

    def render(self, comment: str) -> RenderedKernel:
        """Return the kernel."""
        self.scope.define(self.row, "row")
        if is_by_threads(self.loop):
            return self._by_threads(comment)
        return self._by_blocks(comment) if self.blocks else self._by_arrays(comment)

    def _by_threads(self, comment: str) -> RenderedKernel:
        scope, row = self.scope, self.row.extent
        self._define_row()
        for entry, name in zip(self.loop.tensors, self.names, strict=True):
            start = "0" if entry.first is None else self._first(scope, entry, []).text
            scope.line(f"{COMPUTE_TYPE[entry.now.dtype]} {name} = {start};")
        scope.line(f"#pragma unroll {UNROLLED_STEPS}")
        with scope.open(self._header()) as inner:
            inner.define(self.loop.step, "step")
            later: list[str] = []
            for position, (entry, name) in enumerate(zip(self.loop.tensors, self.names, strict=True)):
                scalar = self._element(entry, [])
                self._bind(inner, scalar)
                value = inner.value(scalar)
                target = name
                if has_two(self.loop, entry):
                    target = f"{name}_next"
                    later.append(f"{name} = {target};")
                    inner.line(f"const {COMPUTE_TYPE[entry.now.dtype]} {target} = {value.text};")
                else:
                    inner.line(f"{name} = {value.text};")
                self._store(inner, position, target, [])
            for line in later:
                inner.line(line)
        return rendered(self.kernel, comment, scope.lines, (blocks_of(row, self.threads),), (self.threads,))

    def _define_row(self) -> None:
        limit = self.kernel.size("n", self.row.extent)
        wide = "(long long)" if self.index_type == "long long" else ""
        self.scope.line(f"const {self.index_type} row = {wide}blockIdx.x * {self.threads} + threadIdx.x;")
        self.scope.line(f"if (row >= {limit}) return;")

    def _by_arrays(self, comment: str) -> RenderedKernel:
        scope, kernel = self.scope, self.kernel
        kernel.max_unrolled = MAX_THREAD_ELEMENTS
        self._define_row()
        for entry, name in zip(self.loop.tensors, self.names, strict=True):
            size, two = elements_of(entry), has_two(self.loop, entry)
            arrays = f"{name}_before[{size}], {name}_now[{size}]" if two else f"{name}[{size}]"
            scope.line(f"{COMPUTE_TYPE[entry.now.dtype]} {arrays};")
            if entry.first is not None:
                with scope.unroll(f"for (int i = 0; i < {size}; ++i)") as inner:
                    value = self._first(inner, entry, self._rest(inner, entry)).text
                    inner.line(f"{name}{'_before' if two else ''}[i] = {value};")
        with scope.open(self._header()) as inner:
            inner.define(self.loop.step, "step")
            for position, entry in enumerate(self.loop.tensors):
                with inner.unroll(f"for (int i = 0; i < {elements_of(entry)}; ++i)") as own:
                    rest = self._rest(own, entry)
                    scalar = self._element(entry, rest)
                    self._find_arrays(scalar)
                    self._write(own, position, own.value(scalar), rest)
            for entry, name in zip(self.loop.tensors, self.names, strict=True):
                if has_two(self.loop, entry):
                    with inner.unroll(f"for (int i = 0; i < {elements_of(entry)}; ++i)") as own:
                        own.line(f"{name}_before[i] = {name}_now[i];")
        return rendered(kernel, comment, scope.lines, (blocks_of(self.row.extent, self.threads),), (self.threads,))

    def _header(self) -> str:
        return f"for (int step = 0; step < {self.loop.step.extent.constant}; ++step)"

    def _first(self, scope: Scope, entry: LoopTensor, rest: Sequence[Index]) -> Text:
        assert entry.first is not None
        place = self._place(entry, rest)
        scalar = entry.first.body.substitute(dict(zip(entry.first.variables, place, strict=True)))
        return scope.value(scalar)

    def _place(self, entry: LoopTensor, rest: Sequence[Index]) -> list[Index]:
        """Return the index of an element of the block's or thread's place along the batch axes."""
        batch = unravel_safe(as_index(self.row), self.batch) if self.batch else []
        found = dict(zip(entry.batch_axes, batch, strict=True))
        found |= dict(zip(entry.own_axes, rest or [as_index(0)] * len(entry.own_axes), strict=True))
        return [found[axis] for axis in range(len(found))]

    def _element(self, entry: LoopTensor, rest: Sequence[Index]) -> Scalar:
        definition = as_pointwise(entry)
        place = self._place(entry, rest)
        return definition.body.substitute(dict(zip(definition.variables, place, strict=True)))

    def _bind(self, scope: Scope, scalar: Scalar) -> None:
        """Give the reads of the loop's own tensors the names of registers."""
        for access in accesses(scalar):
            for entry, name in zip(self.loop.tensors, self.names, strict=True):
                if access.tensor in (entry.now, entry.before):
                    is_next = access.tensor is entry.now and has_two(self.loop, entry)
                    own = f"{name}_next" if is_next else name
                    if access.mask is not None:
                        scope.bind(access, Text(f"{scope.value(access.mask).within(TERNARY + 1)} ? {own} : 0", TERNARY))
                    else:
                        scope.bind(access, own)

    def _store(self, scope: Scope, position: int, name: str, rest: Sequence[Index]) -> None:
        entry, step, tensor = self.loop.tensors[position], self.loop.step, self.group.tensors[position]
        place = self._place(entry, rest)
        if tensor is not None and tensor.shape[0] != step.extent:
            with scope.open(f"if (step == {step.extent - 1})") as last:
                self._store_at(last, tensor, entry, name, [as_index(0), *place])
        elif tensor is not None:
            self._store_at(scope, tensor, entry, name, [as_index(step), *place])
        for each in self.group.permuted:
            if each.place == position:
                index = [as_index(step), *place]
                self._store_at(scope, each.tensor, entry, name, [index[axis] for axis in each.axes])

    def _store_at(self, scope: Scope, tensor: Tensor, entry: LoopTensor, name: str, index: Sequence[Index]) -> None:
        offset = scope.offset(tensor, index).text
        value = stored(Text(name, ATOM), entry.now.dtype, tensor.dtype)
        scope.line(f"{self.kernel.target(tensor)}[{offset}] = {value};")

    def _by_blocks(self, comment: str) -> RenderedKernel:
        scope = self.scope
        row = "blockIdx.x" if self.blocks == 1 else f"blockIdx.x / {self.blocks}"
        scope.line(f"const {self.index_type} row = {row};")
        for entry, name in zip(self.loop.tensors, self.names, strict=True):
            size = elements_of(entry)
            array = f"{name}[2][{size}]" if has_two(self.loop, entry) else f"{name}[{size}]"
            scope.line(f"__shared__ {COMPUTE_TYPE[entry.now.dtype]} {array};")
        for entry, name in zip(self.loop.tensors, self.names, strict=True):
            if entry.first is not None:
                at = f"{name}[0]" if has_two(self.loop, entry) else name
                with scope.open(self._over(elements_of(entry))) as inner:
                    rest = self._rest(inner, entry)
                    inner.line(f"{at}[i] = {self._first(inner, entry, rest).text};")
        barrier = "__syncthreads();" if self.blocks == 1 else f"{self.kernel.use('cluster_sync')}();"
        scope.line(barrier)
        with scope.open(self._header()) as inner:
            inner.define(self.loop.step, "step")
            for entry, name in zip(self.loop.tensors, self.names, strict=True):
                if has_two(self.loop, entry):
                    type_ = COMPUTE_TYPE[entry.now.dtype]
                    inner.line(f"const {type_}* {name}_before = {name}[step % 2];")
                    inner.line(f"{type_}* {name}_now = {name}[(step + 1) % 2];")
            for position in range(len(self.loop.tensors)):
                self._phase(inner, position)
                inner.line(barrier)
        grid = binary("*", to_expression(self.row.extent), Constant(self.blocks))
        attributes = (("cluster", self.blocks),) if self.blocks > 1 else ()
        return rendered(self.kernel, comment, scope.lines, (grid,), (self.threads,), attributes=attributes)

    def _over(self, size: int) -> str:
        return f"for (int i = threadIdx.x; i < {size}; i += {self.threads})"

    def _rest(self, scope: Scope, entry: LoopTensor) -> list[Index]:
        """Return the index beside the batch axes of element `i` of the block."""
        sizes = entry.own_shape
        i = Variable("i", -2 << 20, product(sizes))
        scope.define(i, "i")
        return list(unravel_safe(as_index(i), sizes)) if sizes else []

    def _phase(self, scope: Scope, position: int) -> None:
        """Write the elements of one tensor of the step: by threads, or by warps whose lanes share long sums."""
        entry = self.loop.tensors[position]
        size, by_warps = elements_of(entry), is_by_warps(self.loop, entry)
        own, step = (f"threadIdx.x / {WARP}", self.threads // WARP) if by_warps else ("threadIdx.x", self.threads)
        own = f"blockIdx.x % {self.blocks} * {step} + {own}" if self.blocks > 1 else own
        step *= self.blocks
        with scope.open(f"for (int i = {own}; i < {size}; i += {step})") as inner:
            rest = self._rest(inner, entry)
            scalar = self._element(entry, rest)
            self._find_arrays(scalar)
            if not by_warps:
                self._write(inner, position, inner.value(scalar), rest)
                return
            for loop in loops_in(scalar):
                inner.bind(loop, self._by_lanes(inner, loop))
            with inner.open(f"if (threadIdx.x % {WARP} == 0)") as first:
                self._write(first, position, first.value(scalar), rest)

    def _by_lanes(self, scope: Scope, loop: Loop) -> str:
        """Compute a sum by the lanes of a warp; return its name."""
        sizes = [variable.extent for variable in loop.loop_variables]
        k = Variable("k", -3 << 20, product(sizes))
        where = dict(zip(loop.loop_variables, unravel_safe(as_index(k), sizes), strict=True))
        body = loop.operands[0].substitute(where)
        self._find_arrays(body)
        total = Accumulator.start(scope, "total", loop.kind, body.dtype, loop.dtype)
        scope.line("#pragma unroll 8")
        name = scope.names.take("k")
        header = f"for (int {name} = threadIdx.x % {WARP}; {name} < {k.extent.constant}; {name} += {WARP})"
        with scope.open(header) as inner:
            inner.define(k, name)
            total.add(inner, inner.value(body))
        whole = self.kernel.use(f"warp_{loop.kind}", loop.dtype)
        return scope.declare("whole", COMPUTE_TYPE[loop.dtype], f"{whole}<{WARP}>({total.name})")

    def _write(self, scope: Scope, position: int, value: Text, rest: Sequence[Index]) -> None:
        entry, name = self.loop.tensors[position], self.names[position]
        own = scope.declare("value", COMPUTE_TYPE[entry.now.dtype], value.text)
        array = f"{name}_now" if has_two(self.loop, entry) else name
        if self.blocks <= 1:
            scope.line(f"{array}[i] = {own};")
        else:
            place = f"{self.kernel.use('in_block')}(&{array}[i], peer)"
            scope.line(f"for (int peer = 0; peer < {self.blocks}; ++peer) *{place} = {own};")
        self._store(scope, position, own, rest)

    def _find_arrays(self, scalar: Scalar) -> None:
        """Have reads of the loop's own tensors go to the arrays of the block."""
        for access in accesses(scalar):
            for entry, name in zip(self.loop.tensors, self.names, strict=True):
                if access.tensor in (entry.now, entry.before):
                    suffix = ("_now" if access.tensor is entry.now else "_before") if has_two(self.loop, entry) else ""
                    place = ravel([access.index[axis] for axis in entry.own_axes], entry.own_shape)
                    self.kernel.runs[access.digest] = (f"{name}{suffix}", place)


def loops_in(scalar: Scalar) -> list[Loop]:
    """Return the reductions of a scalar."""
    return [node for node in nodes(scalar) if isinstance(node, Loop)]


def loops_of(entry: LoopTensor) -> list[Loop]:
    """Return the reductions of a definition."""
    return loops_in(as_pointwise(entry).body)


def is_by_warps(loop: StepLoop, entry: LoopTensor) -> bool:
    """Return True if the lanes of a warp share the terms of each reduction of the entry."""
    found = loops_of(entry)
    own = {tensor for each in loop.tensors for tensor in (each.now, each.before)}
    return bool(found) and all(_suits_warp(each, own) for each in found)


def _suits_warp(loop: Loop, own: Collection[Tensor]) -> bool:
    terms = product(variable.extent for variable in loop.loop_variables).constant
    if loop.kind not in WARP_KINDS or terms is None or terms < MIN_WARP_TERMS or loops_in(loop.operands[0]):
        return False
    last = loop.loop_variables[-1]
    for access in accesses(loop.operands[0]):
        if access.tensor not in own and last in access.variables:
            return ((last,), 1) in ravel(access.index, access.tensor.shape).terms
    return False
