"""Selection kernels: the places of the few first elements of each row in sorted order.

A row that a warp holds in registers gives up its first element again and again. Longer rows are dealt to lists, and a
block reads a row once, keeping the first element of each list. At least `n_kept` elements do not come after the
`n_kept`-th of these, so only as many lists are read again. This takes the same time whatever the elements are.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from kernel_lsp.core.expression import Binary, Constant
from kernel_lsp.generate.codegen.elements.packs import WORD_BYTES
from kernel_lsp.generate.codegen.kernel import KernelWriter, RenderedKernel, blocks_of, divisible, rendered
from kernel_lsp.generate.codegen.operators import COMPUTE_TYPE, loaded
from kernel_lsp.generate.codegen.routines.sorting import length_of, stores_of
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import SortedGroup
from kernel_lsp.generate.ir.sizes import to_expression

_NAMES = """
row place line n_packs best at pack loaded u v first items found bounds winners last n_found n_kept lane leader bound
limit n_left is_mine owner size i j mine other rank n_winners n_again start end value span stride pair low
"""
LOCAL_NAMES = tuple(_NAMES.split())
MAX_KEPT = 64
"""Maximum elements that are selected: a block reads as many lists twice."""
MAX_CANDIDATES = 2048
"""Candidates that a block sorts, a power of two; 8 bytes each."""
MAX_ITEMS = 16
"""Maximum elements of a row that a thread sorts in registers."""
WARP = 32


@dataclass(frozen=True)
class SelectionSchedule:
    """`threads` of a block and elements of a load. A thread has as many `lists`, or packs where a warp holds a row."""

    threads: int
    vector: int
    lists: int
    is_short: bool = False


def selects(rows: SortedGroup) -> bool:
    """Return whether the kernels of this module can find the wanted elements."""
    count = rows.count.constant
    return count is not None and 1 <= count <= MAX_KEPT and rows.source.dtype.itemsize <= 4


def render_selection(kernel: KernelWriter, rows: SortedGroup, schedule: SelectionSchedule) -> RenderedKernel:
    """Render the kernel of a schedule."""
    return (_render_short if schedule.is_short else _render_long)(kernel, rows, schedule)


def _render_short(kernel: KernelWriter, rows: SortedGroup, schedule: SelectionSchedule) -> RenderedKernel:
    """Render the kernel that keeps a row in the registers of a warp."""
    scope = Scope(kernel)
    head = _Head(kernel, rows, schedule)
    n_items, threads, vector, count = schedule.vector * schedule.lists, schedule.threads, schedule.vector, head.count
    rows_per_block = threads // WARP
    n_rows = kernel.size("n_rows", rows.n_rows)
    body = f"""
    const int lane = threadIdx.x % {WARP};
    const {kernel.index_type} row = {head.prefix}blockIdx.x * {rows_per_block} + threadIdx.x / {WARP};
    if (row >= {n_rows}) return;
{head.line()}
    unsigned items[{n_items}];
    int at[{n_items}];
    int n_left = 0;
    #pragma unroll
    for (int u = 0; u < {schedule.lists}; ++u) {{
        const int pack = lane * {schedule.lists} + u;
        const {head.pack} loaded = line[min(pack, n_packs - 1)];
        if (pack < n_packs) n_left += {vector};
        #pragma unroll
        for (int v = 0; v < {vector}; ++v) {{
            items[u * {vector} + v] = pack < n_packs ? {head.key(head.element("loaded", "v"))} : 0;
            at[u * {vector} + v] = u * {vector} + v;
        }}
    }}
    {kernel.use("sort_items")}(items, at);
    for (int start = 0; start < {count}; start += {WARP}) {{
        int place = 0;
        for (int i = 0; i < min({count} - start, {WARP}); ++i) {{
            const unsigned leader = __reduce_max_sync(~0u, items[0]);
            const int owner = __ffs(__ballot_sync(~0u, n_left > 0 && items[0] == leader)) - 1;
            const int found = __shfl_sync(~0u, lane * {n_items} + at[0], owner);
            if (lane == i) place = found;
            const bool is_mine = lane == owner;
            n_left -= is_mine;
            #pragma unroll
            for (int j = 0; j < {n_items}; ++j) {{
                items[j] = is_mine ? (j + 1 < {n_items} ? items[j + 1] : 0) : items[j];
                at[j] = is_mine && j + 1 < {n_items} ? at[j + 1] : at[j];
            }}
        }}
        const int rank = start + lane;
        if (rank < {count}) {{
{stores_of(kernel, rows, "rank", "place", depth=3)}
        }}
    }}
