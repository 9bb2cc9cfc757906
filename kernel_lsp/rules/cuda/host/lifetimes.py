"""KL267 to KL270: memory that the wrong side accesses, or that is accessed too early, too late or on another stream."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import ERROR, WARNING, declare, hit, launches_in
from kernel_lsp.rules.cuda.host.integer_values import calls_by_others
from kernel_lsp.rules.cuda.host.pointers import WAITS
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.rule import Hit

_ALLOCATED_BY = {
    "cudaMalloc": "device", "cudaMallocAsync": "device", "cudaMallocPitch": "device",
    "cudaMallocHost": "pinned", "cudaHostAlloc": "pinned",
}  # fmt: skip
_FREED_BY = {
    "cudaFree": ("device",), "cudaFreeAsync": ("device",), "cudaFreeHost": ("pinned",), "free": ("host",),
}  # fmt: skip
_WAITS = re.compile(WAITS.pattern + rb"|EventRecord|EventQuery|StreamQuery|Reset")
_CONTAINER = re.compile(r"(?:const\s+)?(?:std\s*::\s*)?(?:vector|array|string)\s*(?:<|$)")
_ACCESS = rb"\b%s\b(?:\.data\(\))?\s*(?:\[|->|\.(?:front|back|at|begin)\b)|(?:\*\s*|\bmemcpy\s*\(\s*)%s\b"
_ADDRESS = re.compile(r"(?:\(\s*void\s*\*\*\s*\)|reinterpret_cast<void\s*\*\*>\()?\s*&\s*(\w+)\)?")
_MALLOC = re.compile(r"(?:\([^()]*\)\s*|static_cast<[^<>]*>\()?(?:std::)?(?:malloc|calloc)\b")
_NO_ACCESS = frozenset(
    ("sizeof_expression", "comment", "string_literal", "decltype", "raw_string_literal", "lambda_expression")
)
_OWNERS = frozenset(("call_expression", "declaration", "init_declarator"))
_KEEPERS = frozenset(("initializer_list", "return_statement", "lambda_expression"))


@declare(
    "KL267",
    "device-memory-on-host",
    ERROR,
    on="host",
    summary="Host code accesses memory of the device",
    why="""
    A pointer of `cudaMalloc` is an address of the GPU: the host cannot read or write through it, and the program ends
    with a segmentation fault. Copy the element with `cudaMemcpy`, or set it with `cudaMemset`.
    """,
    bad="""
    cudaError_t reset(int** flag) {
        int* made = nullptr;
        cudaError_t error = cudaMalloc(&made, sizeof(int));
        *made = 0;
        *flag = made;
        return error;
    }
    """,
    good="""
    cudaError_t reset(int** flag) {
        int* made = nullptr;
        cudaError_t error = cudaMalloc(&made, sizeof(int));
        if (error == cudaSuccess) error = cudaMemset(made, 0, sizeof(int));
        *flag = made;
        return error;
    }
    """,
)
def device_memory_on_host(function: Function) -> Iterator[Hit]:
    if "__device__" in function.text:  # lambdas that the GPU runs
        return
    for name, (kind, call) in _allocations(function).items():
        if kind == "device" and len(function.named(name)) == 1 and not function.named(name)[0].writes:
            for node in _accesses(function, name, call.end_byte, function.body.end_byte):
                yield hit(function.file, node, f"`{name}` is memory of the device, which the host cannot access")
                break
    for node, name in _member_accesses(function):
        yield hit(function.file, node, f"`{name}` is memory of the device, which the host cannot access")


@declare(
    "KL268",
    "host-memory-in-flight",
    WARNING,
    on="host",
    summary="The host reads or drops memory that an asynchronous copy may still use",
    why="""
    `cudaMemcpyAsync` returns before the copy is done. Until its stream is synchronized the target has old values, and a
    local array or vector that goes out of scope is memory of something else by the time it is read. Synchronize the
    stream first.
    """,
    bad="""
    cudaError_t first(const float* x, float* value, cudaStream_t stream) {
        float* copy = nullptr;
        cudaError_t error = cudaMallocHost(&copy, 1024);
        if (error == cudaSuccess) error = cudaMemcpyAsync(copy, x, 1024, cudaMemcpyDeviceToHost, stream);
        *value = copy[0];
        return error;
    }
    """,
    good="""
    cudaError_t first(const float* x, float* value, cudaStream_t stream) {
        float* copy = nullptr;
        cudaError_t error = cudaMallocHost(&copy, 1024);
        if (error == cudaSuccess) error = cudaMemcpyAsync(copy, x, 1024, cudaMemcpyDeviceToHost, stream);
        if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
        *value = copy[0];
        return error;
    }
    """,
)
def host_memory_in_flight(function: Function) -> Iterator[Hit]:
    data = function.file.parsed.data
    for call, name in _copies_of_others(function):
        wait = _WAITS.search(data, call.end_byte, function.body.end_byte)
        read = next(_accesses(function, name, call.end_byte, wait.start() if wait else function.body.end_byte), None)
        if read is not None:
            yield hit(function.file, read, f"`{name}` is read while the copy may run: synchronize the stream first")
    for call in function.calls_named(("cudaMemcpyAsync",)):
        arguments = function.arguments(call)
        if len(arguments) < 4:
            continue
        kind = function.source(arguments[3])
        side = {"cudaMemcpyDeviceToHost": 0, "cudaMemcpyHostToDevice": 1}.get(kind)
        name = "" if side is None else _host_name(function, arguments[side])
        loop = function.loop_around(call)
        wait = _WAITS.search(data, call.end_byte if loop is None else loop.start_byte, function.body.end_byte)
        if side is None or not name or (loop is not None and (side or function.loop_around(loop) is not None)):
            continue
        if side == 0:
            end = function.body.end_byte if wait is None else wait.start()
            for node in _accesses(function, name, (loop or call).end_byte, end):
                yield hit(function.file, node, f"`{name}` is read while the copy may run: synchronize the stream first")
                break
        elif wait is None and _is_automatic(function, name):
            message = f"`{name}` ends with this function, and the copy may still read it: synchronize the stream first"
            yield hit(function.file, arguments[side], message)


@declare(
    "KL269",
    "wrong-free",
    WARNING,
    on="host",
    summary="Memory is used after it was freed, freed by another allocator, or never freed",
    why="""
    Memory of `cudaMalloc` belongs to `cudaFree`, of `cudaMallocHost` to `cudaFreeHost`, of `malloc` to `free`. What is
    freed may be given to somebody else at once. What no pointer reaches any more is lost until the process ends.
    """,
    bad="""
    cudaError_t read(float* host) {
        float* x = nullptr;
        cudaError_t error = cudaMalloc(&x, 1024);
        if (error != cudaSuccess) return error;
        error = cudaFree(x);
        return cudaMemcpy(host, x, 1024, cudaMemcpyDeviceToHost);
    }
    """,
    good="""
    cudaError_t read(float* host) {
        float* x = nullptr;
        cudaError_t error = cudaMalloc(&x, 1024);
        if (error != cudaSuccess) return error;
        error = cudaMemcpy(host, x, 1024, cudaMemcpyDeviceToHost);
        cudaFree(x);
        return error;
    }
    """,
)
def wrong_free(function: Function) -> Iterator[Hit]:
    made = _allocations(function)
    frees: dict[str, Node] = {}
    for call, name, freed_by in _frees(function):
        kind = made[name][0] if name in made else ""
        if kind and kind not in _FREED_BY[freed_by]:
            yield hit(function.file, call, f"`{name}` is {kind} memory: `{freed_by}` does not free it")
        used = _use_after(function, name, call) if name.isidentifier() else None
        if used is not None:
            yield hit(function.file, used, f"`{name}` is used after it was freed")
        frees[name] = call
    for name, (kind, call) in made.items():
        is_main = function.name == "main" and len(frees) < max(1, len(made) - 1)
        if kind in ("device", "pinned") and name not in frees and not is_main and not _escapes(function, name):
            yield hit(function.file, call, f"`{name}` is never freed, and nothing reaches it after this function")


@declare(
    "KL270",
    "unordered-streams",
    WARNING,
    on="host",
    needs=("cudaMemcpyAsync cudaMemsetAsync",),
    summary="Two streams access one buffer, and nothing orders them",
    why="""
    Work of different streams runs in any order: a kernel on one stream may start before a copy on another is done.
    Record an event behind the first and let the second stream wait for it, or use one stream.
    """,
    bad="""
    __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }

    cudaError_t run(float* x, const float* host, cudaStream_t copies, cudaStream_t work) {
        cudaError_t error = cudaMemcpyAsync(x, host, 1024, cudaMemcpyHostToDevice, copies);
        twice<<<1, 256, 0, work>>>(x);
        return error != cudaSuccess ? error : cudaGetLastError();
    }
    """,
    good="""
    __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }

    cudaError_t run(float* x, const float* host, cudaStream_t work) {
        cudaError_t error = cudaMemcpyAsync(x, host, 1024, cudaMemcpyHostToDevice, work);
        twice<<<1, 256, 0, work>>>(x);
        return error != cudaSuccess ? error : cudaGetLastError();
    }
    """,
)
def unordered_streams(function: Function) -> Iterator[Hit]:
    data = function.file.parsed.data
    work = sorted(_stream_work(function), key=lambda each: each[0].start_byte)
    last: dict[str, tuple[Node, str]] = {}
    for call, stream, pointers, written in work:
        for pointer in pointers:
            before = last.get(pointer)
            is_other = before is not None and before[1] != stream
            if before is not None and is_other and function.loop_around(before[0]) == function.loop_around(call):
                waited = _WAITS.search(data, before[0].end_byte, call.start_byte)
                if waited is None:
                    message = f"`{stream}` does not wait for `{before[1]}`, which uses `{pointer}`"
                    yield hit(function.file, call, message)
        last |= dict.fromkeys(written, (call, stream))


def _frees(function: Function) -> Iterator[tuple[Node, str, str]]:
    """Yield the calls that free memory, also by a function of the file, with the pointer and the name of CUDA's."""
    for call in function.calls_named(tuple(_FREED_BY)):
        arguments = function.arguments(call)
        yield call, function.source(arguments[0]) if arguments else "", function.callee(call)
    for call, callee, inner, given in calls_by_others(function, tuple(_FREED_BY)):
        arguments = callee.arguments(inner)
        freed = given.get(callee.source(arguments[0])) if arguments else None
        if freed is not None and not any(True for _ in callee.branches_around(inner)):
            yield call, function.source(freed), callee.callee(inner)


