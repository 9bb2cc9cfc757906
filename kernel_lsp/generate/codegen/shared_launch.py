"""Merge several kernels into one launch: in parallel in one grid, or in sequence separated by barriers.

Each kernel becomes a device function that takes its block's number. A launch costs 1 to 2 us regardless of its work, so
small kernels run faster in a shared one.

Find kernels that differ in names alone: the layers of a deep network then share one function, compiled once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Constant, Expression
from kernel_lsp.core.expression_rules import binary
from kernel_lsp.generate.codegen.helpers import HelperUse
from kernel_lsp.generate.codegen.kernel import (
    ONE,
    KernelParameterText,
    RenderedKernel,
    SharedArray,
    argument_of,
    function_text,
)
from kernel_lsp.generate.identifiers import NamePool

MAX_SHARED_BYTES = 40 << 10
"""Maximum static shared memory of all parts together, in bytes: 48 KiB less 8 KiB for the helpers of reductions."""
RESTRICT = " __restrict__"
MAX_EXCHANGED_BYTES = 8 << 10
"""Maximum bytes of tensors that the stages of a block exchange through shared memory. One that they write to global
memory comes back from the L2 cache: about 270 cycles on an H200, a tenth of a launch."""
GLOBAL_HELPERS = frozenset({"load_once", "load_kept", "copy_pack", "copy_past_l1"})
"""Helpers whose instructions want addresses of global memory."""
N_BYTES = {dtype.cuda_type: dtype.itemsize for dtype in DType}


def can_share(kernels: Sequence[RenderedKernel]) -> bool:
    """Return True if one launch can run all kernels: blocks of one size, no launch attributes of their own, and static
    shared memory for every part."""
    return (
        len({kernel.block for kernel in kernels}) == 1
        and not any(kernel.attributes or kernel.shared_bytes or kernel.scratch or kernel.when for kernel in kernels)
        and _n_shared_bytes(kernels) <= MAX_SHARED_BYTES
    )


def share_launch(
    name: str,
    stages: Sequence[Sequence[RenderedKernel]],
    n_blocks: int,
    n_resident: int,
    index_type: str,
    sizes: Mapping[str, Expression],
    scratch: Collection[str] = (),
) -> RenderedKernel:
    """Return one kernel that runs the parts of a stage in parallel, and the stages in order. With one stage, each block
    runs one part's block. With several, `n_blocks` blocks loop over all blocks of a stage, and synchronize between
    stages: one block at `__syncthreads`, more at the barrier of a cooperative grid, `n_resident` of them on a
    multiprocessor. `sizes` are the elements of tensors, by the plan's name, `scratch` the tensors that nothing but
    these kernels needs: one block exchanges small ones in its shared memory."""
    return _SharedLaunch(name, stages, n_blocks, n_resident, index_type, sizes, scratch).render()


def _n_shared_bytes(kernels: Sequence[RenderedKernel]) -> int:
    """Return the shared memory of all parts in bytes: the arrays that they share, and those of their own."""
    own = sum(kernel.source.shared_bytes for kernel in kernels)
    return own + sum(4 * array.n_elements * array.align // 16 for array in _shared_arrays(kernels).values())


def _shared_arrays(kernels: Sequence[RenderedKernel]) -> dict[str, SharedArray]:
    """Return one shared array per element type, as large as the largest that a part requests."""
    found: dict[str, SharedArray] = {}
    for kernel in kernels:
        array = kernel.source.memory
        if array is not None and (array.type not in found or array.n_elements > found[array.type].n_elements):
            found[array.type] = array
    return {type_: replace(array, name=f"memory_of_{type_}") for type_, array in found.items()}


@dataclass(frozen=True)
class _Part:
    """A kernel as a device function. `n_blocks` is the text of its number of blocks in the launch."""

    kernel: RenderedKernel
    text: str
    call: str
    n_blocks: str


@dataclass
class _SharedLaunch:
    name: str
    stages: Sequence[Sequence[RenderedKernel]]
    n_blocks: int
    n_resident: int
    index_type: str
    sizes: Mapping[str, Expression]
    scratch: Collection[str]

    def __post_init__(self) -> None:
        self.kernels = [kernel for stage in self.stages for kernel in stage]
        self.names = NamePool({kernel.name for kernel in self.kernels})
        self.parameters: dict[tuple[str, Expression], KernelParameterText] = {}
        self.exchanged = _exchanged(self.kernels)
        self.arrays = _shared_arrays(self.kernels)
        self.in_block = self._exchanged_in_block()
        self._collect_parameters()

    def render(self) -> RenderedKernel:
        stages = [[self._part(*entry) for entry in enumerate(stage)] for stage in self.stages]
        body = self._side_by_side(stages[0]) if len(stages) == 1 else self._staged(stages)
        block = self.kernels[0].block
        arrays = [f"    {array.declaration}  // of one part at a time" for array in self.arrays.values()]
        body = [*arrays, *(f"    {array.declaration}" for array in self.in_block.values()), *body]
        bounds = f"{block[0]}, {self.n_resident}" if self.n_resident > 1 and len(stages) > 1 else str(block[0])
        signature = f"__global__ void __launch_bounds__({bounds}) {self.name}("
        parameters = _ordered(self.parameters.values())
        text = function_text(self._comment(), signature, parameters, body)
        grid = self._total([part.kernel for part in stages[0]]) if len(stages) == 1 else Constant(self.n_blocks)
        is_cooperative = len(stages) > 1 and self.n_blocks != 1
        first = self.kernels[0]
        return replace(
            first,
            name=self.name,
            text="\n".join([*(part.text for stage in stages for part in stage), text]),
            grid=(grid, ONE, ONE),
            arguments=tuple(argument_of(parameter) for parameter in parameters),
            helpers=frozenset().union(*(kernel.helpers for kernel in self.kernels), self._own_helpers(body)),
            conditions=tuple(condition for kernel in self.kernels for condition in kernel.conditions),
            attributes=(("cooperative", 1),) if is_cooperative else (),
        )

    def _comment(self) -> str:
        names = [" and ".join(kernel.name for kernel in stage) for stage in self.stages]
        if len(names) == 1:
            return f"One launch for {names[0]}: each block does a block of one of them."
        who = "One block does" if self.n_blocks == 1 else f"{self.n_blocks} blocks that run at once do"
        return f"{who} all stages in order: {', then '.join(names)}."

    def _own_helpers(self, body: Sequence[str]) -> frozenset[HelperUse]:
        names = ("prefetch", "prefetch_all") if any("prefetch_all(" in line for line in body) else ()
        return frozenset(HelperUse(name, "") for name in names)

    def _exchanged_in_block(self) -> dict[str, SharedArray]:
        """Return the shared memory of each small tensor that a stage writes and a later one reads, by the plan's name,
        where one block runs them all."""
        names = {use.name for kernel in self.kernels for use in kernel.helpers}
        if self.n_blocks != 1 or names & GLOBAL_HELPERS:
            return {}
        room = min(MAX_EXCHANGED_BYTES, MAX_SHARED_BYTES - _n_shared_bytes(self.kernels))
        found: dict[str, SharedArray] = {}
        written = [p for stage in self.stages[:-1] for kernel in stage for p in kernel.source.parameters]
        for parameter in filter(_is_written, written):
            size, type_ = self.sizes.get(str(parameter.argument)), parameter.declaration.partition("*")[0]
            if parameter.argument not in self.exchanged or not isinstance(size, Constant) or type_ not in N_BYTES:
                continue
            n_bytes = int(size.value) * N_BYTES[type_]
            if str(parameter.argument) not in found and n_bytes <= room:
                room -= n_bytes
                name = self.names.take(f"shared_{_name_of(parameter)}")
                found[str(parameter.argument)] = SharedArray(type_, name, int(size.value), 16)
        return found

    def _collect_parameters(self) -> None:
        """Collect one parameter per argument. It is const only if no part writes the tensor."""
        for kernel in self.kernels:
            for parameter in kernel.source.parameters:
                if parameter.argument not in self.in_block or parameter.argument not in self.scratch:
                    self._add_parameter(parameter)

    def _add_parameter(self, parameter: KernelParameterText) -> str:
        key = _key(parameter)
        known = self.parameters.get(key)
        if known is None:
            name = self.names.take(_name_of(parameter))
            declaration = _renamed(self._declaration(parameter), name)
            known = self.parameters[key] = replace(parameter, declaration=declaration)
        elif known.declaration.startswith("const ") and not parameter.declaration.startswith("const "):
            declaration = _renamed(self._declaration(parameter), _name_of(known))
            known = self.parameters[key] = replace(known, declaration=declaration)
        return _name_of(known)

    def _declaration(self, parameter: KernelParameterText) -> str:
        """Return the declaration, without `__restrict__` for a tensor that one part writes and another reads."""
        if parameter.argument in self.exchanged:
            return parameter.declaration.replace(RESTRICT, "")
        return parameter.declaration

    def _count(self, kernel: RenderedKernel) -> str:
        """Return the number of a part's blocks: a literal or a parameter."""
        return self._size(self._total([kernel]), f"n_{kernel.name}")

    def _size(self, size: Expression, name: str) -> str:
        if isinstance(size, Constant):
            return str(size)
        return self._add_parameter(KernelParameterText(f"{self.index_type} {name}", str(size), size))

    def _total(self, kernels: Sequence[RenderedKernel]) -> Expression:
        total: Expression = Constant(0)
        for kernel in kernels:
            product: Expression = ONE
            for extent in kernel.grid:
                product = binary("*", product, extent)
            total = binary("+", total, product)
        return total

    def _part(self, position: int, kernel: RenderedKernel) -> _Part:
        source = kernel.source
        taken = {word for line in source.body for word in re.findall(r"\w+", line)}
        taken |= {_name_of(parameter) for parameter in source.parameters}
        pool = NamePool(taken)
        block = pool.take("block")
        extra = [KernelParameterText(f"int {block}", "the part's own", "")]
        arguments = []
        positions, sizes = self._block_positions(kernel, block, pool)
        for name, outer in sizes:
            extra.append(KernelParameterText(f"int {name}", "", ""))
            arguments.append(outer)
        first_thread = self._first_thread(position, kernel)
        if first_thread:
            positions["threadIdx.x"] = pool.take("thread")
        body = [_substituted(line, positions) for line in source.body]
        if first_thread:
            declaration = f"const int {positions['threadIdx.x']} = threadIdx.x ^ {first_thread};"
            body = [f"    {declaration}  // other warps come first than for the part before", *body]
        if source.memory is not None:
            extra.append(KernelParameterText(f"{source.memory.type}* {source.memory.name}", "shared", ""))
            arguments.append(self.arrays[source.memory.type].name)
            body = [line for line in body if source.memory.declaration not in line]
        parameters = [replace(p, declaration=self._declaration(p)) for p in source.parameters]
        signature = f"__device__ __forceinline__ void {kernel.name}("
        text = function_text(source.comment, signature, [*extra, *parameters], body)
        arguments += [self._argument(parameter) for parameter in source.parameters]
        return _Part(kernel, text, f"{kernel.name}(BLOCK, {', '.join(arguments)})", self._count(kernel))

    def _first_thread(self, position: int, kernel: RenderedKernel) -> int:
        """Return the thread that is the first one of a part of a stage, whose parts run side by side where each needs a
        few warps of the only block: 0 of the first part, and of one whose helpers number threads themselves."""
        threads = kernel.block[0]
        if self.n_blocks != 1 or len(self.stages) == 1 or _uses_shared(kernel) or kernel.block != (threads, 1, 1):
            return 0
        turn = f"{position % 4:02b}"[::-1]
        return int(turn, 2) * threads // 4 if threads % 128 == 0 and threads & (threads - 1) == 0 else 0

    def _argument(self, parameter: KernelParameterText) -> str:
        array = self.in_block.get(str(parameter.argument))
        return array.name if array is not None else _name_of(self.parameters[_key(parameter)])

    def _block_positions(
        self, kernel: RenderedKernel, block: str, pool: NamePool
    ) -> tuple[dict[str, str], list[tuple[str, str]]]:
        """Return the substitutes for blockIdx in a part, and the sizes of the part's grid that they need as
        parameters."""
        width, height, depth = kernel.grid
        if height == ONE and depth == ONE:
            return {"blockIdx.x": block}, []
        sizes: list[tuple[str, str]] = []

        def text(extent: Expression, wanted: str) -> str:
            if isinstance(extent, Constant):
                return str(extent)
            name = pool.take(wanted)
            sizes.append((name, self._size(extent, f"{kernel.name}_{wanted}")))
            return name

        columns = text(width, "grid_x")
        positions = {"blockIdx.x": f"({block} % {columns})", "blockIdx.y": f"({block} / {columns})"}
        if depth != ONE:
            rows = text(height, "grid_y")
            positions["blockIdx.y"] = f"({block} / {columns} % {rows})"
            positions["blockIdx.z"] = f"({block} / ({columns} * {rows}))"
        return positions, sizes

    def _side_by_side(self, parts: list[_Part]) -> list[str]:
        if len(parts) == 1:
            return [f"    {parts[0].call.replace('BLOCK', 'blockIdx.x')};"]
        return ["    int block = blockIdx.x;", *self._dispatch(parts, "    ", "return;")]

    def _dispatch(self, parts: list[_Part], indent: str, leave: str) -> list[str]:
        """Call the part that contains `block`."""
        lines = []
        for part in parts[:-1]:
            call = part.call.replace("BLOCK", "block")
            lines += [f"{indent}if (block < {part.n_blocks}) {{", f"{indent}    {call};"]
            lines += [f"{indent}    {leave}", f"{indent}}}", f"{indent}block -= {part.n_blocks};"]
        return [*lines, f"{indent}{parts[-1].call.replace('BLOCK', 'block')};"]

    def _staged(self, stages: list[list[_Part]]) -> list[str]:
        lines = self._prefetches()
        if self.n_blocks != 1:
            lines.append("    const auto grid = cooperative_groups::this_grid();")
        for position, parts in enumerate(stages):
            if position:
                barrier = "__syncthreads();" if self.n_blocks == 1 else "grid.sync();"
                lines.append(f"    {barrier}  // the stages before are done")
            lines += self._stage(parts)
        return [*lines, *self._results_in_block()]

    def _results_in_block(self) -> list[str]:
        """Return the copies of results that the stages exchanged in shared memory."""
        lines = []
        for (_, argument), parameter in self.parameters.items():
            array = self.in_block.get(str(argument))
            if array is not None:
                n, threads, name = array.n_elements, self.kernels[0].block[0], _name_of(parameter)
                if n > threads:
                    head = f"for (int i = threadIdx.x; i < {n}; i += {threads})"
                    lines.append(f"    {head} {name}[i] = {array.name}[i];")
                else:
                    lines.append(f"    if (threadIdx.x < {n}) {name}[threadIdx.x] = {array.name}[threadIdx.x];")
        return lines

    def _prefetches(self) -> list[str]:
        """Prefetch the inputs of all stages at once, but those that the first part's only block loads by itself. One
        block has little to read."""
        if self.n_blocks != 1:
            return []
        lines, first = [], self.kernels[0]
        loaded = {p.argument for p in first.source.parameters} if self._total([first]) == ONE else set()
        for key, parameter in list(self.parameters.items()):
            size, is_read = self.sizes.get(str(parameter.argument)), parameter.declaration.startswith("const ")
            if is_read and size and parameter.argument not in self.exchanged | loaded:
                n_elements = self._size(size, f"n_{_name_of(parameter)}")
                lines.append(f"    prefetch_all({_name_of(self.parameters[key])}, {n_elements});")
        return lines

    def _stage(self, parts: list[_Part]) -> list[str]:
        if self.n_blocks == 1 and all(part.n_blocks == "1" for part in parts):
            return [f"    {part.call.replace('BLOCK', '0')};" for part in parts]
        lines = []
        for part in parts if self.n_blocks == 1 else []:
            lines += [f"    for (int block = 0; block < {part.n_blocks}; ++block) {{"]
            lines += [f"        {part.call.replace('BLOCK', 'block')};", "        __syncthreads();", "    }"]
        if lines:
            return [
                line
                for line in lines
                if any(_uses_shared(part.kernel) for part in parts) or "__syncthreads" not in line
            ]
        total = " + ".join(part.n_blocks for part in parts)
        lines = [f"    for (int item = blockIdx.x; item < {total}; item += gridDim.x) {{"]
        for position, part in enumerate(parts):
            before = "".join(f" - {entry.n_blocks}" for entry in parts[:position])
            keyword = "else " if position else ""
            last = position == len(parts) - 1
            upto = " + ".join(entry.n_blocks for entry in parts[: position + 1])
            condition = "" if last else f"if (item < {upto}) "
            lines.append(f"        {keyword}{condition}{part.call.replace('BLOCK', f'item{before}')};")
        return [*lines, "        __syncthreads();  // shared memory is free again", "    }"]


