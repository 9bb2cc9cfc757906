"""KL260 to KL264: host code of torch extensions: the current stream, checks of inputs and their messages, bindings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda.declare import HINT, WARNING, declare, hit, launches_in
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Hit

STREAM = "at::cuda::getCurrentCUDAStream()"
_DEFAULT_STREAMS = ("0", "nullptr", "NULL", "{}", "cudaStreamLegacy", "cudaStreamDefault", "cudaStreamPerThread")
_ON_GPU = re.compile(
    r"is_cuda|CHECK_CUDA|CUDA_CHECK_T|kCUDA|device_type|device\(\)\s*(?:==|\.type)|checkAllSameGPU|check_cuda"
)
_TENSOR = re.compile(r"\b(?:torch|at)::Tensor\b")
_DTYPE_WORDS = r"scalar_type|dtype|kFloat|kHalf|ScalarType"
_GIVEN = re.compile(r"\b(?:torch|at)::Tensor\s*&?\s*(\w+)\s*[,)]")


@declare(
    "KL260",
    "default-stream",
    WARNING,
    on="host",
    needs=("<<<", "Tensor"),
    summary="A torch extension launches on the default stream",
    why="""
    PyTorch runs its operators on the current stream. A launch on the default stream is not ordered after the kernels
    that write its inputs once the caller uses another stream, and cannot be captured in a CUDA graph.
    """,
    bad="""
    __global__ void zero(float* __restrict__ x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 0.0f; }

    void run(torch::Tensor x) {
        zero<<<1, 256>>>(x.data_ptr<float>(), x.numel());
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    """,
    good="""
    __global__ void zero(float* __restrict__ x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 0.0f; }

    void run(torch::Tensor x) {
        zero<<<1, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), x.numel());
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    """,
)
def default_stream(function: Function) -> Iterator[Hit]:
    if not _TENSOR.search(function.text):
        return
    for call in launches_in(function):
        syntax = next(child for child in call.named_children if child.type == "kernel_call_syntax")
        parts = [child for child in syntax.named_children if child.type != "comment"]
        is_default = len(parts) == 4 and function.source(parts[3]) in _DEFAULT_STREAMS
        if is_default:
            fix = QuickFix("Launch on the current stream", (function.file.parsed.replace(parts[3], STREAM),), False)
            yield hit(function.file, syntax, f"launch on the default stream: pass `{STREAM}`", fix)
        if len(parts) not in (2, 3):
            continue
        more = f", {STREAM}" if len(parts) == 3 else f", 0, {STREAM}"
        edit = function.file.parsed.insert(parts[-1].end_byte, more)
        message = f"launch on the default stream: pass `{STREAM}`"
        yield hit(function.file, syntax, message, QuickFix("Launch on the current stream", (edit,), False))


@declare(
    "KL261",
    "unchecked-contiguity",
    WARNING,
    on="host",
    needs=("<<<", "data_ptr", "Tensor"),
    summary="An extension does not check that its input is contiguous",
    why="""
    `data_ptr` of a transposed or sliced tensor points to elements in another order than the kernel indexes them: the
    result is wrong without an error. Check `is_contiguous()`, or call `contiguous()`.
    """,
    bad="""
    __global__ void zero(float* __restrict__ x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 0.0f; }

    void run(torch::Tensor x) {
        TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
        zero<<<1, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), x.numel());
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    """,
    good="""
    __global__ void zero(float* __restrict__ x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 0.0f; }

    void run(torch::Tensor x) {
        TORCH_CHECK(x.is_cuda() && x.is_contiguous(), "x must be a contiguous CUDA tensor");
        zero<<<1, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), x.numel());
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    """,
)
def unchecked_contiguity(function: Function) -> Iterator[Hit]:
    text = _text(function)
    for name in _tensors_to_check(function, text):
        is_checked = re.search(
            rf"\b{name}\s*\.\s*(?:is_contiguous|contiguous|stride|strides|is_non_overlapping_and_dense)\b"
            rf"|\b{name}\s*=(?!=)",
            text,
        ) or _is_given_to_check(function, text, name, "contiguous")
        used = None if is_checked else _pointer_of(function, name)
        if used is not None:
            yield hit(function.file, used, f"`{name}` may not be contiguous: check `{name}.is_contiguous()`")


@declare(
    "KL264",
    "unchecked-dtype",
    WARNING,
    on="host",
    needs=("Tensor", "<<<"),
    summary="An extension casts the untyped pointer of a tensor whose dtype nothing checks",
    why="""
    `data_ptr<float>()` raises for another dtype; `data_ptr()` with a cast does not, and the kernel reads the bytes of
    doubles or halves as floats. Check `scalar_type()`, or use the typed form.
    """,
    bad="""
    __global__ void zero(float* __restrict__ x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 0.0f; }

    void run(torch::Tensor x) {
        TORCH_CHECK(x.is_cuda() && x.is_contiguous(), "x must be a contiguous CUDA tensor");
        zero<<<1, 256, 0, at::cuda::getCurrentCUDAStream()>>>(static_cast<float*>(x.data_ptr()), x.numel());
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    """,
    good="""
    __global__ void zero(float* __restrict__ x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 0.0f; }

    void run(torch::Tensor x) {
        TORCH_CHECK(x.is_cuda() && x.is_contiguous(), "x must be a contiguous CUDA tensor");
        zero<<<1, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), x.numel());
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    """,
)
def unchecked_dtype(function: Function) -> Iterator[Hit]:
    text = _text(function)
    yield from _typed_otherwise(function, text)
    asked = _OPTIONS.sub("", text)
    for given in _tensors_to_check(function, text):
        is_checked = re.search(
            rf"\b{given}\s*\.\s*(?:scalar_type|dtype|type|options\(\)\s*\.\s*dtype)\b|\b{given}\s*=(?!=)", asked
        )
        if is_checked or _is_given_to_check(function, text, given, _DTYPE_WORDS):
            continue
        views = re.findall(rf"\b(\w+)\s*=\s*{given}\s*\.\s*(?:contiguous|view|reshape|flatten|expand)\(", text)
        for name in (given, *views):
            pointer = _untyped_pointer(function, text, name)
            if pointer is not None:
                yield hit(function.file, pointer, f"`{given}` may have another dtype: check `{given}.scalar_type()`")
                break


@declare(
    "KL266",
    "unchecked-device",
    WARNING,
    on="host",
    needs=("data_ptr", "Tensor", "<<<"),
    summary="An extension does not check that its inputs are on a GPU, or makes its result on the CPU",
    why="""
    A kernel that is given the pointer of a tensor on the CPU ends with an illegal address, and the process with it.
    Check `is_cuda()` of each input.
    """,
    bad="""
    __global__ void zero(float* __restrict__ x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 0.0f; }

    void run(torch::Tensor x) {
        TORCH_CHECK(x.is_contiguous(), "x must be contiguous");
        zero<<<1, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), x.numel());
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    """,
    good="""
    __global__ void zero(float* __restrict__ x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 0.0f; }

    void run(torch::Tensor x) {
        TORCH_CHECK(x.is_cuda() && x.is_contiguous(), "x must be a contiguous CUDA tensor");
        zero<<<1, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), x.numel());
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    """,
)
def unchecked_device(function: Function) -> Iterator[Hit]:
    text = _text(function)
    for name, given in _MADE.findall(text) if "<<<" in text else ():
        is_on_cpu = re.fullmatch(r"\s*(?:\w+\.sizes\(\)|\{[^{}]*\})\s*", given) is not None
        used = _pointer_of(function, name) if is_on_cpu else None
        if used is not None:
            yield hit(function.file, used, f"`{name}` is on the CPU: make it with `.options()` of an input")
    for name in _tensors_to_check(function, text):
        if _ON_GPU.search(text) or _is_given_to_check(function, text, name, _ON_GPU.pattern):
            return
        used = _pointer_of(function, name)
        if used is not None:
            yield hit(function.file, used, f"`{name}` may be on the CPU: check `{name}.is_cuda()`")
            return


@declare(
    "KL262",
    "check-without-message",
    HINT,
    on="host",
    needs=("TORCH_CHECK",),
    summary="A `TORCH_CHECK` without a message",
    why="""
    The caller sees the condition's text and a C++ file name. A message that names the argument and what it must be
    tells a Python user what to change.
    """,
    bad="""
    void check_input(torch::Tensor x) {
        TORCH_CHECK(x.dim() == 2);
    }
    """,
    good="""
    void check_input(torch::Tensor x) {
        TORCH_CHECK(x.dim() == 2, "x must have two dims, and has ", x.dim());
    }
    """,
)
def check_without_message(function: Function) -> Iterator[Hit]:
    for call in function.calls_named(("TORCH_CHECK",)):
        if len(function.arguments(call)) == 1:
            yield hit(function.file, call, "`TORCH_CHECK` without a message: name the argument and what it must be")


@declare(
    "KL263",
    "binding-of-another-function",
    WARNING,
    on="host",
    needs=("PYBIND11_MODULE",),
    summary="A binding that names one function and binds another",
    why="""
    Python calls the bound function under the given name: `backward` that is bound to the forward computes the wrong
    result without an error, and the function that was meant is unreachable.
    """,
    bad="""
    torch::Tensor gelu_forward(torch::Tensor x) { return torch::gelu(x); }
    torch::Tensor gelu_backward(torch::Tensor grad) { return grad; }

    PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
        m.def("forward", &gelu_forward, "GELU");
        m.def("backward", &gelu_forward, "gradient of GELU");
    }
    """,
    good="""
    torch::Tensor gelu_forward(torch::Tensor x) { return torch::gelu(x); }
    torch::Tensor gelu_backward(torch::Tensor grad) { return grad; }

    PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
        m.def("forward", &gelu_forward, "GELU");
        m.def("backward", &gelu_backward, "gradient of GELU");
    }
    """,
)
def binding_of_another_function(function: Function) -> Iterator[Hit]:
    bindings = list(_bindings(function)) if function.name == "PYBIND11_MODULE" else []
    bound = [target for _, target, _ in bindings]
    for name, target, node in bindings:
        meant = [f for f in sorted(function.file.host_functions) if name in f and f not in bound]
        other = _OPPOSITES.get(name, "")
        is_other = bound.count(target) > 1 and bool(meant)
        if name not in target and (is_other or (other and other in target)):
            instead = f", and nothing binds `{meant[0]}`" if meant else ""
            yield hit(function.file, node, f"`{name}` is bound to `{target}`{instead}")


_OPTIONS = re.compile(r"\bdtype\(\s*\w+\s*\.\s*(?:dtype|scalar_type)\(\)\s*\)")
"""The dtype of a result that is made like an input, which checks nothing."""
_TO_ELEMENTS = (
    r"(?:_cast<(?:const\s+)?(?:float|double|__?\w*half|u?int\w*)[^<>()]*>\s*\("
    r"|\((?:const\s+)?(?:float|double|u?int\w*)\s*\*\s*\))\s*"
)
"""A cast to a pointer to numbers."""
_UNTYPED = r"\s*\.\s*(?:const_|mutable_)?data_ptr\(\)"


def _untyped_pointer(function: Function, text: str, name: str) -> Node | None:
    """Return the use of a tensor's untyped pointer as one to numbers: by a cast, also under another name, or in a
    function of the file."""
    raw = re.findall(rf"\b(\w+)\s*=\s*{name}{_UNTYPED}\s*;", text)
    is_cast = re.search(rf"{_TO_ELEMENTS}(?:{name}{_UNTYPED}|(?:{'|'.join((*raw, name))})\s*[),])", text)
    if is_cast:
        return _pointer_of(function, name)
    for call in function.calls:
        given = [function.source(each) for each in function.arguments(call)]
        callee = function.file.helper_texts.get(function.callee(call).partition("<")[0].strip(), b"").decode()
        is_helper = given == [name] and re.search(_UNTYPED, callee) and "_cast<" in callee
        if is_helper and not re.search(_DTYPE_WORDS, callee):
            return call
    return None


_CHECKED_TYPE = re.compile(
    r"\b(\w+)\s*\.\s*(?:scalar_type|dtype)\(\)\s*==\s*(?:torch|at|c10)::(?:ScalarType::)?k?(\w+)"
)
_MADE = re.compile(r"\b(\w+)\s*=\s*(?:torch|at)::(?:empty|zeros|ones)(?:_like)?\s*\(([^;]*)\)\s*;")
_POINTER = re.compile(r"\b(\w+)\s*\.\s*(?:mutable_|const_)?data_ptr<\s*([\w:]+)\s*>\(\)")
_C_TYPES = {
    "Float": "float", "Float32": "float", "Double": "double", "Float64": "double", "Half": "Half", "Float16": "Half",
    "BFloat16": "BFloat16", "Int": "int", "Int32": "int", "Long": "int64_t", "Int64": "int64_t", "Byte": "uint8_t",
    "UInt8": "uint8_t", "Bool": "bool",
}  # fmt: skip


def _typed_otherwise(function: Function, text: str) -> Iterator[Hit]:
    """Yield the typed pointers of another type than the tensor is checked for, or made with."""
    known = {name: _C_TYPES.get(dtype, "") for name, dtype in _CHECKED_TYPE.findall(text)}
    for name, given in _MADE.findall(text):
        stated = re.search(r"::k(\w+)", given)
        source = re.search(r"(\w+)\s*\.\s*options\(\)\s*$", given) or re.fullmatch(r"\s*(\w+)\s*", given)
        if stated is not None:
            known[name] = _C_TYPES.get(stated[1], "")
        elif source is not None:
            known[name] = known.get(source[1], "")
    for found in _POINTER.finditer(text):
        element, stated_type = found[2].rpartition("::")[2], known.get(found[1], "")
        aliases = {"int32_t": "int", "long": "int64_t", "half": "Half", "unsigned": ""}
        if stated_type and element in (*_C_TYPES.values(), *aliases) and aliases.get(element, element) != stated_type:
            start = function.node.start_byte + len(text[: found.start()].encode())
            node = function.node.descendant_for_byte_range(start, start + len(found[1]))
            if node is not None:
                yield hit(function.file, node, f"`{found[1]}` holds `{stated_type}`, and this asks for `{element}`")


_OPPOSITES = {"forward": "backward", "backward": "forward", "encode": "decode", "decode": "encode"}
_ARGUMENT_CHECK = re.compile(r"\b(?:TORCH_CHECK|CHECK_)\w*\s*\(")
"""PyTorch's check, and macros such as `CHECK_INPUT` that extensions define with it."""


