"""KL230 to KL239: launches against the limits of the hardware, and the launch plan against its kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tree_sitter import Node

from kernel_lsp.core.expression import Constant, Expression, free_names
from kernel_lsp.core.finding import Finding
from kernel_lsp.core.finding import Severity as FindingSeverity
from kernel_lsp.core.plan import Fill, Launch, LaunchPlan, LibraryArgument, Operation, Span, Step
from kernel_lsp.plan import checking as plan_checking
from kernel_lsp.plan.codes import PlanCode
from kernel_lsp.plan.parser import parse as parse_plan
from kernel_lsp.rules.cuda.declare import ERROR, HINT, INFORMATION, declare, hit
from kernel_lsp.rules.cuda.host import is_launch
from kernel_lsp.rules.cuda.model import CudaFile as File
from kernel_lsp.rules.cuda.model import Function, type_bytes
from kernel_lsp.rules.finding import QuickFix, TextRange
from kernel_lsp.rules.rule import Hit
from kernel_lsp.source.cuda import kernel_signatures

MAX_THREADS_PER_BLOCK = 1024
MAX_THREADS_Z = 64
MAX_STATIC_SHARED_BYTES = 48 * 1024
MAX_SHARED_BYTES = 227 * 1024
"""Of one block on compute capability 9.0, the most of all GPUs (CUDA C++ Programming Guide, technical specifications)."""
WARP = 32
MANY_THREADS = 512
"""Above it a kernel may have at most 64 registers per thread (65,536 per multiprocessor), or the launch fails."""
PLAN_MARK = "kernel-lsp:"
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
def block_too_large(file: File) -> Iterator[Hit]:
    for launch in _launches(file):
        block = launch.block
        if block is not None and (_product(block) > MAX_THREADS_PER_BLOCK or block[2] > MAX_THREADS_Z):
            size = " x ".join(map(str, block)) if block[1:] != (1, 1) else str(block[0])
            yield Hit(launch.range, f"a block of {size} threads: the limits are 1024, and 64 along z")
    for function in file.kernels:
        bound = _launch_bound(function)
        if bound is not None and bound > MAX_THREADS_PER_BLOCK:
            yield hit(file, function.name_node, f"`__launch_bounds__({bound})`: a block has at most 1024 threads")


@declare(
    "KL231",
    "partial-warp",
    INFORMATION,
    summary="A block that is no multiple of 32 threads",
    why="The last warp of each block runs with idle lanes, and full-warp shuffles in it have no partner.",
    bad="""
    __global__ void zero(float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = 0.0f;
    }

    cudaError_t run(float* out, int n) {
        zero<<<(n + 99) / 100, 100>>>(out, n);
        return cudaGetLastError();
    }
    """,
    good="""
    __global__ void zero(float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = 0.0f;
    }

    cudaError_t run(float* out, int n) {
        zero<<<(n + 127) / 128, 128>>>(out, n);
        return cudaGetLastError();
    }
    """,
)
def partial_warp(file: File) -> Iterator[Hit]:
    for launch in _launches(file):
        n_threads = 0 if launch.block is None else _product(launch.block)
        if WARP < n_threads <= MAX_THREADS_PER_BLOCK and n_threads % WARP:
            yield Hit(launch.range, f"{n_threads} threads: the last warp of each block has {-n_threads % WARP} idle")


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
def shared_too_large(file: File) -> Iterator[Hit]:
    for function in file.device_code:
        arrays = [v for v in function.all_variables() if v.is_shared and "extern" not in v.words]
        total = sum(_bytes(function, v.sizes, v.element) for v in arrays)
        if arrays and total > MAX_STATIC_SHARED_BYTES:
            message = f"{total:,} bytes of static shared memory: the limit is {MAX_STATIC_SHARED_BYTES:,}"
            yield hit(file, arrays[-1].name_node, message)
    for launch in _launches(file):
        limit = MAX_SHARED_BYTES
        if not launch.is_planned and "cudaFuncSetAttribute" not in file.parsed.text:
            limit = MAX_STATIC_SHARED_BYTES
        if launch.shared_bytes is not None and launch.shared_bytes > limit:
            yield Hit(launch.range, f"{launch.shared_bytes:,} bytes of shared memory: the limit is {limit:,} here")


@declare(
    "KL233",
    "dynamic-shared-unset",
    ERROR,
    summary="A kernel with dynamic shared memory is launched without any",
    why="`extern __shared__` gets as many bytes as the launch says: with none, every access is out of bounds.",
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
def dynamic_shared_unset(file: File) -> Iterator[Hit]:
    dynamic = {function.name for function in file.kernels if _has_dynamic_shared(function)}
    for launch in _launches(file):
        if launch.kernel in dynamic and launch.shared_bytes == 0:
            yield Hit(launch.range, f"`{launch.kernel}` uses `extern __shared__`, and this launch gives it 0 bytes")


@declare(
    "KL234",
    "missing-launch-bounds",
    INFORMATION,
    summary="A kernel that is launched with large blocks does not say so",
    why="""
    The compiler may use up to 255 registers per thread; with more than 512 threads, a block has room for less than 128
    each, and with 1024 for 64. Without `__launch_bounds__` such a launch fails when the kernel grows.
    """,
    bad="""
    __global__ void zero(float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = 0.0f;
    }

    cudaError_t run(float* out, int n) {
        zero<<<(n + 1023) / 1024, 1024>>>(out, n);
        return cudaGetLastError();
    }
    """,
    good="""
    __global__ void __launch_bounds__(1024) zero(float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = 0.0f;
    }

    cudaError_t run(float* out, int n) {
        zero<<<(n + 1023) / 1024, 1024>>>(out, n);
        return cudaGetLastError();
    }
    """,
)
def missing_launch_bounds(file: File) -> Iterator[Hit]:
    launches = _launches(file)
    for function in file.kernels:
        sizes = [_product(launch.block) for launch in launches if launch.kernel == function.name and launch.block]
        largest = max(sizes, default=0)
        if MANY_THREADS < largest <= MAX_THREADS_PER_BLOCK and not _has_launch_bounds(function):
            edit = file.parsed.insert(function.name_node.start_byte, f"__launch_bounds__({largest}) ")
            fix = QuickFix(f"Add `__launch_bounds__({largest})`", (edit,), False)
            message = f"launched with {largest} threads per block: say `__launch_bounds__({largest})`"
            yield hit(file, function.name_node, message, fix)


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
def plan_error(file: File) -> Iterator[Hit]:
    others = _DISAGREEMENTS | {PlanCode.UNUSED_SCRATCH}
    yield from _plan_hits(file, frozenset(PlanCode) - others)


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
def plan_disagrees(file: File) -> Iterator[Hit]:
    yield from _plan_hits(file, _DISAGREEMENTS)


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
def unused_plan_name(file: File) -> Iterator[Hit]:
    yield from _plan_hits(file, frozenset((PlanCode.UNUSED_SCRATCH,)))
    plan = _read_plan(file).plan
    for operation in plan.operations if plan is not None else ():
        if operation is not plan.backward:  # type: ignore[union-attr]
            used = _used_names(operation)
            for scalar in (p for p in operation.parameters if not hasattr(p, "dims")):
                if scalar.name not in used:
                    message = f"nothing in the plan uses '{scalar.name}'"
                    yield Hit(_span_range(file, scalar.span), message)


# --- below: launches of both kinds

Block = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Launch:
    """`kernel` has no namespace and no template arguments. A size that the text does not say is None."""

    kernel: str
    block: Block | None
    shared_bytes: int | None
    range: TextRange
    is_planned: bool


def _launches(file: File) -> list[_Launch]:
    planned = [_planned_launch(file, step) for step in _planned_steps(file) if isinstance(step, Launch)]
    hosted = [
        _host_launch(file, function, call) for function in file.host_code for call in function.calls if is_launch(call)
    ]
    return planned + hosted


def _planned_steps(file: File) -> Iterator[Step]:
    plan = _read_plan(file).plan
    for operation in plan.operations if plan is not None else ():
        yield from operation.steps


def _planned_launch(file: File, launch: Launch) -> _Launch:
    sizes = [_constant(size) for size in launch.block]
    block = None if None in sizes else (sizes[0], sizes[1], sizes[2])
    kernel = launch.kernel.rpartition("::")[2]
    place = _span_range(file, launch.span)
    return _Launch(kernel, block, _constant(launch.shared_bytes), place, True)  # type: ignore[arg-type]


def _constant(expression: Expression) -> int | None:
    is_integer = isinstance(expression, Constant) and type(expression.value) is int
    return expression.value if is_integer else None  # type: ignore[attr-defined, return-value]


def _host_launch(file: File, function: Function, call: Node) -> _Launch:
    syntax = next(child for child in call.named_children if child.type == "kernel_call_syntax")
    parts = [child for child in syntax.named_children if child.type != "comment"]
    block = _block_of(function, parts[1]) if len(parts) > 1 else None
    shared = function.constant(parts[2]) if len(parts) > 2 else 0
    kernel = function.callee(call).rpartition("::")[2]
    return _Launch(kernel, block, shared, file.parsed.range(syntax), False)


def _block_of(function: Function, node: Node | None) -> Block | None:
    """The size that ``256``, ``dim3(32, 8)`` or a variable of either says."""
    if node is None:
        return None
    variable = function.variable(node)
    if variable is not None and variable.element == "dim3":
        is_changed = bool(variable.writes) or f"{variable.name}." in function.source(function.body)
        return None if is_changed else _block_of(function, variable.value)
    if node.type == "call_expression" and function.callee(node) == "dim3":
        return _block_of_sizes(function, function.arguments(node))
    if node.type in ("argument_list", "initializer_list"):
        return _block_of_sizes(function, node.named_children)
    return _block_of_sizes(function, [node])


def _block_of_sizes(function: Function, nodes: list[Node]) -> Block | None:
    sizes = [function.constant(node) for node in nodes]
    if not 1 <= len(sizes) <= 3 or None in sizes:
        return None
    x, y, z = (*sizes, 1, 1)[:3]
    return (x, y, z)  # type: ignore[return-value]


def _product(block: Block) -> int:
    return block[0] * block[1] * block[2]


# --- shared memory and bounds


def _bytes(function: Function, sizes: tuple[Node | None, ...], element: str) -> int:
    """Bytes of an array, 0 when its type or a size is not known: the total is a lower bound."""
    n_bytes = type_bytes(element) or 0
    for size in sizes:
        n_bytes *= function.constant(size) or 0
    return n_bytes


def _has_dynamic_shared(function: Function) -> bool:
    return any(v.is_shared and "extern" in v.words for v in function.all_variables())


def _has_launch_bounds(function: Function) -> bool:
    """Also through a macro, such as the ones of ATen, that may stand in front of what parses as the function."""
    start = max(function.node.start_byte - 200, 0)
    return b"launch_bounds" in function.file.parsed.data[start : function.body.start_byte].lower()


def _launch_bound(function: Function) -> int | None:
    bounds = next((child for child in function.node.children if child.type == "launch_bounds"), None)
    if bounds is None or not bounds.named_children:
        return None
    return function.constant(bounds.named_children[0])


# --- the plan, through `kernel_lsp.plan`


@dataclass(frozen=True, slots=True)
class _Plan:
    plan: LaunchPlan | None
    findings: tuple[Finding, ...]


_NO_PLAN = _Plan(None, ())


def _read_plan(file: File) -> _Plan:
    """The plan with all that its parser and its checks say; nothing for a file without one."""
    if file.plan is None:
        file.plan = _parse_and_check(_without_bodies(file)) if PLAN_MARK in file.parsed.text else _NO_PLAN
    return file.plan  # type: ignore[return-value]


def _without_bodies(file: File) -> str:
    """The text with empty function bodies, every line where it was: all that a plan can disagree with. An edit in a
    body does not change it, so that the answer is kept."""
    data, parts, end = file.parsed.data, [], 0
    for function in file.functions:
        if function.body.start_byte >= end:
            body = data[function.body.start_byte : function.body.end_byte]
            parts += [data[end : function.body.start_byte], b"{", b"\n" * body.count(b"\n"), b"}"]
            end = function.body.end_byte
    return b"".join((*parts, data[end:])).decode("utf-8", errors="replace")


@lru_cache(maxsize=64)
def _parse_and_check(text: str) -> _Plan:
    parsed = parse_plan(text)
    findings = tuple(finding for finding in parsed.findings if finding.code != PlanCode.NO_PLAN)
    if parsed.plan is not None:
        findings += plan_checking.check(parsed.plan, kernel_signatures(text))
    return _Plan(parsed.plan, findings)


def _plan_hits(file: File, codes: frozenset[PlanCode]) -> Iterator[Hit]:
    for finding in _read_plan(file).findings:
        if finding.code in codes:
            severity = FindingSeverity(finding.severity)
            yield Hit(_finding_range(file, finding), f"{finding.message} ({finding.code})", (), severity)


def _finding_range(file: File, finding: Finding) -> TextRange:
    """From where the plan's finding stands to the end of its line."""
    line = min((finding.line or 1) - 1, len(file.parsed.starts) - 1)
    length = len(_line(file, line).rstrip())
    start = min((finding.column or 1) - 1, max(length - 1, 0))
    return TextRange(line, start, line, max(length, start))


