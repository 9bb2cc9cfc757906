"""KL258 and KL259: memory of the host that a kernel is given, and memory that the host reads too early."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import ERROR, WARNING, declare, hit, launches_in
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.rule import Hit

_OF_VECTOR = re.compile(r"(\w+)\s*\.\s*data\(\)")
_MANAGED = re.compile(r"\bcudaMallocManaged\s*\(\s*(?:\([^()]*\)\s*)?&\s*(\w+)")
WAITS = re.compile(rb"Synchronize|cudaMemcpy(?!Async)|cudaFree\b|[Ss]ync\w*\s*\(|cudaMemPrefetch|[Ww]ait\w*\s*\(")
"""Calls after which the host may read what the GPU wrote."""


@declare(
    "KL258",
    "host-pointer-in-launch",
    ERROR,
    on="host",
    needs=("<<<", "vector malloc new"),
    summary="A kernel is given a pointer to memory of the host",
    why="""
    The GPU cannot read what `std::vector`, `malloc` or `new` allocate: the kernel ends with an illegal address. Copy it
    to memory of `cudaMalloc` first, or allocate it with `cudaMallocManaged`.
    """,
    bad="""
    __global__ void zero(float* x) { x[threadIdx.x] = 0.0f; }

    cudaError_t run() {
        float* x = (float*)malloc(1024);
        zero<<<1, 256>>>(x);
        return cudaDeviceSynchronize();
    }
    """,
    good="""
    __global__ void zero(float* x) { x[threadIdx.x] = 0.0f; }

    cudaError_t run() {
        float* x = nullptr;
        cudaError_t error = cudaMalloc(&x, 1024);
        if (error != cudaSuccess) return error;
        zero<<<1, 256>>>(x);
        error = cudaDeviceSynchronize();
        cudaFree(x);
        return error;
    }
    """,
)
def host_pointer_in_launch(function: Function) -> Iterator[Hit]:
    for launch in launches_in(function):
        for argument in function.arguments(launch):
            if _is_on_host(function, argument):
                text = function.source(argument)
                yield hit(function.file, argument, f"`{text}` is memory of the host, which a kernel cannot read")


@declare(
    "KL259",
    "managed-read-before-sync",
    ERROR,
    on="host",
    needs=("<<<", "cudaMallocManaged"),
    summary="The host reads managed memory while a kernel may still write it",
    why="""
    A launch returns at once. Until the host has synchronized, elements of managed memory have old values, or the access
    faults on GPUs without concurrent access.
    """,
    bad="""
    __global__ void one(float* x) { x[threadIdx.x] = 1.0f; }

    float run() {
        float* x = nullptr;
        if (cudaMallocManaged(&x, 1024) != cudaSuccess) return 0.0f;
        one<<<1, 256>>>(x);
        return x[0];
    }
    """,
    good="""
    __global__ void one(float* x) { x[threadIdx.x] = 1.0f; }

    float run() {
        float* x = nullptr;
        if (cudaMallocManaged(&x, 1024) != cudaSuccess) return 0.0f;
        one<<<1, 256>>>(x);
        if (cudaDeviceSynchronize() != cudaSuccess) return 0.0f;
        return x[0];
    }
    """,
)
def managed_read_before_sync(function: Function) -> Iterator[Hit]:
    data, managed = function.file.parsed.data, set(_MANAGED.findall(function.text))
    for launch in launches_in(function) if managed else ():
        given = {function.source(argument) for argument in function.arguments(launch)} & managed
        for access in function.subscripts:
            array = access.child_by_field_id(fields.ARGUMENT)
            is_behind = array is not None and access.start_byte > launch.end_byte and function.source(array) in given
            if is_behind and not WAITS.search(data, launch.end_byte, access.start_byte):
                yield hit(function.file, access, "managed memory is read while the kernel may run: synchronize first")
                break


@declare(
    "KL265",
    "unset-accumulator",
    WARNING,
    on="host",
    needs=("<<<", "cudaMalloc empty"),
    summary="A kernel adds to memory that nothing has set since it was allocated",
    why="""
    `cudaMalloc` does not zero memory: the sum starts from whatever lay there. Call `cudaMemset` before the launch, or
    let the kernel set the elements first.
    """,
    bad="""
    __global__ void count(const int* x, int* total) { if (x[threadIdx.x] > 0) atomicAdd(total, 1); }

    cudaError_t run(const int* x, int** total) {
        int* sum = nullptr;
        cudaError_t error = cudaMalloc(&sum, sizeof(int));
        if (error != cudaSuccess) return error;
        count<<<1, 256>>>(x, sum);
        *total = sum;
        return cudaGetLastError();
    }
    """,
    good="""
    __global__ void fill(int* total) { *total = 0; }

    cudaError_t run(int** total) {
        int* sum = nullptr;
        cudaError_t error = cudaMalloc(&sum, sizeof(int));
        if (error != cudaSuccess) return error;
        fill<<<1, 1>>>(sum);
        *total = sum;
        return cudaGetLastError();
    }
    """,
)
def unset_accumulator(function: Function) -> Iterator[Hit]:
    for launch in launches_in(function) if function.file.accumulators else ():
        kernel, arguments = function.callee(launch).rpartition("::")[2], function.arguments(launch)
        for name, position in function.file.accumulators:
            if name == kernel and position < len(arguments) and _is_unset(function, arguments[position], launch):
                text = function.source(arguments[position])
                message = f"`{text}` is added to and never set: `cudaMalloc` does not zero it"
                yield hit(function.file, arguments[position], message)


# --- below


def _is_unset(function: Function, argument: Node, launch: Node) -> bool:
    """Return whether nothing mentions the pointer between its allocation in this function and the launch."""
    name = re.sub(r"\.(?:mutable_)?data_ptr(?:<[^<>]*>)?\(\)$", "", function.source(argument))
    if not name.isidentifier() or function.loop_around(launch) is not None:
        return False
    before = function.file.parsed.between(function.body.start_byte, launch.start_byte)
    if name != function.source(argument):
        created = list(re.finditer(rf"\b{name}\s*=\s*(?:torch|at)::empty(?:_like)?\s*\(", before))
        return len(created) == 1 and re.search(rf"\b{name}\b\s*(?:\.\w+_\(|[,)=])", before[created[0].end() :]) is None
    made = list(re.finditer(rf"\bcudaMalloc(?:Async)?\s*\(\s*(?:\([^()]*\)\s*)?&\s*{name}\b", before))
    return len(made) == 1 and re.search(rf"\b{name}\b", before[made[0].end() :]) is None


def _is_on_host(function: Function, argument: Node) -> bool:
    """Return whether the argument is `data()` of a `std::vector`, or a pointer that `malloc` or `new` made here."""
    text = function.source(argument)
    found = _OF_VECTOR.fullmatch(text)
    if found is not None:
        kinds = {variable.type_text for variable in function.named(found[1])}
        return bool(kinds) and all(re.match(r"(?:const\s+)?(?:std\s*::\s*)?vector\s*<", kind) for kind in kinds)
    variable = function.variable(argument)
    if variable is None or not variable.is_pointer or variable.value is None or variable.writes:
        return False
    is_passed = re.search(rf"&\s*{re.escape(variable.name)}\b", function.text)
    return (
        not is_passed
        and re.match(r"(?:\([^()]*\)\s*)?(?:malloc|calloc|new)\b", function.source(variable.value)) is not None
    )
