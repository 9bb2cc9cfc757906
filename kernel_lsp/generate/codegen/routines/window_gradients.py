"""Gradients of a convolution of few channels, a ReLU and a pooling of 2 x 2 windows side by side, in one kernel.

A block has an image and some output channels. It recomputes the convolution of each window, so that nothing but the
input and the incoming gradient is read, and keeps the gradient before the pooling in shared memory, where both the
gradient of the image and those of the weights need it. Other blocks have other channels of the image, and other images:
each writes its part of the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Binary, Constant, Expression
from kernel_lsp.core.expression_rules import binary
from kernel_lsp.generate.codegen.kernel import KernelWriter, RenderedKernel, divisible, rendered
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.sizes import to_expression
from kernel_lsp.generate.ir.tensor import Routine, Tensor
from kernel_lsp.generate.ir.workload import Workload

_NAMES = (
    "image before taps incoming of_warp n n_groups group c0 record n_windows n_pixels n_image image_w before_w warp"
)
_MORE_NAMES = (
    "lane c b w sums sum h v a run best at p t value wins g place own total first k i ci y z inside d w_of out tap"
)
_FLAGS = "is_infinite has_infinite_taps"
_CONSTANTS = "CHANNELS INPUTS KH KW TAPS TAP_STRIDE SHARE"
LOCAL_NAMES = tuple(f"{_NAMES} {_MORE_NAMES} {_FLAGS} {_CONSTANTS}".split())
KIND = "window_gradients"
THREADS = 256
WARPS = THREADS // 32
MAX_STATIC_BYTES = 48 * 1024
MAX_TAPS = 32
"""Maximum weights of an output channel: a thread keeps them and their gradients in registers."""
CHANNELS = (8, 4, 2, 1)
"""Output channels of a block: its warps share them evenly."""


@dataclass(frozen=True)
class WindowShape:
    """Sizes of one convolution with pooling. `height` and `width` are those of the input, `pad_h` and `pad_w` zeros on
    each side of it. Tensors are (N, C, height, width)."""

    n_inputs: int
    kernel_h: int
    kernel_w: int
    pad_h: int
    pad_w: int
    height: Index
    width: Index

    @property
    def n_taps(self) -> int:
        """Return the weights of an output channel."""
        return self.n_inputs * self.kernel_h * self.kernel_w

    @property
    def padded(self) -> tuple[Index, Index]:
        """Return the height and width of the input with its zeros."""
        return self.height + 2 * self.pad_h, self.width + 2 * self.pad_w

    @property
    def convolved(self) -> tuple[Index, Index]:
        """Return the height and width before the pooling."""
        high, wide = self.padded
        return high - (self.kernel_h - 1), wide - (self.kernel_w - 1)

    @property
    def bordered(self) -> tuple[Index, Index]:
        """Return the height and width before the pooling with a border of zeros, from which every pixel reads as many
        places. Rows begin at even places."""
        high, wide = self.convolved
        return high + 2 * (self.kernel_h - 1), wide + 2 * self.border_w

    @property
    def border_w(self) -> int:
        """Return the zeros on each side of a row before the pooling."""
        return self.kernel_w - 1 + self.pad_w % 2

    def record(self, channels: int, *, has_image: bool) -> Index:
        """Return the elements that a block writes: the image's part, then for each channel the sums of its taps and of
        its bias, and as many as fill a pack of four."""
        image = self.height * self.width * self.n_inputs if has_image else as_index(0)
        return image + -(-channels * (self.n_taps + 1) // 4) * 4

    def static_bytes(self, channels: int, workload: Workload) -> int:
        """Return the shared memory of a block at the captured sizes."""
        n_image, n_before = self.capacities(workload)
        n_floats = self.n_inputs * n_image + channels * (n_before + self.n_inputs * self.stride_of_taps)
        return 4 * (n_floats + WARPS * (self.n_taps + 1))

    def capacities(self, workload: Workload) -> tuple[int, int]:
        """Return the captured elements of an input channel with its zeros, and of one before the pooling with its
        border."""
        image, before = (workload.size(high * wide) for high, wide in (self.padded, self.bordered))
        return image, before

    @property
    def stride_of_taps(self) -> int:
        """Return the elements between the taps of input channels in shared memory, whole packs of four."""
        return -(-self.kernel_h * self.kernel_w // 4) * 4


def shape_of(source: Tensor, weight: Tensor, padding: Sequence[int]) -> WindowShape | None:
    """Return the sizes; None where a template for odd kernels of few taps does not fit them."""
    n_inputs, high, wide = (size.constant for size in weight.shape[1:])
    if n_inputs is None or high is None or wide is None:
        return None
    fits = high % 2 and wide % 2 and n_inputs * high * wide <= MAX_TAPS
    fits = fits and padding[0] < max(high, 2) and padding[1] < max(wide, 2)
    return WindowShape(n_inputs, high, wide, padding[0], padding[1], *source.shape[2:]) if fits else None


def channels_of(shape: WindowShape, n_outputs: Index, workload: Workload) -> list[int]:
    """Return the numbers of output channels that a block may have, the default first; none where windows leave out some
    of what is convolved at the captured sizes, which the contract excludes."""
    if any(workload.size(size) % 2 for size in shape.convolved):
        return []
    return [
        channels
        for channels in CHANNELS
        if workload.size(n_outputs) % channels == 0 and shape.static_bytes(channels, workload) <= MAX_STATIC_BYTES
    ]


def render_window_gradients(
    kernel: KernelWriter, parts: Tensor, routine: Routine, workload: Workload
) -> RenderedKernel:
    """Render the kernel that writes `parts` (images, groups of channels, elements of a record)."""
    channels, has_relu, has_image, *padding = routine.settings
    shape = shape_of(routine.operands[1], routine.operands[2], padding)
    assert shape is not None, "the lowering records no other"
    lines = [*_declared(kernel, parts, routine, shape, workload), *_of_windows(kernel, routine, shape, bool(has_relu))]
    lines += _of_weights(kernel, parts, bool(has_image))
    if has_image:
        lines += [*_of_image_at_infinite_taps(kernel, parts, routine, shape), *_of_image(kernel, parts, shape)]
    comment = (
        f"One block per image and {channels} channels: recomputes the convolution of each window of the pooling, "
        "which tells where its gradient goes, and writes the block's part of the sums."
    )
    grid = [binary("*", to_expression(parts.shape[0]), to_expression(parts.shape[1]))]
    static = shape.static_bytes(channels, workload)
    body = [line for line in lines if line.strip()]
    conditions = [*divisible(routine.operands[2].shape[0], channels), *_conditions(shape, workload)]
    return rendered(kernel, comment, body, grid, (THREADS,), conditions, static_bytes=static)


def _conditions(shape: WindowShape, workload: Workload) -> list[Expression]:
    """Return the contract: windows cover all that is convolved, and the planes fit the arrays in shared memory."""
    n_image, n_before = shape.capacities(workload)
    found = [condition for size in shape.convolved for condition in divisible(size, 2)]
    for (high, wide), n_elements in ((shape.padded, n_image), (shape.bordered, n_before)):
        if (high * wide).constant is None:
            found.append(Binary("<=", to_expression(high * wide), Constant(n_elements)))
    return found


def _declared(
    kernel: KernelWriter, parts: Tensor, routine: Routine, shape: WindowShape, workload: Workload
) -> list[str]:
    """Return the declarations, and the loads of all that a block reads, which are in flight at once."""
    channels, _, has_image = routine.settings[:3]
    n_image, n_before = shape.capacities(workload)
    source, weight = map(kernel.pointer, routine.operands[1:3])
    n_inputs, n_taps, index = shape.n_inputs, shape.n_taps, kernel.index_type
    height, width = kernel.size("height", shape.height), kernel.size("width", shape.width)
    pooled = routine.operands[0].shape
    n_high, n_wide = kernel.size("n_high", pooled[2]), kernel.size("n_wide", pooled[3])
    n_zeros_w, n_zeros_h = (f" + {2 * pad}" if pad else "" for pad in (shape.pad_w, shape.pad_h))
    n_tail = -(-channels * (n_taps + 1) // 4) * 4
    text = f"""
    constexpr int CHANNELS = {channels}, INPUTS = {n_inputs};
    constexpr int KH = {shape.kernel_h}, KW = {shape.kernel_w}, TAPS = {n_taps}, TAP_STRIDE = {shape.stride_of_taps};
    constexpr int SHARE = {WARPS // channels};  // warps of a channel
    __shared__ __align__(16) float image[INPUTS][{n_image}];
    __shared__ __align__(16) float before[CHANNELS][{n_before}];  // gradients before the pooling, in zeros
    __shared__ __align__(16) float taps[CHANNELS][INPUTS * TAP_STRIDE];
    __shared__ float of_warp[{WARPS}][TAPS + 1];
    const int n_groups = {kernel.size("n_groups", parts.shape[1])};
    const int group = blockIdx.x % n_groups, c0 = group * CHANNELS;
    const {index} n = blockIdx.x / n_groups;
    const int n_windows = {n_high} * {n_wide}, n_pixels = {height} * {width};
    const int image_w = {width}{n_zeros_w}, n_image = {f"({height}{n_zeros_h})" if n_zeros_h else height} * image_w;
    const int before_w = {n_wide} * 2 + {2 * shape.border_w};
    const {index} record = (n * n_groups + group) * ({"INPUTS * n_pixels + " if has_image else ""}{n_tail});
    for (int ci = 0; ci < INPUTS; ++ci) {{
        #pragma unroll 4
        for (int i = threadIdx.x; i < n_image; i += {THREADS}) {{
            {_pixel(shape, source, height, width)}
        }}
    }}
    {"bool is_infinite = false;" if has_image else ""}
    for (int i = threadIdx.x; i < CHANNELS * TAPS; i += {THREADS}) {{
        const int t = i % TAPS;
        const float tap = {weight}[c0 * TAPS + i];
        taps[i / TAPS][t / (KH * KW) * TAP_STRIDE + t % (KH * KW)] = tap;
        {"is_infinite |= tap - tap != 0.0f;" if has_image else ""}
    }}
    for (int i = threadIdx.x; i < CHANNELS * {n_before // 4}; i += {THREADS}) packs<4>(before[0])[i] = {{}};
"""
    return text.split("\n")


def _pixel(shape: WindowShape, source: str, height: str, width: str) -> str:
    """Return the statements that load an element of the image with its zeros."""
    first = "(n * INPUTS + ci) * n_pixels"
    if not shape.pad_h and not shape.pad_w:
        return f"image[ci][i] = {source}[{first} + i];"
    return f"""const int y = i / image_w - {shape.pad_h}, z = i % image_w - {shape.pad_w};
            const bool inside = y >= 0 && y < {height} && z >= 0 && z < {width};
            image[ci][i] = inside ? {source}[{first} + y * {width} + z] : 0.0f;"""


def _of_windows(kernel: KernelWriter, routine: Routine, shape: WindowShape, has_relu: bool) -> list[str]:
    """Return the loop over the windows of a channel: the place of its largest element has its gradient. The others
    have zeros, which count where the input is not finite."""
    bias = f"{kernel.pointer(routine.operands[3])}[c0 + c]" if len(routine.operands) > 3 else "0.0f"
    convolved = f"{kernel.use('relu')}(sum + b)" if has_relu else "sum + b"
    n_wide, grad = kernel.size("n_wide", routine.operands[0].shape[3]), kernel.pointer(routine.operands[0])
    has_image = routine.settings[2]
    text = f"""
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, c = warp / SHARE;
    const float b = {bias};
    float w[TAPS], sums[TAPS + 1] = {{}};
    {"const bool has_infinite_taps = __syncthreads_or(is_infinite);" if has_image else "__syncthreads();"}
    #pragma unroll
    for (int t = 0; t < TAPS; ++t) w[t] = taps[c][t / (KH * KW) * TAP_STRIDE + t % (KH * KW)];
    for (int i = warp % SHARE * 32 + lane; i < n_windows; i += SHARE * 32) {{
        const float incoming = {grad}[((n * n_groups + group) * CHANNELS + c) * n_windows + i];
        const int h = i / {n_wide}, v = i % {n_wide};
        float a[INPUTS][KH + 1][KW + 1];
        #pragma unroll
        for (int ci = 0; ci < INPUTS; ++ci) {{
            #pragma unroll
            for (int y = 0; y < KH + 1; ++y) {{
                #pragma unroll
                for (int z = 0; z < KW + 1; z += 2) {{
                    const Pack<float, 2> run = *packs<2>(&image[ci][(h * 2 + y) * image_w + v * 2 + z]);
                    a[ci][y][z] = run.item[0];
                    a[ci][y][z + 1] = run.item[1];
                }}
            }}
        }}
        float best = 0.0f;
        int at = 0;
        #pragma unroll
        for (int p = 0; p < 4; ++p) {{
            float sum = 0.0f;
            #pragma unroll
            for (int t = 0; t < TAPS; ++t) {{
                sum += a[t / (KH * KW)][p / 2 + t / KW % KH][p % 2 + t % KW] * w[t];
            }}
            const float value = {convolved};
            const bool wins = p == 0 || value > best || value != value;
            best = wins ? value : best;
            at = wins ? p : at;
        }}
        const float g = {"best <= 0.0f ? 0.0f : " if has_relu else ""}incoming;
        float* place = &before[c][(h * 2 + KH - 1) * before_w + v * 2 + {shape.border_w}];
        #pragma unroll
        for (int p = 0; p < 4; ++p) {{
            const float own = at == p ? g : 0.0f;
            place[p / 2 * before_w + p % 2] = own;
            #pragma unroll
            for (int t = 0; t < TAPS; ++t) {{
                sums[t] += own * a[t / (KH * KW)][p / 2 + t / KW % KH][p % 2 + t % KW];
            }}
        }}
        sums[TAPS] += g;
    }}
"""
    kernel.use("packs")
    return text.split("\n")


def _of_weights(kernel: KernelWriter, parts: Tensor, has_image: bool) -> list[str]:
    """Return the sums of the block for each weight and bias, behind the image's part of the record."""
    target = kernel.target(parts)
    text = f"""
    #pragma unroll
    for (int t = 0; t < TAPS + 1; ++t) {{
        const float total = {kernel.use("warp_sum", DType.F32)}<32>(sums[t]);
        if (lane == 0) of_warp[warp][t] = total;
    }}
    __syncthreads();
    for (int i = threadIdx.x; i < CHANNELS * (TAPS + 1); i += {THREADS}) {{
        const int first = i / (TAPS + 1) * SHARE, t = i % (TAPS + 1);
        float total = of_warp[first][t];
        #pragma unroll
        for (int k = 1; k < SHARE; ++k) total += of_warp[first + k][t];
        {target}[record + {"INPUTS * n_pixels + " if has_image else ""}i] = total;
    }}
"""
    return text.split("\n")


def _of_image_at_infinite_taps(kernel: KernelWriter, parts: Tensor, routine: Routine, shape: WindowShape) -> list[str]:
    """Return the loop over pixels where a weight is infinite or NaN: zeros around the gradient must not meet it."""
    target, width = kernel.target(parts), kernel.size("width", shape.width)
    pooled = routine.operands[0].shape
    n_high, n_wide = kernel.size("n_high", pooled[2]), kernel.size("n_wide", pooled[3])
    text = f"""
    if (has_infinite_taps) {{
        for (int i = threadIdx.x; i < INPUTS * n_pixels; i += {THREADS}) {{
            const int ci = i / n_pixels, h = i % n_pixels / {width} + {shape.pad_h}, v = i % {width} + {shape.pad_w};
            float sum = 0.0f;
            #pragma unroll 1
            for (int k = 0; k < CHANNELS * KH * KW; ++k) {{
                const int c = k / (KH * KW), t = k % (KH * KW), y = h - t / KW, z = v - t % KW;
                if (y >= 0 && y < {n_high} * 2 && z >= 0 && z < {n_wide} * 2) {{
                    const float d = before[c][(y + KH - 1) * before_w + z + {shape.border_w}];
                    sum += d * taps[c][ci * TAP_STRIDE + t];
                }}
            }}
            {target}[record + i] = sum;
        }}
        return;
    }}
"""
    return text.split("\n")


def _of_image(kernel: KernelWriter, parts: Tensor, shape: WindowShape) -> list[str]:
    """Return the loop over 2 x 2 pixels, which read the same places before the pooling."""
    target, width = kernel.target(parts), kernel.size("width", shape.width)
    down, right = (f" + {n}" if n else "" for n in (shape.pad_h, shape.pad_w + shape.pad_w % 2))
    text = f"""
    for (int i = threadIdx.x; i < n_pixels / 4; i += {THREADS}) {{
        const int h = i / ({width} / 2), v = i % ({width} / 2);
        float out[INPUTS][2][2] = {{}};
        #pragma unroll
        for (int k = 0; k < CHANNELS; ++k) {{
            float d[KH + 1][KW + 1];
            #pragma unroll
            for (int y = 0; y < KH + 1; ++y) {{
                #pragma unroll
                for (int z = 0; z < KW + 1; z += 2) {{
                    const int at = (h * 2 + y{down}) * before_w + v * 2 + z{right};
                    const Pack<float, 2> run = *packs<2>(&before[k][at]);
                    d[y][z] = run.item[0];
                    d[y][z + 1] = run.item[1];
                }}
            }}
            #pragma unroll
            for (int ci = 0; ci < INPUTS; ++ci) {{
                float w_of[TAP_STRIDE];
                #pragma unroll
                for (int t = 0; t < TAP_STRIDE; t += 4) *packs<4>(&w_of[t]) = *packs<4>(&taps[k][ci * TAP_STRIDE + t]);
                #pragma unroll
                for (int p = 0; p < 4; ++p) {{
                    #pragma unroll
                    for (int t = 0; t < KH * KW; ++t) {{
                        out[ci][p / 2][p % 2] += d[p / 2 + KH - 1 - t / KW][p % 2 + KW - 1 - t % KW] * w_of[t];
                    }}
                }}
            }}
        }}
        #pragma unroll
        for (int ci = 0; ci < INPUTS; ++ci) {{
            #pragma unroll
            for (int y = 0; y < 2; ++y) {{
                #pragma unroll
                for (int z = 0; z < 2; ++z) {{
                    {target}[record + ci * n_pixels + (h * 2 + y) * {width} + v * 2 + z] = out[ci][y][z];
                }}
            }}
        }}
    }}
"""
    return text.split("\n")