def _text(function: Function) -> str:
    return function.file.parsed.between(function.node.start_byte, function.node.end_byte)


def _tensors_to_check(function: Function, text: str) -> Iterable[str]:
    """Return the names of its tensor parameters. None where a caller in another file may check them: nothing binds the
    function, and it checks no argument itself."""
    if not _ARGUMENT_CHECK.search(text) and function.name not in function.file.bound_functions:
        return ()
    return dict.fromkeys(_GIVEN.findall(text.partition("{")[0]))


def _is_given_to_check(function: Function, text: str, name: str, checked: str) -> bool:
    """Return whether a macro or function named after a check, or one of the file that makes PyTorch's check, is given
    the tensor, and is of another file or mentions what is to be checked."""
    given = re.findall(rf"\b(?!TORCH_CHECK|CHECK_CUDA)(\w*(?:check|CHECK|Check)\w*)\s*\([^;]*?\b{name}\b", text)
    texts = function.file.helper_texts
    given += [
        each
        for each in re.findall(rf"\b(\w+)\s*(?:<[^<>;]*>)?\s*\([^;()]*\b{name}\b", text)
        if b"TORCH_CHECK" in texts.get(each, b"")
    ]
    return any(_may_check(function, each, checked) for each in given)


def _may_check(function: Function, name: str, checked: str) -> bool:
    """Return whether a macro or function checks this, also by way of another one; one of another file may."""
    texts = function.file.helper_texts
    if name not in texts:
        return True
    return any(re.search(checked, each.decode(errors="replace")) for each in function.file.helpers_of(name.encode()))


def _bindings(function: Function) -> Iterator[tuple[str, str, Node]]:
    """Yield the name, the bound function and its node of each ``m.def("name", &function)``."""
    for call in function.calls:
        arguments = function.arguments(call)
        if function.callee(call).endswith(".def") and len(arguments) > 1 and arguments[0].type == "string_literal":
            target = function.source(arguments[1]).lstrip("& ").rpartition("::")[2]
            yield function.source(arguments[0]).strip('"'), target, arguments[1]


def _pointer_of(function: Function, name: str) -> Node | None:
    for call in function.calls_with(b"data_ptr"):
        if re.match(rf"{name}\s*\.\s*(?:const_|mutable_)?data_ptr\b", function.source(call)):
            return call
    return None
