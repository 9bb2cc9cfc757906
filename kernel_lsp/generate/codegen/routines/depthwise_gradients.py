"""Gradients of a depthwise convolution, each of whose channels meets its own taps, in one kernel.

A block has a plane, a channel of an image, or a strip of its rows. It copies the input to shared memory with its zeros,
computes the gradient of the convolution's result there, and recomputes the convolution where that reads its result.
Both the gradient of the input and the sums for the weights and the bias come from what is on chip: the input and what
the incoming gradient is made of are read once, and the gradient of the input is written once.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Binary, Constant, Expression
from kernel_lsp.core.expression_rules import binary, call
from kernel_lsp.generate.codegen.kernel import KernelWriter, RenderedKernel, rendered
from kernel_lsp.generate.codegen.operators import ATOM, Text, loaded, stored
from kernel_lsp.generate.codegen.routines.depthwise_planes import CONVOLVED, PlaneShape
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, product
from kernel_lsp.generate.ir.scalar import Access, Scalar, accesses_outside_loops, indirect_scalars, nodes
from kernel_lsp.generate.ir.sizes import to_expression
from kernel_lsp.generate.ir.tensor import Routine, Tensor
from kernel_lsp.generate.ir.workload import Workload

_NAMES = "image before of_warp strip n c y0 y1 lo hi own_end share base image_w before_w plane x0 x1 n_runs"
_MORE_NAMES = "i j k t z run col first h at a w b sums convolved g warp lane total value d out y row"
_CONSTANTS = "KH KW TAPS ROWS THREADS STRIPS"
LOCAL_NAMES = tuple(f"{_NAMES} {_MORE_NAMES} {_CONSTANTS}".split())
MAX_LOADS = 32
"""Maximum elements that a thread loads at once."""


@dataclass(frozen=True)
class PlaneSchedule:
    """`rows` of one column per thread and turn."""

    threads: int
    rows: int


def loaded_first(body: Scalar) -> list[Access]:
    """Return the reads of a row's elements that need nothing else: a thread loads those of all its rows at once."""
    return [
        access
        for access in accesses_outside_loops(body)
        if access.mask is None
        and access.variables
        and len(access.index) == 4
        and not any(True for index in access.index for _ in indirect_scalars(index))
    ]