def _member_accesses(function: Function) -> Iterator[tuple[Node, str]]:
    """Yield the first access ``*state.x`` or ``state.x[i]`` of each member that the file allocates on the device."""
    sides = function.file.allocated_sides
    data = function.file.parsed.data[function.body.start_byte : function.body.end_byte] if sides else b""
    for name in sorted({name for name, side in sides if side == "device" and (name, "host") not in sides}):
        for found in re.finditer(rf"(?:\.|->){name}\b".encode(), data) if not function.named(name) else ():
            end = function.body.start_byte + found.end()
            member = function.body.descendant_for_byte_range(end - 1, end)
            owner = function.parent(member) if member is not None and member.type == "field_identifier" else None
            access = function.parent(owner)
            is_pointer = (
                access is not None and access.type == "pointer_expression" and function.source(access)[0] == "*"
            )
            is_element = access is not None and access.type == "subscript_expression"
            if access is None or owner is None or not (is_pointer or is_element):
                continue
            array, outer = access.child_by_field_id(fields.ARGUMENT), function.parent(access)
            is_address = outer is not None and outer.type == "pointer_expression"
            around = {each.type for each in function.around(access)}
            if array is not None and array.id == owner.id and not is_address and around.isdisjoint(_NO_ACCESS):
                yield access, function.source(owner)
                break


