"""Sorting kernels: the places of the elements of each row in sorted order.

A row that fits shared memory is sorted there by a bitonic network. Of a longer row, a block collects the elements that
may be among the wanted first ones and sorts these; where too many are wanted, every element counts those before it.
"""

from __future__ import annotations

import textwrap

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Binary, Constant
from kernel_lsp.core.expression_rules import binary
from kernel_lsp.generate.codegen.elements.elementwise import write_stores
from kernel_lsp.generate.codegen.kernel import KernelWriter, RenderedKernel, blocks_of, name_coordinates, rendered
from kernel_lsp.generate.codegen.operators import ATOM, COMPUTE_TYPE, Text, loaded
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import SortedGroup
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.sizes import to_expression

_NAMES = (
    "place i j row keys key places place span stride pair low high tile mine rank end is_upward n_found last next slot"
)
LOCAL_NAMES = (*_NAMES.split(), "last_place")
MAX_SHARED_BYTES = 48 << 10
"""Maximum bytes of static shared memory of a block."""
MAX_SORTED = 4096
"""Maximum elements of a row that one block sorts; 8 bytes each fill two thirds of static shared memory."""
MAX_LENGTH = 1 << 30
"""Maximum elements of a row whose places, and steps past its end, are ints."""
PLACE_BYTES = 4


def sort_capacity(length: int, dtype: DType) -> int | None:
    """Return the elements, a power of two, that a block sorts in shared memory; None where they do not fit."""
    capacity = max(2, 1 << (length - 1).bit_length())
    n_bytes = capacity * (PLACE_BYTES + max(4, dtype.itemsize))
    return capacity if capacity <= MAX_SORTED and n_bytes <= MAX_SHARED_BYTES else None


def leading_capacity(n_kept: int | None, dtype: DType, threads: int) -> int | None:
    """Return the candidates, a power of two, among which a block finds the first `n_kept` of a long row; None where
    they do not fit, or none is wanted."""
    if not n_kept:
        return None
    capacity = max(1024, 1 << (2 * n_kept + threads - 1).bit_length())
    n_bytes = capacity * (PLACE_BYTES + max(4, dtype.itemsize))
    return capacity if capacity <= MAX_SORTED and n_bytes < MAX_SHARED_BYTES else None