@dataclass(frozen=True)
class DepthwiseRenderer:
    """Renders the kernel that writes `grad_input` (N, C, height, width) and `parts` (N, strips, C, sums). Operands are
    the input, the weight, the bias where the convolution is recomputed with one, and what `routine.body`, the gradient
    of an element of the result over `variables`, reads."""

    kernel: KernelWriter
    grad_input: Tensor
    parts: Tensor
    routine: Routine
    shape: PlaneShape
    schedule: PlaneSchedule
    workload: Workload

    @property
    def strips(self) -> int:
        return self.routine.settings[0]

    @property
    def body(self) -> Scalar:
        assert self.routine.body is not None
        return self.routine.body

    def render(self) -> RenderedKernel:
        kernel, shape = self.kernel, self.shape
        scope = Scope(kernel)
        self._declare(scope)
        self._load(scope)
        self._of_result(scope)
        self._write_sums(scope)
        self._of_input(scope)
        unit = "plane" if self.strips == 1 else f"{self.strips}th of a plane"
        comment = (
            f"One block of {self.schedule.threads} threads per {unit}: the gradient of the convolution's result in "
            "shared memory, from it that of the input, and the block's part of the sums for the weights."
        )
        n_blocks = to_expression(product(self.parts.shape[:3]))
        static = shape.static_bytes(self.strips, self.workload)
        grid, block = [n_blocks], (self.schedule.threads,)
        return rendered(kernel, comment, scope.lines, grid, block, self._conditions(), static_bytes=static)

    def _conditions(self) -> list[Expression]:
        """Return the contract: rows fit the arrays in shared memory."""
        shape, halo = self.shape, self.shape.kernel_h - 1
        n_image, n_before = shape.capacities(self.strips, self.workload)
        if (shape.height * shape.width).constant is not None:
            return []
        share = call("ceil_div", to_expression(shape.height), Constant(self.strips))
        of_image = to_expression(shape.height + 2 * shape.pad_h)
        if self.strips > 1:
            of_image = binary("+", share, Constant(2 * halo))
        of_before = to_expression(shape.height + halo) if self.strips == 1 else binary("+", share, Constant(halo))
        widths = (shape.width + 2 * shape.pad_w, shape.width + (shape.kernel_w - 1))
        return [
            Binary("<=", binary("*", rows, to_expression(width)), Constant(limit))
            for rows, width, limit in zip((of_image, of_before), widths, (n_image, n_before), strict=True)
        ]

    def _size(self, name: str, size: Index) -> str:
        return self.kernel.size(name, size)

    def _declare(self, scope: Scope) -> None:
        kernel, shape, strips = self.kernel, self.shape, self.strips
        n_image, n_before = shape.capacities(strips, self.workload)
        height, width = self._size("height", shape.height), self._size("width", shape.width)
        out_height = self._size("out_height", shape.out_height)
        channels = self._size("channels", self.parts.shape[2])
        weight, index = kernel.pointer(self.routine.operands[1]), kernel.index_type
        warps = self.schedule.threads // 32
        text = f"""
        constexpr int KH = {shape.kernel_h}, KW = {shape.kernel_w}, TAPS = KH * KW;
        constexpr int ROWS = {self.schedule.rows}, THREADS = {self.schedule.threads};
        __shared__ __align__(16) float image[{n_image}];  // the input, in zeros
        __shared__ __align__(16) float before[{n_before}];  // the gradient of the result, in zeros
        __shared__ float of_warp[{warps}][TAPS + 1];
        """
        if strips == 1:
            text += f"""
            const int c = blockIdx.x % {channels};
            const {index} n = blockIdx.x / {channels};
            const int lo = 0, hi = {out_height};
            const int base = {shape.pad_h} - (KH - 1), y0 = 0, y1 = {height};
            """
        else:
            text += f"""
            constexpr int STRIPS = {strips};
            const int strip = blockIdx.x % STRIPS, c = blockIdx.x / STRIPS % {channels};
            const {index} n = blockIdx.x / STRIPS / {channels};
            const int share = ({height} + STRIPS - 1) / STRIPS;
            const int y0 = min(strip * share, (int){height}), y1 = min(y0 + share, (int){height});
            const int base = y0 + {shape.pad_h} - (KH - 1), lo = max(0, base);
            const int own_end = strip == STRIPS - 1 ? {out_height} : min((int){out_height}, y1);
            const int hi = strip == STRIPS - 1 ? {out_height} : min((int){out_height}, y1 + {shape.pad_h});
            """
        text += f"""
        const int image_w = {width} + {2 * shape.pad_w}, before_w = {width} + KW - 1;
        const {index} plane = (n * {channels} + c) * {height} * {width};
        float w[TAPS], sums[TAPS + 1] = {{}};
        #pragma unroll
        for (int t = 0; t < TAPS; ++t) w[t] = {loaded(f"{weight}[c * TAPS + t]", self.routine.operands[1].dtype).text};
        """
        self._lines(scope, text)

    def _lines(self, scope: Scope, text: str) -> None:
        for line in _dedented(text):
            scope.line(line)

    def _load(self, scope: Scope) -> None:
        """Copy the input to shared memory, all rows of a thread at once, into zeros."""
        shape = self.shape
        source = self.routine.operands[0]
        height, width = self._size("height", shape.height), self._size("width", shape.width)
        value = loaded(f"{self.kernel.pointer(source)}[plane + h * {width} + col]", source.dtype).text
        n_image, n_before = shape.capacities(self.strips, self.workload)
        self.kernel.use("packs")
        text = f"""
        for (int i = threadIdx.x; i < {n_image // 4}; i += THREADS) packs<4>(image)[i] = {{}};
        for (int i = threadIdx.x; i < {n_before // 4}; i += THREADS) packs<4>(before)[i] = {{}};
        __syncthreads();
        const int x0 = max(lo - {shape.pad_h}, 0), x1 = min(hi + {shape.kernel_h - 1 - shape.pad_h}, (int){height});
        for (int i = threadIdx.x; i < (x1 - x0 + ROWS - 1) / ROWS * {width}; i += THREADS) {{
            const int run = i / {width}, col = i - run * {width};
            float value[ROWS];
            #pragma unroll
            for (int j = 0; j < ROWS; ++j) {{
                const int h = min(x0 + run * ROWS + j, x1 - 1);
                value[j] = {value};
            }}
            #pragma unroll
            for (int j = 0; j < ROWS; ++j) {{
                const int y = x0 + run * ROWS + j;
                if (y < x1) image[(y - lo + {shape.pad_h}) * image_w + col + {shape.pad_w}] = value[j];
            }}
        }}
        __syncthreads();
        """
        self._lines(scope, text)

    def _of_result(self, scope: Scope) -> None:
        """Compute the gradient of the result, column by column, and add up its products with the input."""
        shape, body = self.shape, self.body
        out_width = self._size("out_width", shape.out_width)
        n, c, h, w = self.routine.variables
        scope.define(n, "n")
        scope.define(c, "c")
        scope.hoist([body], (h, w))
        if len(self.routine.operands) > 2 and self._recomputes() and self.routine.settings[3]:
            bias = self.routine.operands[2]
            scope.line(f"const float b = {loaded(f'{self.kernel.pointer(bias)}[c]', bias.dtype).text};")
        scope.line("const int n_runs = (hi - lo + ROWS - 1) / ROWS;")
        with scope.open(f"for (int i = threadIdx.x; i < n_runs * {out_width}; i += THREADS)") as items:
            items.line(f"const int run = i / {out_width}, col = i - run * {out_width}, first = lo + run * ROWS;")
            items.define(w, "col")
            arrays = self._load_rows(items, h)
            self._lines(items, self._first_rows("a", "image + (first - lo) * image_w + col", "image_w"))
            with items.unroll("for (int j = 0; j < ROWS; ++j)") as rows:
                rows.line("const int h = min(first + j, hi - 1);")
                rows.define(h, "h")
                rows.line("#pragma unroll")
                rows.line(
                    "for (int z = 0; z < KW; ++z) a[(j + KH - 1) % KH][z] = "
                    "image[(h - lo + KH - 1) * image_w + col + z];"
                )
                self._convolve(rows)
                for access, name in arrays:
                    rows.bind(access, f"{name}[j]")
                rows.line(f"const float g = {rows.value(body).text};")
                self._add_up(rows)

    def _recomputes(self) -> bool:
        return any(node == CONVOLVED for node in nodes(self.body))

    def _load_rows(self, items: Scope, h: Variable) -> list[tuple[Access, str]]:
        """Load what the rows of a thread read, into an array for each read; return these."""
        found = [(access, items.names.take("incoming")) for access in self._loaded(h)]
        for _, name in found:
            items.line(f"float {name}[ROWS];")
        if found:
            with items.unroll("for (int j = 0; j < ROWS; ++j)") as rows:
                rows.line("const int h = min(first + j, hi - 1);")
                rows.define(h, "h")
                for access, name in found:
                    rows.line(f"{name}[j] = {rows.value(access).text};")
        return found

    def _loaded(self, h: Variable) -> list[Access]:
        found = [access for access in loaded_first(self.body) if h in access.variables and access.dtype.is_floating]
        return found if len(found) * self.schedule.rows <= MAX_LOADS else []

    def _first_rows(self, array: str, start: str, pitch: str) -> str:
        return f"""
        float {array}[KH][KW];
        #pragma unroll
        for (int k = 0; k < KH - 1; ++k) {{
            #pragma unroll
            for (int z = 0; z < KW; ++z) {array}[k][z] = ({start})[k * {pitch} + z];
        }}
        """

    def _convolve(self, rows: Scope) -> None:
        if not self._recomputes():
            return
        has_bias = bool(self.routine.settings[3])
        self._lines(
            rows,
            f"""
            float convolved = 0.0f;
            #pragma unroll
            for (int t = 0; t < TAPS; ++t) convolved += a[(j + t / KW) % KH][t % KW] * w[t];
            {"convolved += b;" if has_bias else ""}
            """,
        )
        rows.bind(CONVOLVED, Text("convolved", ATOM))

    def _add_up(self, rows: Scope) -> None:
        border = self.shape.kernel_w - 1 - self.shape.pad_w
        is_own = "" if self.strips == 1 else "if (h >= y0 && h < own_end) "
        text = f"""
        if (first + j < hi) {{
            before[(h - base) * before_w + col + {border}] = g;
            {is_own}{{
                #pragma unroll
                for (int t = 0; t < TAPS; ++t) sums[t] += g * a[(j + t / KW) % KH][t % KW];
                sums[TAPS] += g;
            }}
        }}
        """
        self._lines(rows, text)

    def _write_sums(self, scope: Scope) -> None:
        target = self.kernel.target(self.parts)
        warps = self.schedule.threads // 32
        n_sums = self.parts.shape[3].constant
        channels = self._size("channels", self.parts.shape[2])
        place = "n" if self.strips == 1 else "(n * STRIPS + strip)"
        text = f"""
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        #pragma unroll
        for (int t = 0; t < {n_sums}; ++t) {{
            const float total = {self.kernel.use("warp_sum", DType.F32)}<32>(sums[t]);
            if (lane == 0) of_warp[warp][t] = total;
        }}
        __syncthreads();
        for (int i = threadIdx.x; i < {n_sums}; i += THREADS) {{
            float total = of_warp[0][i];
            #pragma unroll
            for (int k = 1; k < {warps}; ++k) total += of_warp[k][i];
            {target}[({place} * {channels} + c) * {n_sums} + i] = total;
        }}
        """
        self._lines(scope, text)

    def _of_input(self, scope: Scope) -> None:
        """Write the gradient of the input, column by column."""
        shape = self.shape
        width, target = self._size("width", shape.width), self.kernel.target(self.grad_input)
        value = stored(Text("value", ATOM), DType.F32, self.grad_input.dtype)
        text = f"""
        for (int i = threadIdx.x; i < (y1 - y0 + ROWS - 1) / ROWS * {width}; i += THREADS) {{
            const int run = i / {width}, col = i - run * {width}, first = run * ROWS;
        {self._first_rows("d", "before + first * before_w + col", "before_w")}
            #pragma unroll
            for (int j = 0; j < ROWS; ++j) {{
                const int row = min(first + j, y1 - y0 - 1);
                #pragma unroll
                for (int z = 0; z < KW; ++z) d[(j + KH - 1) % KH][z] = before[(row + KH - 1) * before_w + col + z];
                float value = 0.0f;
                #pragma unroll
                for (int t = 0; t < TAPS; ++t) value += d[(j + KH - 1 - t / KW) % KH][KW - 1 - t % KW] * w[t];
                if (first + j < y1 - y0) {target}[plane + (y0 + row) * {width} + col] = {value};
            }}
        }}
        """
        self._lines(scope, text)


def _dedented(text: str) -> list[str]:
    """Return the lines that are not empty, each at its depth of braces."""
    found: list[str] = []
    depth = 0
    for line in text.split("\n"):
        line = line.strip()
        if not line:
            continue
        closes = line.startswith("}")
        found.append("    " * (depth - closes) + line)
        depth += line.count("{") - line.count("}")
    return found