def _span_range(file: File, span: Span) -> TextRange:
    line = min(span.line - 1, len(file.parsed.starts) - 1)
    length = len(_line(file, line))
    return TextRange(line, min(span.column - 1, length), line, min(span.end_column - 1, length))


def _line(file: File, line: int) -> str:
    starts = (*file.parsed.starts, len(file.parsed.data))
    return file.parsed.data[starts[line] : starts[line + 1]].decode("utf-8", errors="replace").rstrip("\r\n")


def _used_names(operation: Operation) -> frozenset[str]:
    """Names in conditions, in sizes of results and scratch, and in steps."""
    expressions: list[Expression] = [condition.expression for condition in operation.where]
    for tensor in (*operation.results, *operation.scratch):
        expressions += tensor.dims
    for step in operation.steps:
        expressions += _step_expressions(step)
    return frozenset().union(*(free_names(expression) for expression in expressions))


def _step_expressions(step: Step) -> list[Expression]:
    condition = [] if isinstance(step, Fill) or step.condition is None else [step.condition]
    if isinstance(step, Fill):
        return [step.value]
    if isinstance(step, Launch):
        template = [argument for argument in step.template_arguments if isinstance(argument, Expression)]
        return [*condition, *template, *step.grid, *step.block, step.shared_bytes, *step.arguments]
    return [*condition, *(e for argument in step.arguments for e in _library_expressions(argument))]


def _library_expressions(argument: LibraryArgument) -> list[Expression]:
    if isinstance(argument, tuple):
        return [expression for item in argument for expression in _library_expressions(item)]
    return [argument] if isinstance(argument, Expression) else []