def _allocations(function: Function) -> dict[str, tuple[str, Node]]:
    """Return the local pointers that this function allocates once, with the kind of memory and the call."""
    found: dict[str, tuple[str, Node]] = {}
    repeated: set[str] = set()
    for call in function.calls_named(tuple(_ALLOCATED_BY)):
        target = next(iter(function.arguments(call)), None)
        name = _ADDRESS.fullmatch("" if target is None else function.source(target))
        variables = [] if name is None else function.named(name[1])
        if name is not None and len(variables) == 1 and variables[0] not in function.parameters:
            if name[1] in found:
                repeated.add(name[1])
            found[name[1]] = (_ALLOCATED_BY[function.callee(call)], call)
    for variable in function.all_variables():
        value = "" if variable.value is None else function.source(variable.value)
        if variable.is_pointer and _MALLOC.match(value):
            found[variable.name] = ("host", variable.declaration)
    return {name: made for name, made in found.items() if name not in repeated}


def _accesses(function: Function, name: str, start: int, end: int) -> Iterator[Node]:
    """Yield the accesses to elements of a pointer or container in a part of the text: ``x[0]``, ``*x``."""
    word = re.escape(name.encode())
    for found in re.finditer(_ACCESS % (word, word), function.file.parsed.data[start:end]):
        first, last = start + found.start(), start + found.end()
        node = function.body.descendant_for_byte_range(first, last)
        around = [] if node is None else [node, *function.around(node)]
        kinds = {each.type for each in around}
        before = function.file.parsed.data[max(0, first - 1) : first].strip()
        is_address = before in (b"&", b"*") or any(
            each.type == "pointer_expression" and function.source(each).startswith("&") for each in around[:3]
        )
        if node is not None and not is_address and kinds.isdisjoint(_NO_ACCESS):
            yield node


