"""KL260 to KL262: host code of torch extensions: the current stream, contiguous inputs, messages of checks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda.declare import HINT, WARNING, declare, hit, launches_in
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Hit

STREAM = "at::cuda::getCurrentCUDAStream()"
_TENSOR = re.compile(r"\b(?:torch|at)::Tensor\b")
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
    text = function.file.parsed.between(function.node.start_byte, function.node.end_byte)
    if "TORCH_CHECK" not in text and "CHECK_CUDA" not in text and function.name not in function.file.bound_functions:
        return  # the checks may be those of a caller in another file
    for name in dict.fromkeys(_GIVEN.findall(text.partition("{")[0])):
        is_checked = re.search(
            rf"\b{name}\s*\.\s*(?:is_contiguous|contiguous|stride|strides|is_non_overlapping_and_dense)\b|\b{name}\s*=(?!=)"
            rf"|\b(?!TORCH_CHECK|CHECK_CUDA)\w*(?:check|CHECK|Check)\w*\s*\([^;]*\b{name}\b",
            text,
        )
        used = None if is_checked else _pointer_of(function, name)
        if used is not None:
            yield hit(function.file, used, f"`{name}` may not be contiguous: check `{name}.is_contiguous()`")


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


# --- below: helpers of the rules


def _pointer_of(function: Function, name: str) -> Node | None:
    for call in function.calls_with(b"data_ptr"):
        if re.match(rf"{name}\s*\.\s*(?:const_|mutable_)?data_ptr\b", function.source(call)):
            return call
    return None