class SortRenderer:
    """Writes a kernel that finds the first places of each row, by blocks of `threads`."""

    def __init__(self, kernel: KernelWriter, rows: SortedGroup, threads: int) -> None:
        self.kernel, self.rows, self.threads = kernel, rows, threads
        self.count = kernel.size("n_kept", rows.count)
        self.type = COMPUTE_TYPE[rows.source.dtype]
        self.first = f"{kernel.use('comes_first', rows.source.dtype)}<{str(rows.is_descending).lower()}>"
        self.source = kernel.pointer(rows.source)
        self.block = "(long long)blockIdx.x" if kernel.index_type == "long long" else "blockIdx.x"

    def sorted(self, capacity: int) -> RenderedKernel:
        """Return the kernel that sorts each row in shared memory."""
        kernel, rows, threads = self.kernel, self.rows, self.threads
        n = kernel.size("n_columns", rows.length)
        body = f"""
    __shared__ {self.type} keys[{capacity}];
    __shared__ int places[{capacity}];
    const {kernel.index_type} row = {self.block};
    for (int i = threadIdx.x; i < {capacity}; i += {threads}) {{
        if (i < {n}) keys[i] = {self._element(n, "i")};
        places[i] = i;
    }}
{self._network(capacity, n)}
    __syncthreads();
{self._stored_places()}
"""
        conditions = () if rows.length.constant is not None else (_at_most(rows.length, capacity),)
        comment = f"A block sorts a row of at most {capacity} elements by a bitonic network in shared memory."
        return rendered(kernel, comment, _lines(body), (to_expression(rows.n_rows),), (threads,), conditions)

    def ranked(self) -> RenderedKernel:
        """Return the kernel in which each element counts those before it."""
        kernel, rows, threads = self.kernel, self.rows, self.threads
        n = length_of(kernel, rows)
        tiles = f"(({n} + {threads - 1}) / {threads})"
        body = f"""
    __shared__ {self.type} keys[{threads}];
    const {kernel.index_type} row = {self.block} / {tiles};
    const int i = blockIdx.x % {tiles} * {threads} + threadIdx.x;
    const {self.type} mine = {self._element(n, f"min(i, {n} - 1)")};
    int rank = 0;
    for (int tile = 0; tile < {n}; tile += {threads}) {{
        __syncthreads();
        if (tile + (int)threadIdx.x < {n}) keys[threadIdx.x] = {self._element(n, "tile + threadIdx.x")};
        __syncthreads();
        const int end = min({n} - tile, {threads});
        for (int j = 0; j < end; ++j) rank += {self.first}(keys[j], tile + j, mine, i, {n});
    }}
    if (i < {n} && rank < {self.count}) {{
{stores_of(kernel, rows, "rank", "i", depth=2)}
    }}
"""
        grid = binary("*", to_expression(rows.n_rows), blocks_of(rows.length, threads))
        comment = "A thread per element counts the elements that come before it in its row."
        return rendered(kernel, comment, _lines(body), (grid,), (threads,), fitting(kernel, rows))

    def leading(self, capacity: int) -> RenderedKernel:
        """Return the kernel that collects candidates for the first places of a long row, and sorts them when they are
        many. The order is total, so the result does not depend on the order in which threads add candidates."""
        kernel, rows, threads, count = self.kernel, self.rows, self.threads, self.count
        n = length_of(kernel, rows)
        body = f"""
    __shared__ {self.type} keys[{capacity}];
    __shared__ int places[{capacity}];
    __shared__ int n_found;
    const {kernel.index_type} row = {self.block};
    {self.type} last = {{}};
    int last_place = {n};  // no candidate is the last yet: any element comes before it
    {self.type} next = {self._element(n, f"min((int)threadIdx.x, {n} - 1)")};
    if (threadIdx.x == 0) n_found = 0;
    __syncthreads();
    for (int tile = 0; tile < {n}; tile += {threads}) {{
        const {self.type} mine = next;
        const int i = tile + threadIdx.x;
        next = {self._element(n, f"min(i + {threads}, {n} - 1)")};
        if (i < {n} && {self.first}(mine, i, last, last_place, {n})) {{
            const int slot = atomicAdd(&n_found, 1);
            keys[slot] = mine;
            places[slot] = i;
        }}
        __syncthreads();
        const int end = n_found;
        if (end > {capacity - threads} || tile + {threads} >= {n}) {{
            for (int j = end + threadIdx.x; j < {capacity}; j += {threads}) places[j] = {n};
{textwrap.indent(self._network(capacity, n), " " * 8)}
            __syncthreads();
            if (threadIdx.x == 0) n_found = min(end, {count});
            if (end >= {count}) {{
                last = keys[{count} - 1];
                last_place = places[{count} - 1];
            }}
        }}
        __syncthreads();
    }}
{self._stored_places()}
"""
        comment = (
            f"A block keeps the elements of its row that come before the last of the first {count} so far, and sorts "
            f"them by a bitonic network when there may be more than {capacity}."
        )
        grid = to_expression(rows.n_rows)
        return rendered(kernel, comment, _lines(body), (grid,), (threads,), fitting(kernel, rows))

    def _element(self, n: str, place: str) -> str:
        """Return the element at a place of the row, of `n` elements."""
        return loaded(f"{self.source}[row * {n} + {place}]", self.rows.source.dtype).text

    def _stored_places(self) -> str:
        """Return the loop that stores the elements at the first places."""
        return f"""\
    for (int i = threadIdx.x; i < {self.count}; i += {self.threads}) {{
        const int place = places[i];
{stores_of(self.kernel, self.rows, "i", "place", depth=2)}
    }}"""

    def _network(self, capacity: int, n: str) -> str:
        """Return the bitonic network that sorts `keys` and `places`; places from `n` on come last."""
        return f"""\
    for (int span = 2; span <= {capacity}; span *= 2) {{
        for (int stride = span / 2; stride > 0; stride /= 2) {{
            __syncthreads();
            for (int pair = threadIdx.x; pair < {capacity // 2}; pair += {self.threads}) {{
                const int low = 2 * pair - pair % stride;
                const int high = low + stride;
                const bool is_upward = low / span % 2 == 0;
                const {self.type} key = keys[low];
                const int place = places[low];
                if ({self.first}(keys[high], places[high], key, place, {n}) == is_upward) {{
                    keys[low] = keys[high];
                    places[low] = places[high];
                    keys[high] = key;
                    places[high] = place;
                }}
            }}
        }}
    }}"""


def length_of(kernel: KernelWriter, rows: SortedGroup) -> str:
    """Return the elements of a row, as places are: an int."""
    n = kernel.size("n_columns", rows.length)
    return n if kernel.index_type == "int" else f"(int){n}"


def fitting(kernel: KernelWriter, rows: SortedGroup) -> tuple[Binary, ...]:
    """Return the `where:` line of rows whose places are ints, where no contract of the tensors bounds them."""
    is_known = kernel.index_type == "int" or rows.length.constant is not None
    return () if is_known else (_at_most(rows.length, MAX_LENGTH),)


def stores_of(kernel: KernelWriter, rows: SortedGroup, rank: str, place: str, depth: int) -> str:
    """Return the statements, this deep, that store the element of a rank: it is at `place` in the row `row`."""
    scope = Scope(kernel, depth=depth)
    scope.define(rows.row, "row")
    scope.define(rows.rank, rank)
    scope.bind(rows.place, Text(place, ATOM))
    name_coordinates(kernel, as_index(rows.row), rows.places.shape[:-1])
    write_stores(scope, rows.stores)
    return "\n".join(scope.lines)


def _lines(body: str) -> list[str]:
    return body.strip("\n").split("\n")


def _at_most(size: Index, limit: int) -> Binary:
    return Binary("<=", to_expression(size), Constant(limit))