def _uses_shared(kernel: RenderedKernel) -> bool:
    """Return True if a part uses shared memory, so that parts must not use it at the same time."""
    source, helpers = kernel.source, kernel.helpers
    is_helped = any(use.name.startswith(("block_", "column_")) for use in helpers)
    return bool(source.shared_bytes or source.memory or is_helped)


def _exchanged(kernels: Sequence[RenderedKernel]) -> frozenset[str]:
    """Return the tensors that one part writes and another reads."""
    written = {p.argument for kernel in kernels for p in kernel.source.parameters if _is_written(p)}
    read = {p.argument for kernel in kernels for p in kernel.source.parameters if p.declaration.startswith("const ")}
    return frozenset(name for name in written & read if isinstance(name, str))


def _is_written(parameter: KernelParameterText) -> bool:
    return "*" in parameter.declaration and not parameter.declaration.startswith("const ")


def _key(parameter: KernelParameterText) -> tuple[str, Expression]:
    """Return the argument with the type of a number: one number may be a float and a double."""
    type_ = "" if "*" in parameter.declaration else parameter.declaration.rsplit(" ", 1)[0]
    return type_, argument_of(parameter)


def _name_of(parameter: KernelParameterText) -> str:
    return parameter.declaration.rsplit(" ", 1)[-1]


