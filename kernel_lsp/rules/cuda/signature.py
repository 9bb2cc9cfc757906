"""KL240 to KL249: what a kernel declares, and calls that do not belong in one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import attrgetter

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import HINT, INFORMATION, WARNING, declare, hit
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.outline import CudaFile as File
from kernel_lsp.rules.cuda.variables import Variable
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Hit
from kernel_lsp.rules.words import words

_RESTRICT = ("__restrict__", "__restrict", "restrict")


@declare(
    "KL240",
    "missing-restrict",
    INFORMATION,
    on="kernel",
    needs=("*",),
    summary="Pointers of a kernel without `__restrict__`",
    why="""
    Without it the compiler must assume that a store through one pointer changes what another one reads: it loads
    values again, and cannot use the read-only cache. Say `__restrict__` when the tensors do not overlap.
    """,
    bad="""
    __global__ void add(const float* x, const float* y, float* out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = x[i] + y[i];
    }
    """,
    good="""
    __global__ void add(const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = x[i] + y[i];
    }
    """,
)
def missing_restrict(kernel: Function) -> Iterator[Hit]:
    file = kernel.file
    pointers = [p for p in kernel.parameters if p.is_pointer and not p.is_reference]
    bare = [p for p in pointers if not _is_restricted(file, p) and _has_star(file, p)]
    writes = any(not p.is_const for p in pointers)
    # One that is written, beside restricted ones, overlaps with none of them. One that is read also gets its own loads.
    may_gain = len(bare) >= 2 or any(p.is_const for p in bare)
    if may_gain and len(pointers) >= 2 and writes and not _aliases_on_purpose(kernel):
        edits = tuple(file.parsed.insert(p.name_node.start_byte, _spaced_restrict(file, p)) for p in bare)
        fix = QuickFix("Add `__restrict__` to all of them, if they do not overlap", edits, False)
        names = ", ".join(p.name for p in bare)
        yield hit(file, bare[0].declaration, f"the compiler must assume that these overlap: {names}", fix)


@declare(
    "KL241",
    "missing-const",
    HINT,
    on="kernel",
    needs=("* [",),
    summary="A pointer that is only read is not `const`",
    why="""
    `const` documents that it is an input, lets the compiler refuse a store, and together with `__restrict__` lets it
    use the read-only cache.
    """,
    bad="""
    __global__ void copy(float* __restrict__ x, float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = x[i];
    }
    """,
    good="""
    __global__ void copy(const float* __restrict__ x, float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = x[i];
    }
    """,
)
def missing_const(kernel: Function) -> Iterator[Hit]:
    file = kernel.file
    for parameter in kernel.parameters:
        is_open = parameter.is_pointer and not parameter.is_reference and not parameter.is_const
        if is_open and _is_only_read(kernel, parameter):
            edit = file.parsed.insert(parameter.declaration.start_byte, "const ")
            fixes = () if kernel.name in file.declared else (QuickFix("Make it `const`", (edit,), True),)
            yield hit(file, parameter.declaration, f"`{parameter.name}` is only read: make it `const`", *fixes)


@declare(
    "KL242",
    "unused-parameter",
    HINT,
    on="kernel",
    summary="A kernel does not use one of its parameters",
    why="It is passed at each launch, and whoever reads the launch believes that it matters.",
    bad="""
    __global__ void zero(float* __restrict__ out, int n, float scale) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = 0.0f;
    }
    """,
    good="""
    __global__ void zero(float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = 0.0f;
    }
    """,
)
def unused_parameter(kernel: Function) -> Iterator[Hit]:
    file = kernel.file
    unused = [parameter for parameter in kernel.parameters if not kernel.is_mentioned(parameter.name)]
    if not unused or kernel.node.has_error or kernel.is_empty:
        return
    for parameter in unused:
        if "maybe_unused" not in parameter.type_text:
            yield hit(file, parameter.name_node, f"`{parameter.name}` is not used")


@declare(
    "KL243",
    "printf-in-kernel",
    INFORMATION,
    on="device",
    needs=("printf",),
    summary="A kernel prints",
    why="""
    `printf` needs a stack frame, registers and a buffer that all threads share; it stays costly when its branch is not
    taken. It is for debugging.
    """,
    bad="""
    #include <cstdio>

    __global__ void check(const float* __restrict__ x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n && x[i] != x[i]) printf("NaN at %d\\n", i);
    }
    """,
    good="""
    __global__ void check(const float* __restrict__ x, int* __restrict__ found, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n && x[i] != x[i]) *found = i;
    }
    """,
)
def printf_in_kernel(function: Function) -> Iterator[Hit]:
    file = function.file
    for call in function.calls:
        if function.callee(call) in ("printf", "std::printf"):
            yield hit(file, call, "printing from a kernel is for debugging: it costs registers and time")


@declare(
    "KL244",
    "device-heap",
    WARNING,
    on="device",
    needs=("new malloc",),
    patterns=(r"\b(?:new|malloc)\b",),
    summary="A kernel allocates memory",
    why="""
    `malloc` and `new` in a kernel take memory from a heap of 8 MiB for all threads, under a lock, and the memory is
    read like global memory. Use registers, shared memory, or a scratch tensor.
    """,
    bad="""
    __global__ void sort(float* __restrict__ x, int n) {
        float* copy = new float[n];
        for (int i = 0; i < n; ++i) copy[i] = x[i];
        for (int i = 0; i < n; ++i) x[i] = copy[n - 1 - i];
        delete[] copy;
    }
    """,
    good="""
    __global__ void sort(float* __restrict__ x, float* __restrict__ copy, int n) {
        for (int i = 0; i < n; ++i) copy[i] = x[i];
        for (int i = 0; i < n; ++i) x[i] = copy[n - 1 - i];
    }
    """,
)
def device_heap(function: Function) -> Iterator[Hit]:
    file = function.file
    news = [node for node in function.allocations if node.type == "new_expression" and not _is_placement(node)]
    mallocs = [call for call in function.calls if function.callee(call) in ("malloc", "std::malloc")]
    for node in sorted((*news, *mallocs), key=attrgetter("start_byte")):
        yield hit(file, node, "each thread takes memory from one small heap: use shared memory or scratch")


@declare(
    "KL245",
    "sizeof-pointer",
    WARNING,
    needs=("sizeof",),
    summary="`sizeof` of a pointer is 8",
    why="A pointer does not know how much it points to. Multiply the number of elements by `sizeof` of one.",
    bad="""
    #include <cstring>

    void clear(float* x, int n) {
        memset(x, 0, sizeof(x));
    }
    """,
    good="""
    #include <cstring>

    void clear(float* x, int n) {
        memset(x, 0, n * sizeof(float));
    }
    """,
)
def sizeof_pointer(function: Function) -> Iterator[Hit]:
    file = function.file
    for node in function.sizeofs:
        value = node.child_by_field_id(fields.VALUE)
        inner = value.named_children[0] if value is not None and value.named_children else value
        variable = function.variable(inner)
        if variable is not None and variable.is_pointer and not variable.is_array:
            yield hit(file, node, f"this is the size of the pointer `{variable.name}`, not of what it points to")


# --- below: pointers


def _is_restricted(file: File, parameter: Variable) -> bool:
    text = file.source(parameter.declaration)
    return any(word in text for word in _RESTRICT)


def _has_star(file: File, parameter: Variable) -> bool:
    return "*" in file.source(parameter.declaration)


def _spaced_restrict(file: File, parameter: Variable) -> str:
    before = file.parsed.data[parameter.name_node.start_byte - 1 : parameter.name_node.start_byte]
    return "__restrict__ " if before == b" " else " __restrict__ "


def _aliases_on_purpose(kernel: Function) -> bool:
    """Where the text says so, or where one pointer becomes another, as two buffers that change places do."""
    return (
        "in place" in kernel.head or "alias" in kernel.head or any(map(partial(_renames, kernel), kernel.assignments))
    )


def _renames(kernel: Function, assignment: Node) -> bool:
    """``a = b`` of pointers, the first of them a parameter."""
    left = kernel.variable(assignment.child_by_field_id(fields.LEFT))
    right = kernel.variable(assignment.child_by_field_id(fields.RIGHT))
    if left is None or right is None or kernel.operator(assignment) != "=":
        return False
    return left in kernel.parameters and left.is_pointer and right.is_pointer


def _is_only_read(kernel: Function, parameter: Variable) -> bool:
    """Whether each use is a subscript that is read, outside of casts, calls and pointer arithmetic."""
    if len(kernel.named(parameter.name)) != 1:
        return False
    n_uses = 0
    for use in _uses(kernel, parameter):
        n_uses += 1
        if not _is_read(kernel, use):
            return False
    return n_uses > 0


def _uses(kernel: Function, parameter: Variable) -> Iterator[Node]:
    """Every mention of the name in the body, comments and strings left out."""
    length = len(parameter.name.encode())
    for start in kernel.mentions(parameter.name):
        node = kernel.body.descendant_for_byte_range(start, start + length)
        if node is not None and node.type not in _TEXT_NODES:
            yield node


_TEXT_NODES = frozenset(("comment", "string_content", "string_literal", "raw_string_content"))


def _is_read(kernel: Function, use: Node) -> bool:
    subscript = kernel.parent(use)
    if subscript is None or subscript.type != "subscript_expression":
        return False
    array = subscript.child_by_field_id(fields.ARGUMENT)
    outer = kernel.parent(subscript)
    if array is None or array.id != use.id or outer is None:
        return False
    if outer.type in ("pointer_expression", "field_expression", "subscript_expression", "update_expression"):
        return False
    left = outer.child_by_field_id(fields.LEFT) if outer.type == "assignment_expression" else None
    is_argument = outer.type == "argument_list" and _is_unknown_call(kernel, kernel.parent(outer))
    is_bound = outer.type == "init_declarator" and "&" in kernel.source(outer).split("=")[0]
    return (left is None or left.id != subscript.id) and not is_argument and not is_bound


def _is_unknown_call(kernel: Function, call: Node | None) -> bool:
    """A call that might take the element by reference: one that this file does not define by value."""
    if call is None or call.type != "call_expression":
        return True
    name = kernel.callee(call)
    return not (name.startswith(("__", "static_cast", "make_")) or name in _VALUE_FUNCTIONS)


_VALUE_FUNCTIONS = words(
    """
    expf exp logf log sqrtf sqrt rsqrtf fmaxf fminf fabsf powf tanhf max min fmaf fma float int sinf cosf erff
    exp2f log2f log1pf expm1f floorf ceilf roundf fdividef
    """
)


def _is_placement(node: Node) -> bool:
    return node.child_by_field_id(fields.PLACEMENT) is not None