"""
    scope.lines += body.strip("\n").split("\n")
    comment = f"A warp sorts the {n_items} elements of a row in each lane, and takes the first of all {count} times."
    conditions = divisible(rows.length, vector)
    if rows.length.constant is None:
        conditions += (Binary("<=", to_expression(rows.length), Constant(WARP * n_items)),)
    return rendered(kernel, comment, scope.lines, (blocks_of(rows.n_rows, rows_per_block),), (threads,), conditions)


def _render_long(kernel: KernelWriter, rows: SortedGroup, schedule: SelectionSchedule) -> RenderedKernel:
    """Render the kernel that reads each row once and the lists of its first elements twice."""
    scope = Scope(kernel)
    head = _Head(kernel, rows, schedule)
    prefix, line = head.prefix, head.line()
    body = f"""
    __shared__ unsigned long long found[{MAX_CANDIDATES}];
    __shared__ unsigned long long bounds[{schedule.threads // WARP}];
    __shared__ unsigned long long last;
    __shared__ int winners[{head.count}];
    __shared__ int n_found, n_kept;
    const {kernel.index_type} row = {prefix}blockIdx.x;
{line}
    if (threadIdx.x == 0) {{
        n_found = n_kept = 0;
        last = 0;
    }}
{_streamed(head)}
{_leaders(head)}
{_candidates(head)}
    if (threadIdx.x < end) {{
        const unsigned long long mine = found[threadIdx.x];
        int rank = 0;
        for (int j = 0; j < end; ++j) rank += found[j] > mine;
        const int place = ~(unsigned)mine;
        if (rank < {head.count}) {{
{stores_of(kernel, rows, "rank", "place", depth=3)}
        }}
    }}
"""
    scope.lines += body.strip("\n").split("\n")
    comment = (
        f"A block deals the packs of its row to {schedule.lists} lists per thread and keeps the first element of each. "
        f"Only the {head.count} lists with the first of these can hold one of the first {head.count} elements: they "
        "are read again."
    )
    conditions = divisible(rows.length, schedule.vector)
    return rendered(kernel, comment, scope.lines, (to_expression(rows.n_rows),), (schedule.threads,), conditions)


def _streamed(head: _Head) -> str:
    """Return the loop that finds the first element of each list: its value and its pack."""
    threads, lists, vector = head.schedule.threads, head.schedule.lists, head.schedule.vector
    kernel, dtype = head.kernel, head.rows.source.dtype
    precedes = f"{kernel.use('precedes', dtype)}<{head.descending}>"
    return f"""\
    {head.type} best[{lists}] = {{}};
    int at[{lists}];
    #pragma unroll
    for (int u = 0; u < {lists}; ++u) at[u] = -1;
    for (int start = threadIdx.x; start < n_packs; start += {threads * lists}) {{
        {head.pack} loaded[{lists}];
        #pragma unroll
        for (int u = 0; u < {lists}; ++u) loaded[u] = {head.read(f"min(start + u * {threads}, n_packs - 1)")};
        #pragma unroll
        for (int u = 0; u < {lists}; ++u) {{
            {head.type} first = {head.element("loaded[u]", "0")};
            #pragma unroll
            for (int v = 1; v < {vector}; ++v) {{
                const {head.type} value = {head.element("loaded[u]", "v")};
                if ({precedes}(value, first)) first = value;
            }}
            if (start + u * {threads} < n_packs && (at[u] < 0 || {precedes}(first, best[u]))) {{
                best[u] = first;
                at[u] = start + u * {threads};
            }}
        }}
    }}"""


def _leaders(head: _Head) -> str:
    """Return the text that finds the lists with the first elements, and the last of these."""
    threads, lists, count = head.schedule.threads, head.schedule.lists, head.count
    warps = threads // WARP
    share = -(-count // warps)
    take = head.kernel.use("take_first")
    return f"""\
    unsigned long long items[{lists}];
    #pragma unroll
    for (int u = 0; u < {lists}; ++u) {{
        items[u] = at[u] < 0 ? 0 : {head.ranked("best[u]", "at[u]")};
    }}
    __syncthreads();
    unsigned long long leader = 0, bound = ~0ull;
    for (int i = 0; i < {share}; ++i) {{
        leader = {take}(items);
        if (threadIdx.x % {WARP} == 0 && leader != 0) found[atomicAdd(&n_found, 1)] = leader;
    }}
    if (threadIdx.x % {WARP} == 0) bounds[threadIdx.x / {WARP}] = leader;
    __syncthreads();
    for (int i = 0; i < {warps}; ++i) bound = min(bound, bounds[i]);  // {share * warps} do not come after it
    for (int i = {share}; i < {count}; ++i) {{
        leader = {take}(items);
        if (leader == 0 || leader < bound) break;
        if (threadIdx.x % {WARP} == 0) found[atomicAdd(&n_found, 1)] = leader;
    }}
    __syncthreads();
    const int n_winners = min(n_found, {count});
    for (int i = threadIdx.x; i < n_found; i += {threads}) {{
        const unsigned long long mine = found[i];
        int rank = 0;
        for (int j = 0; j < n_found; ++j) rank += found[j] > mine;
        if (rank < {count}) winners[rank] = ~(unsigned)mine % {threads * lists};
        if (rank == {count - 1}) last = mine;
    }}
    __syncthreads();"""


def _candidates(head: _Head) -> str:
    """Return the text that collects the elements of these lists that do not come after the last leader."""
    threads, lists, vector, count = head.schedule.threads, head.schedule.lists, head.schedule.vector, head.count
    batch = min(threads, MAX_CANDIDATES // 2 // vector)
    item = "pack" if vector == 1 else f"(pack * {vector} + v)"
    return f"""\
    const unsigned long long limit = last;
    const int n_again = n_winners * ((n_packs + {threads * lists - 1}) / {threads * lists});
    int end = 0;
    for (int start = 0; start < n_again; start += {batch}) {{
        const int i = start + threadIdx.x;
        const int pack = winners[i % n_winners] + i / n_winners * {threads * lists};
        if (threadIdx.x < {batch} && i < n_again && pack < n_packs) {{
            const {head.pack} loaded = line[pack];
            #pragma unroll
            for (int v = 0; v < {vector}; ++v) {{
                const unsigned long long mine = {head.ranked(head.element("loaded", "v"), "pack")};
                if (mine >= limit) found[atomicAdd(&n_kept, 1)] = mine >> 32 << 32 | (unsigned)~{item};
            }}
        }}
        __syncthreads();
        end = n_kept;
        __syncthreads();
        if (end > {MAX_CANDIDATES - batch * vector} || (end > {threads} && start + {batch} >= n_again)) {{
{textwrap.indent(_network(threads), " " * 8)}
            end = {count};
            if (threadIdx.x == 0) n_kept = {count};
            __syncthreads();
        }}
    }}"""


def _network(threads: int) -> str:
    """Return the bitonic network that sorts the candidates, the largest first."""
    return f"""\
    int size = {threads};
    while (size < end) size *= 2;
    for (int i = end + threadIdx.x; i < size; i += {threads}) found[i] = 0;
    for (int span = 2; span <= size; span *= 2) {{
        for (int stride = span / 2; stride > 0; stride /= 2) {{
            __syncthreads();
            for (int pair = threadIdx.x; pair < size / 2; pair += {threads}) {{
                const int low = 2 * pair - pair % stride;
                const unsigned long long mine = found[low], other = found[low + stride];
                if ((other > mine) == (low / span % 2 == 0)) {{
                    found[low] = other;
                    found[low + stride] = mine;
                }}
            }}
        }}
    }}
    __syncthreads();"""


@dataclass
class _Head:
    """Hold the names and types that the parts of a kernel's text share."""

    kernel: KernelWriter
    rows: SortedGroup
    schedule: SelectionSchedule

    def __post_init__(self) -> None:
        dtype = self.rows.source.dtype
        self.n = length_of(self.kernel, self.rows)
        self.count = self.rows.count.constant or 0
        self.type = COMPUTE_TYPE[dtype]
        self.source = self.kernel.pointer(self.rows.source)
        self.descending = str(self.rows.is_descending).lower()
        self.prefix = "(long long)" if self.kernel.index_type == "long long" else ""
        self.kernel.use("Pack")
        self.kernel.use("packs")
        self.pack = f"Pack<{dtype.cuda_type}, {self.schedule.vector}>"

    def line(self) -> str:
        """Return the declarations of the row and of its number of packs."""
        n_packs = self.n if self.schedule.vector == 1 else f"{self.n} / {self.schedule.vector}"
        return f"""\
    const {self.pack}* line = packs<{self.schedule.vector}>({self.source} + row * {self.n});
    const int n_packs = {n_packs};"""

    def read(self, place: str) -> str:
        """Return the load of a pack that is unlikely to be read again."""
        n_bytes = self.schedule.vector * self.rows.source.dtype.itemsize
        return f"{self.kernel.use('load_once')}(line + {place})" if n_bytes >= WORD_BYTES else f"line[{place}]"

    def element(self, pack: str, place: str) -> str:
        """Return an element of a pack in the type that comparisons have."""
        return loaded(f"{pack}.item[{place}]", self.rows.source.dtype).text

    def key(self, value: str) -> str:
        """Return the number that is larger the earlier elements of this value come."""
        return f"{self.kernel.use('order_key', self.rows.source.dtype)}<{self.descending}>({value})"

    def ranked(self, value: str, place: str) -> str:
        """Return the number that is larger the earlier the element comes."""
        return f"(unsigned long long){self.key(value)} << 32 | (unsigned)~{place}"
