"""KL258 and KL259: memory of the host that a kernel is given, and memory that the host reads too early."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import ERROR, WARNING, conditions_around, declare, hit, launches_in
from kernel_lsp.rules.cuda.host.owners import owner_of_call
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.rule import Hit
from kernel_lsp.source.host_launches import split_top

_CONTAINER = re.compile(r"(?:const\s+)?(?:std\s*::\s*)?(?:vector|array)\s*<")
_ON_DEVICE = frozenset(("static", "__managed__", "__device__", "__constant__", "extern"))
_MANAGED = re.compile(r"\bcudaMallocManaged\s*\(\s*(?:\([^()]*\)\s*)?&\s*(\w+)")
WAITS = re.compile(
    rb"Synchronize|cudaMemcpy(?!\w*Async)\w*\s*\(|cudaFree\b|(?<!A)[Ss]ync\w*\s*\(|cudaMemPrefetch|[Ww]ait\w*\s*\("
)
"""Calls after which the host may read what the GPU wrote."""


@declare(
    "KL258",
    "host-pointer-in-launch",
    ERROR,
    on="host",
    needs=("<<<", "data vector array malloc new & ["),
    summary="A kernel is given a pointer to memory of the host",
    why="""
    The GPU cannot read what `std::vector`, `malloc` or `new` allocate, or what lies on the stack, by itself or as a
    member of a structure: the kernel ends with an illegal address. Copy it to memory of `cudaMalloc` first, or allocate
    it with `cudaMallocManaged`.
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
        given = function.arguments(launch)
        for node in (*given, *(member for each in given for member in _members(function, each, launch))):
            if _is_on_host(function, node):
                text = function.source(node)
                yield hit(function.file, node, f"`{text}` is memory of the host, which a kernel cannot read")


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
            made = _unset_since(function, arguments[position], launch) if position < len(arguments) else -1
            if name == kernel and made >= 0:
                text, place = function.source(arguments[position]), arguments[position]
                allocation = function.body.descendant_for_byte_range(made, made + 1) if ".data_ptr" in text else None
                message = f"`{text}` is added to and never set: its allocation does not zero it"
                yield hit(
                    function.file, allocation if ".data_ptr" in text and allocation is not None else place, message
                )


def _unset_since(function: Function, argument: Node, launch: Node) -> int:
    """Return the position of the pointer's allocation in this function if nothing mentions it up to the launch, in the
    first round of a loop, too; -1 otherwise."""
    name = re.sub(r"\.(?:mutable_)?data_ptr(?:<[^<>]*>)?\(\)$", "", function.source(argument))
    n_conditions = sum(1 for _ in conditions_around(function, launch))
    if not name.isidentifier() or (n_conditions > 1 and function.loop_around(launch) is not None):
        return -1
    before = function.file.parsed.between(function.body.start_byte, launch.start_byte)
    if name != function.source(argument):
        created = list(re.finditer(rf"\b{name}\s*=\s*(?:torch|at)::empty(?:_like)?\s*\(", before))
        use = rf"\b{name}\b\s*(?:\.\w+_\(|[,)=])"
    else:
        created = list(re.finditer(rf"\bcudaMalloc(?:Async)?\s*\(\s*(?:\([^()]*\)\s*)?&\s*{name}\b", before))
        use = rf"\b{name}\b"
    if len(created) != 1 or re.search(use, before[created[0].end() :]):
        return -1
    return function.body.start_byte + len(before[: created[0].start()].encode())


def _members(function: Function, argument: Node, launch: Node) -> list[Node]:
    """Return the values that the members of a structure have when a launch takes it: ``{x, n}`` and ``view.x = x``."""
    variable = function.variable(argument)
    if variable is None or variable.is_pointer or variable.is_array or variable in function.parameters:
        return []
    made = variable.value
    is_list = (
        made is not None
        and made.type in ("initializer_list", "argument_list")
        and _has_no_constructor(function, variable.type_text)
    )
    values = [each for each in made.named_children if each.type != "comment"] if made is not None and is_list else []
    members = {str(place): each for place, each in enumerate(values)}
    for write in function.assignments:
        left, right = write.child_by_field_id(fields.LEFT), write.child_by_field_id(fields.RIGHT)
        is_before = left is not None and right is not None and write.end_byte < launch.start_byte
        if is_before and left is not None and right is not None and left.type == "field_expression":
            owner = left.child_by_field_id(fields.ARGUMENT)
            if owner is not None and function.variable(owner) is variable:
                members[function.source(left)] = right
    return [each.named_children[-1] if each.type == "initializer_pair" else each for each in members.values()]


def _has_no_constructor(function: Function, type_text: str) -> bool:
    """Return whether the type is a structure of the file whose members a list sets: a constructor may copy them."""
    name = type_text.rpartition(" ")[2]
    return name in function.file.members and re.search(rf"\b{name}\s*\(", function.file.parsed.text) is None


def _is_on_host(function: Function, node: Node) -> bool:
    """Return whether the value is an address of the host's: `data()` of a container, an array or variable on the stack,
    or a pointer that `malloc` or `new` made here."""
    node = _unconverted(function, node)
    text = function.source(node)
    if (found := owner_of_call(function, node)) is not None:
        return found[0] == "data" and _is_container_of_host(found[1].type_text)
    taken = node.child_by_field_id(fields.ARGUMENT) if text.startswith("&") else None
    variable = function.variable(node if taken is None else taken)
    if variable is None or variable in function.parameters or not _ON_DEVICE.isdisjoint(variable.words):
        return False
    if taken is not None or (variable.is_array and variable.sizes):
        return not variable.is_reference
    if not variable.is_pointer or variable.value is None or variable.writes:
        return False
    is_passed = re.search(rf"(?:&|\bcudaHostRegister\s*\()\s*{re.escape(variable.name)}\b", function.text)
    made = function.source(_unconverted(function, variable.value))
    return not is_passed and re.match(r"(?:std::)?(?:malloc|calloc|aligned_alloc)\b|new\b", made) is not None


def _is_container_of_host(type_text: str) -> bool:
    """Return whether a type is a container with the standard allocator: another one may allocate managed memory."""
    name, _, given = type_text.partition("<")
    n_given = len(split_top(given.rpartition(">")[0], opening="<(", closing=">)"))
    return _CONTAINER.match(type_text) is not None and (n_given == 1 or "array" in name)


def _unconverted(function: Function, node: Node) -> Node:
    """Return the value within casts and parentheses."""
    inner: Node | None = node
    while inner is not None:
        node, inner = inner, None
        if node.type in ("parenthesized_expression", "cast_expression"):
            inner = node.child_by_field_id(fields.VALUE) or node.named_children[-1]
        elif node.type == "call_expression" and function.callee(node).endswith("_cast"):
            inner = next(iter(function.arguments(node)), None)
    return node