def _copies_of_others(function: Function) -> Iterator[tuple[Node, str]]:
    """Yield the calls of functions that begin a copy to the host and do not wait for it, with the host's memory: what
    they are given, or a member."""
    for call, callee, inner, given in calls_by_others(function, ("cudaMemcpyAsync",)):
        texts = [callee.source(each) for each in callee.arguments(inner)]
        if len(texts) > 3 and texts[3] == "cudaMemcpyDeviceToHost" and callee.loop_around(inner) is None:
            is_waited = _WAITS.search(function.file.parsed.data, inner.end_byte, callee.body.end_byte)
            target = given.get(texts[0])
            name = texts[0].removesuffix(".data()") if target is None else _host_name(function, target)
            is_member = any(name in each for each in function.file.members.values())
            if not is_waited and name and (target is not None or is_member) and function.loop_around(call) is None:
                yield call, name


def _host_name(function: Function, node: Node) -> str:
    """Return the name of a local host array, vector or pinned pointer that is copied from or to."""
    found = re.fullmatch(r"&?\s*(\w+)(?:\.data\(\))?(?:\[.*\]|\s*\+.*)?", function.source(node))
    variables = [] if found is None else function.named(found[1])
    if found is not None and not variables and any(found[1] in each for each in function.file.members.values()):
        return found[1]
    return variables[0].name if len(variables) == 1 and not variables[0].is_const else ""


def _is_automatic(function: Function, name: str) -> bool:
    """Return whether a name is a local vector or array of this function, which ends with it."""
    variable = next(iter(function.named(name)), None)
    if variable is None:
        return False
    is_held = variable.is_array or _CONTAINER.match(variable.type_text) is not None
    is_local = variable not in function.parameters and "static" not in variable.words and not variable.is_pointer
    return is_held and is_local and "&" not in variable.type_text and function.name != "main"