def _renamed(declaration: str, name: str) -> str:
    return f"{declaration.rsplit(' ', 1)[0]} {name}"


def _substituted(line: str, positions: dict[str, str]) -> str:
    for word, text in positions.items():
        line = line.replace(word, text)
    return line


def _ordered(parameters: Iterable[KernelParameterText]) -> list[KernelParameterText]:
    """Return the parameters in order: tensors read, tensors written, sizes."""
    found = list(parameters)
    return sorted(found, key=lambda entry: 2 if "*" not in entry.declaration else int(_is_written(entry)))


_TYPE = (
    r"(?:(?:unsigned |signed )?(?:long long|int|char|short)|float|double|bool|unsigned|half|__half|__nv_bfloat16"
    r"|u?int(?:8|16|32|64)_t|Pack<[^;={}()]*?>)"
)
_DECLARED = re.compile(rf"\b{_TYPE}\s*[*&]?\s*(?:__restrict__\s+)?([A-Za-z_]\w*)\s*(?=[=;,\[)({{]|$)", re.M)
"""The name that a declaration introduces. One that is missed keeps its spelling, so that fewer kernels match."""
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_COMMENT = re.compile(r"//.*")


def representatives(kernels: Sequence[RenderedKernel], known: dict[str, str]) -> dict[str, str]:
    """Return for each kernel's name that of the first kernel with the same code, `known` ones included; `known` maps
    codes to names, and is extended."""
    return {kernel.name: known.setdefault(code_of(kernel), kernel.name) for kernel in kernels}


