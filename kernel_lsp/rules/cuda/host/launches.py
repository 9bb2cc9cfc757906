"""KL230 to KL239: launches against hardware limits, and the launch plan against its kernels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from kernel_lsp.core.expression import Expression, free_names
from kernel_lsp.core.plan import (
    Fill,
    Launch,
    LibraryStep,
    Operation,
    ScalarParameter,
    Step,
    argument_expressions,
    launch_numbers,
)
from kernel_lsp.plan.codes import PlanCode
from kernel_lsp.rules.cuda.declare import ERROR, HINT, WARNING, declare
from kernel_lsp.rules.cuda.function_summary import Block, CheckedPlan, FileFacts, LaunchFacts, Reach
from kernel_lsp.rules.cuda.numbers.index_products import IndexProduct
from kernel_lsp.rules.rule import Hit

MAX_THREADS_PER_BLOCK = 1024
MAX_THREADS_Z = 64
MAX_STATIC_SHARED_BYTES = 48 * 1024
MAX_SHARED_BYTES = 227 * 1024
"""Maximum shared memory per block in bytes, on compute capability 9.0, the highest of all (CUDA C++ Programming
Guide, technical specifications)."""
WARP = 32
_DISAGREEMENTS = frozenset(
    (
        PlanCode.UNKNOWN_KERNEL,
        PlanCode.TEMPLATE_COUNT,
        PlanCode.ARGUMENT_COUNT,
        PlanCode.ARGUMENT_KIND,
        PlanCode.ARGUMENT_TYPE,
        PlanCode.UNKNOWN_TYPE,
        PlanCode.INPUT_WRITTEN,
        PlanCode.RESULT_NOT_WRITTEN,
    )
)


@declare(
    "KL230",
    "block-too-large",
    ERROR,
    summary="A block of more than 1024 threads",
    why="No GPU takes more than 1024 threads per block, or more than 64 along z. The launch fails.",
    bad="""
    // kernel-lsp: 1
    // op: zero(x: f32[N]) -> (out: f32[N])
    // launch: zero_all<<<ceil_div(N, 2048), 2048>>>(out, N)

    __global__ void zero_all(float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = 0.0f;
    }
    """,
    good="""
    __global__ void zero_all(float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = 0.0f;
    }

    cudaError_t run(float* out, int n) {
        dim3 block(256);
        zero_all<<<(n + 255) / 256, block>>>(out, n);
        return cudaGetLastError();
    }
    """,
)
def block_too_large(file: FileFacts) -> Iterator[Hit]:
    for launch in file.launches:
        block = launch.block
        if block is not None and (_product(block) > MAX_THREADS_PER_BLOCK or block[2] > MAX_THREADS_Z):
            size = " x ".join(map(str, block)) if block[1:] != (1, 1) else str(block[0])
            yield Hit(launch.range, f"a block of {size} threads: the limits are 1024, and 64 along z")
    for kernel in file.kernels:
        if kernel.launch_bound > MAX_THREADS_PER_BLOCK:
            message = f"`__launch_bounds__({kernel.launch_bound})`: a block has at most 1024 threads"
            yield Hit(kernel.name_range, message)


@declare(
    "KL232",
    "shared-too-large",
    ERROR,
    summary="More shared memory than a block can have",
    why="""
    Static shared memory is limited to 48 KiB: beyond, the kernel does not compile. Dynamic shared memory beyond 48 KiB
    needs `cudaFuncSetAttribute` in host code (a launch plan does it for you), and no GPU gives one block more than
    227 KiB.
    """,
    bad="""
    __global__ void big(float* __restrict__ out) {
        __shared__ float tile[128][128];
        tile[threadIdx.y][threadIdx.x] = 1.0f;
        out[threadIdx.x] = tile[threadIdx.y][threadIdx.x];
    }
    """,
    good="""
    __global__ void big(float* __restrict__ out) {
        __shared__ float tile[64][64];
        tile[threadIdx.y][threadIdx.x] = 1.0f;
        out[threadIdx.x] = tile[threadIdx.y][threadIdx.x];
    }
    """,
)
def shared_too_large(file: FileFacts) -> Iterator[Hit]:
    for function in file.functions:
        if function.static_shared_bytes > MAX_STATIC_SHARED_BYTES:
            n_bytes = function.static_shared_bytes
            yield Hit(function.shared_range, f"{n_bytes:,} bytes of static shared memory: the limit is 49,152")
    for launch in file.launches:
        limit = MAX_SHARED_BYTES
        if not launch.is_planned and not file.may_raise_limit(launch.name):
            limit = MAX_STATIC_SHARED_BYTES
        if launch.shared_bytes is not None and launch.shared_bytes > limit:
            yield Hit(launch.range, f"{launch.shared_bytes:,} bytes of shared memory: the limit is {limit:,} here")


@declare(
    "KL233",
    "dynamic-shared-unset",
    ERROR,
    summary="A kernel with dynamic shared memory is launched with too little, or without any",
    why="`extern __shared__` gets as many bytes as the launch says: an access behind them is out of bounds.",
    bad="""
    // kernel-lsp: 1
    // op: copy(x: f32[N]) -> (out: f32[N])
    // launch: copy_rows<<<N, 32>>>(x, out, N)

    __global__ void copy_rows(const float* __restrict__ x, float* __restrict__ out, int n) {
        extern __shared__ float row[];
        if (threadIdx.x == 0) row[0] = x[blockIdx.x];
        __syncthreads();
        if (blockIdx.x < n) out[blockIdx.x] = row[0];
    }
    """,
    good="""
    // kernel-lsp: 1
    // op: copy(x: f32[N]) -> (out: f32[N])
    // launch: copy_rows<<<N, 32, 4>>>(x, out, N)

    __global__ void copy_rows(const float* __restrict__ x, float* __restrict__ out, int n) {
        extern __shared__ float row[];
        if (threadIdx.x == 0) row[0] = x[blockIdx.x];
        __syncthreads();
        if (blockIdx.x < n) out[blockIdx.x] = row[0];
    }
    """,
)
def dynamic_shared_unset(file: FileFacts) -> Iterator[Hit]:
    dynamic = {kernel.key for kernel in file.kernels if kernel.has_dynamic_shared}
    for launch in file.launches:
        if launch.kernel in dynamic and launch.shared_bytes == 0:
            yield Hit(launch.range, f"`{launch.name}` uses `extern __shared__`, and this launch gives it 0 bytes")
    for kernel in file.kernels:
        launches = file.launches_of(kernel)
        is_short = kernel.short_launch is not None and kernel.short_launch < len(launches)
        if is_short and kernel.short_launch is not None and launches[kernel.short_launch].shared_bytes != 0:
            message = f"dynamic shared memory is too small: `{kernel.name}` accesses more than this launch gives it"
            yield Hit(launches[kernel.short_launch].range, message)


@declare(
    "KL238",
    "block-exceeds-array",
    ERROR,
    summary="A launch in the same file has more threads along a block than an array or a block's row has room for",
    why="""
    Each thread uses the element of its own number, plus one perhaps, and nothing guards the access: the last threads
    are beyond the end of the array, in whatever lies behind it. In a row of global memory they write the next block's.
    """,
    bad="""
    __global__ void right(const float* __restrict__ x, float* __restrict__ out) {
        __shared__ float tile[256];
        tile[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = tile[threadIdx.x + 1];
    }

    cudaError_t run(const float* x, float* out) {
        right<<<1, 256>>>(x, out);
        return cudaGetLastError();
    }
    """,
    good="""
    __global__ void right(const float* __restrict__ x, float* __restrict__ out) {
        __shared__ float tile[257];
        tile[threadIdx.x] = x[threadIdx.x];
        if (threadIdx.x == 0) tile[256] = 0.0f;
        __syncthreads();
        out[threadIdx.x] = tile[threadIdx.x + 1];
    }

    cudaError_t run(const float* x, float* out) {
        right<<<1, 256>>>(x, out);
        return cudaGetLastError();
    }
    """,
)
def block_exceeds_array(file: FileFacts) -> Iterator[Hit]:
    for kernel in file.kernels:
        for reach in kernel.reaches:
            excess = [
                (launch.block[reach.axis], limit)
                for launch in file.launches_of(kernel)
                if launch.block is not None
                if (limit := _room(launch, reach)) is not None and launch.block[reach.axis] > limit
            ]
            if excess:
                n_threads, limit = max(excess)
                message = f"index out of bounds: `{reach.text}` has room for {limit} of {n_threads} threads"
                yield Hit(reach.range, message)


@declare(
    "KL277",
    "misaligned-rows",
    ERROR,
    summary="Vectors are read from rows whose length is no multiple of a vector",
    why="""
    A row of 1002 floats is 4008 bytes, no multiple of 16: every other row begins at an address where no `float4` can
    begin, and the kernel ends with "misaligned address". Pad the rows, or read single elements where they do not fit.
    """,
    bad="""
    __global__ void copy(const float* __restrict__ x, float4* __restrict__ out, int cols) {
        const float* row = x + blockIdx.x * cols;
        if (threadIdx.x < cols / 4) out[threadIdx.x] = reinterpret_cast<const float4*>(row)[threadIdx.x];
    }

    cudaError_t run(const float* x, float4* out) {
        copy<<<8, 256>>>(x, out, 1002);
        return cudaGetLastError();
    }
    """,
    good="""
    __global__ void copy(const float* __restrict__ x, float4* __restrict__ out, int cols) {
        const float* row = x + blockIdx.x * cols;
        if (threadIdx.x < cols / 4) out[threadIdx.x] = reinterpret_cast<const float4*>(row)[threadIdx.x];
    }

    cudaError_t run(const float* x, float4* out) {
        copy<<<8, 256>>>(x, out, 1024);
        return cudaGetLastError();
    }
    """,
)
def misaligned_rows(file: FileFacts) -> Iterator[Hit]:
    for kernel in file.kernels:
        for rows in kernel.vector_rows:
            given = [each.arguments[rows.place : rows.place + 1] for each in file.launches_of(kernel)]
            lengths = [(rows.length,)] if rows.length is not None else filter(None, given)
            wrong = [length for (length,) in lengths if length is not None and length % rows.multiple]
            if wrong:
                message = (
                    f"rows of {wrong[0]} elements: no `{rows.vector}` begins at most of them, pad to {rows.multiple}"
                )
                yield Hit(rows.range, message)


@declare(
    "KL278",
    "index-overflows-in-launch",
    WARNING,
    summary="A launch has sizes whose product a 32-bit index of the kernel does not hold",
    why="""
    `row * cols` is an `int` where both are. The launch says how large they are: with 60,000 rows of 50,000 elements the
    index wraps, and the kernel accesses memory before its arrays. Widen the first factor.
    """,
    bad="""
    __global__ void zero(float* __restrict__ x, int rows, int cols) {
        int col = blockIdx.x * blockDim.x + threadIdx.x;
        for (int row = 0; row < rows; ++row) {
            if (col < cols) x[row * cols + col] = 0.0f;
        }
    }

    cudaError_t run(float* x) {
        zero<<<196, 256>>>(x, 60000, 50000);
        return cudaGetLastError();
    }
    """,
    good="""
    __global__ void zero(float* __restrict__ x, int rows, int cols) {
        int col = blockIdx.x * blockDim.x + threadIdx.x;
        for (int row = 0; row < rows; ++row) {
            if (col < cols) x[static_cast<size_t>(row) * cols + col] = 0.0f;
        }
    }

    cudaError_t run(float* x) {
        zero<<<196, 256>>>(x, 60000, 50000);
        return cudaGetLastError();
    }
    """,
)
def index_overflows_in_launch(file: FileFacts) -> Iterator[Hit]:
    n_definitions = Counter(kernel.key for kernel in file.kernels)
    for kernel in file.kernels:
        is_known = kernel.products and n_definitions[kernel.key] == 1
        launches = file.launches_of(kernel) if is_known else []
        for product in kernel.products:
            reached = (_reached(launch, product) for launch in launches)
            largest = max((each for each in reached if each is not None), default=0)
            if largest > product.limit:
                yield Hit(product.range, f"32-bit overflow: `{product.text}` reaches {largest:,} in a launch")


def _reached(launch: LaunchFacts, product: IndexProduct) -> int | None:
    """Return how large a product becomes in a launch; None for unknown arguments or blocks."""
    blocks = (None, None, None) if launch.grid is None else launch.grid
    given = [launch.arguments[place] if place < len(launch.arguments) else None for place in product.places]
    sizes = [*given, *(blocks[axis] for axis in product.axes)]
    known = [each for each in sizes if each is not None]
    return product.factor * math.prod(known) if len(known) == len(sizes) else None


def _room(launch: LaunchFacts, reach: Reach) -> int | None:
    """Return the threads that an array has room for in a launch; None for an unknown argument."""
    values, place = launch.template, reach.template_place
    if reach.argument_place is not None:
        values, place = launch.arguments, reach.argument_place
    if place is None:
        return reach.limit
    value = values[place] if place < len(values) else None
    return None if value is None else value + reach.limit


@declare(
    "KL235",
    "plan-error",
    ERROR,
    summary="The launch plan does not parse, or does not make sense",
    why="""
    The comment block at the top is the only host code that the kernel has. `docs/kernel-format.md` describes it; the
    message is that of the plan's own parser.
    """,
    bad="""
    // kernel-lsp: 1
    // op: zero(x: f32[N]) -> (out: f23[N])
    // launch: zero_all<<<N, 32>>>(out)

    __global__ void zero_all(float* __restrict__ out) {
        if (threadIdx.x == 0) out[blockIdx.x] = 0.0f;
    }
    """,
    good="""
    // kernel-lsp: 1
    // op: zero(x: f32[N]) -> (out: f32[N])
    // launch: zero_all<<<N, 32>>>(out)

    __global__ void zero_all(float* __restrict__ out) {
        if (threadIdx.x == 0) out[blockIdx.x] = 0.0f;
    }
    """,
)
def plan_error(file: FileFacts) -> Iterator[Hit]:
    others = _DISAGREEMENTS | {PlanCode.UNUSED_SCRATCH}
    yield from _plan_hits(file.plan, frozenset(PlanCode) - others)


@declare(
    "KL236",
    "plan-disagrees",
    ERROR,
    summary="The launch plan and the kernel's signature disagree",
    why="""
    The plan passes arguments by their order and type. A wrong count, a tensor where a number is expected or an f16
    tensor for a `float*` would read other memory than is meant.
    """,
    bad="""
    // kernel-lsp: 1
    // op: zero(x: f32[N]) -> (out: f32[N])
    // launch: zero_all<<<N, 32>>>(out)

    __global__ void zero_all(float* __restrict__ out, int n) {
        if (blockIdx.x < n) out[blockIdx.x] = 0.0f;
    }
    """,
    good="""
    // kernel-lsp: 1
    // op: zero(x: f32[N]) -> (out: f32[N])
    // launch: zero_all<<<N, 32>>>(out, N)

    __global__ void zero_all(float* __restrict__ out, int n) {
        if (blockIdx.x < n) out[blockIdx.x] = 0.0f;
    }
    """,
)
def plan_disagrees(file: FileFacts) -> Iterator[Hit]:
    yield from _plan_hits(file.plan, _DISAGREEMENTS)


@declare(
    "KL237",
    "unused-plan-name",
    HINT,
    summary="The launch plan names something that it never uses",
    why="A scratch tensor costs memory at each call; a scalar that reaches no kernel has no effect on the result.",
    bad="""
    // kernel-lsp: 1
    // op: zero(x: f32[N], factor: float) -> (out: f32[N])
    // scratch: partial: f32[N]
    // launch: zero_all<<<N, 32>>>(out, N)

    __global__ void zero_all(float* __restrict__ out, int n) {
        if (blockIdx.x < n) out[blockIdx.x] = 0.0f;
    }
    """,
    good="""
    // kernel-lsp: 1
    // op: scale(x: f32[N], factor: float) -> (out: f32[N])
    // launch: scale_all<<<N, 32>>>(x, out, N, factor)

    __global__ void scale_all(const float* __restrict__ x, float* __restrict__ out, int n, float factor) {
        if (blockIdx.x < n) out[blockIdx.x] = factor * x[blockIdx.x];
    }
    """,
)
def unused_plan_name(file: FileFacts) -> Iterator[Hit]:
    yield from _plan_hits(file.plan, frozenset((PlanCode.UNUSED_SCRATCH,)))
    plan = file.plan.plan
    if plan is None:
        return
    for operation in plan.operations:
        if operation is not plan.backward:
            used = _used_names(operation)
            for scalar in (p for p in operation.parameters if isinstance(p, ScalarParameter)):
                if scalar.name not in used:
                    message = f"nothing in the plan uses '{scalar.name}'"
                    yield Hit(file.plan.span_range(scalar.span), message)


def _product(block: Block) -> int:
    return block[0] * block[1] * block[2]


def _plan_hits(plan: CheckedPlan, codes: frozenset[PlanCode]) -> Iterator[Hit]:
    for finding in plan.findings:
        if finding.code in codes:
            yield Hit(plan.finding_range(finding), f"{finding.message} ({finding.code})", (), finding.severity)


def _used_names(operation: Operation) -> frozenset[str]:
    """Return the names in conditions, in sizes of results and scratch, and in steps."""
    expressions: list[Expression] = [condition.expression for condition in operation.where]
    for tensor in (*operation.results, *operation.scratch):
        expressions += tensor.dims
    for step in operation.steps:
        expressions += _step_expressions(step)
    return frozenset().union(*(free_names(expression) for expression in expressions))


def _step_expressions(step: Step) -> list[Expression]:
    match step:
        case Fill():
            return [step.value]
        case Launch():
            return [*launch_numbers(step), *step.arguments]
        case LibraryStep():
            condition = [] if step.condition is None else [step.condition]
            return [*condition, *argument_expressions(step.arguments)]