def _use_after(function: Function, name: str, call: Node) -> Node | None:
    """Return a use of a pointer behind the statement at the function's top level that frees it."""
    if any(True for _ in function.branches_around(call)) or function.loop_around(call) is not None:
        return None
    data, variables = function.file.parsed.data, function.named(name)
    if len(variables) != 1:
        return None
    for place in function.mentions(name):
        if place < call.end_byte:
            continue
        before, after = data[max(0, place - 2) : place].strip(), data[place + len(name) : place + len(name) + 3].strip()
        if before.endswith(b"&") or (after.startswith(b"=") and not after.startswith(b"==")):
            return None
        node = function.body.descendant_for_byte_range(place, place + len(name))
        owner = None if node is None else next((p for p in function.around(node) if p.type == "call_expression"), None)
        return node if owner is not None and node is not None and node.type == "identifier" else None
    return None


def _escapes(function: Function, name: str) -> bool:
    """Return whether anything else than calls of CUDA and kernels may keep the pointer."""
    for place in function.mentions(name):
        node = function.body.descendant_for_byte_range(place, place + len(name))
        around = [] if node is None else list(function.around(node))
        owner = next((each for each in around if each.type in _OWNERS), None)
        if owner is None or not {each.type for each in around}.isdisjoint(_KEEPERS):
            return True
        if owner.type == "call_expression":
            callee = function.callee(owner)
            is_launch = any(child.type == "kernel_call_syntax" for child in owner.named_children)
            if not (callee.startswith("cuda") or is_launch):
                return True
        elif owner.type == "init_declarator" and node is not None:
            value = owner.child_by_field_id(fields.VALUE)
            if value is not None and value.start_byte <= place < value.end_byte:
                return True
    return False


def _stream_work(function: Function) -> Iterator[tuple[Node, str, list[str], list[str]]]:
    """Yield the copies and launches on a stream, with the pointers that they access and may write. The default stream
    counts where other streams do not wait for it."""
    for call in function.calls_named(("cudaMemcpyAsync", "cudaMemsetAsync")):
        arguments = [function.source(each) for each in function.arguments(call)]
        position = 4 if function.callee(call) == "cudaMemcpyAsync" else 3
        if len(arguments) > position and _is_stream(arguments[position]):
            pointers = arguments[: position - 2]
            yield call, arguments[position], pointers, pointers[:1]
    for call in launches_in(function):
        syntax = next(child for child in call.named_children if child.type == "kernel_call_syntax")
        parts = [function.source(child) for child in syntax.named_children if child.type != "comment"]
        stream = parts[3] if len(parts) == 4 else "the default stream"
        if (len(parts) == 4 and _is_stream(stream)) or (len(parts) < 4 and "cudaStreamNonBlocking" in function.text):
            pointers = [function.source(each) for each in function.arguments(call) if _may_point(function, each)]
            yield call, stream, pointers, pointers


def _may_point(function: Function, argument: Node) -> bool:
    """Return whether an argument may be an address: sizes and other numbers may be given to any stream."""
    text, members = function.source(argument), {name for name, _ in function.file.member_pointers}
    if text.endswith("size()") or (argument.type == "field_expression" and text.rpartition(".")[2] not in members):
        return False
    named = [variable for name in function.names_in(argument) for variable in function.named(name)]
    return any(v.is_pointer or v.is_array or not (v.is_integer or _NUMBER.fullmatch(v.type_text)) for v in named)


_NUMBER = re.compile(r"(?:const\s+|constexpr\s+|static\s+)*(?:float|double|bool|char|half|__half|__nv_bfloat16|dim3)")


_STREAM = re.compile(r"(?:[A-Za-z_]\w*(?:\.|->))*[A-Za-z_]\w*(?:\[\w+\])?")


def _is_stream(text: str) -> bool:
    return _STREAM.fullmatch(text) is not None and text not in ("nullptr", "NULL")