def distinct(kernels: Sequence[RenderedKernel], names: dict[str, str]) -> tuple[RenderedKernel, ...]:
    """Return the kernels to write: of several with one text the first, with a note that the names in it are those of
    its own launch."""
    launched = list(names.values())
    note = "// Several launches share it; its names are those of the first.\n"
    return tuple(
        replace(kernel, text=_noted(kernel.text, note)) if launched.count(kernel.name) > 1 else kernel
        for kernel in kernels
        if names[kernel.name] == kernel.name
    )


def code_of(kernel: RenderedKernel) -> str:
    """Return the kernel's code, without comments, and the shapes of its parameters, each declared name replaced by its
    rank."""
    code = _COMMENT.sub("", kernel.text)
    shapes = "\n".join(parameter.comment for parameter in kernel.source.parameters)
    own = {kernel.name, *_DECLARED.findall(code)}
    rank: dict[str, int] = {}

    def ranked(match: re.Match[str]) -> str:
        word = match.group()
        return f"#{rank.setdefault(word, len(rank))}" if word in own else word

    return " ".join([*_WORD.sub(ranked, f"{code}\n{shapes}").split(), str(kernel.attributes)])


def _noted(text: str, note: str) -> str:
    head, place, rest = text.partition("__global__")
    return head + note + place + rest
