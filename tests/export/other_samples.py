"""Operators beside RMSNorm, one for each thing that a plan can say. Each has its name, its task and its `.cu` text."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import Task

from .samples import rms_norm_cu, rms_norm_task, scalar, task, tensor


@dataclass(frozen=True)
class Sample:
    """`text` has ``NAME`` where the operator's name stands."""

    stem: str
    make_task: object
    text: str

    def task(self, name: str) -> Task:
        assert callable(self.make_task)
        return self.make_task(name)

    def cu_text(self, name: str) -> str:
        return self.text.replace("NAME", name)


TOTAL = Sample(
    "total",
    lambda name: task(name, (tensor("x", "N"),), "return x.sum()"),
    """// kernel-lsp: 1
// op: NAME(x: f32[N]) -> (out: f32[])
// fill: out = 0
// launch: add_up<<<min(ceil_div(N, 256), 1024), 256>>>(x, out, N)

__global__ void add_up(const float* x, float* out, long long N) {
    float sum = 0.0f;
    for (long long i = blockIdx.x * 256ll + threadIdx.x; i < N; i += gridDim.x * 256ll) sum += x[i];
    atomicAdd(out, sum);
}
""",
)
LINEAR_RELU = Sample(
    "linear_relu",
    lambda name: task(
        name,
        (tensor("x", "B", "K"), tensor("weight", "N", "K", qualified_name="fc.0.weight"), tensor("bias", "N")),
        "return F.linear(x, weight, bias).relu()",
        kind="module",
        module_settings={"fc.0.in_features": 4, "training": False},
    ),
    """// kernel-lsp: 1
// op: NAME(x: f32[B, K], weight: f32[N, K], bias: f32[N]) -> (out: f32[B, N])
// scratch: product: f32[B, N]
// library: aten::linear(x, weight, none) -> (product)
// launch: bias_relu<<<ceil_div(B * N, 256), 256>>>(product, bias, out, B * N, N)

__global__ void bias_relu(const float* product, const float* bias, float* out, int count, int N) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < count) out[i] = fmaxf(product[i] + bias[i % N], 0.0f);
}
""",
)
ROW_MAX = Sample(
    "row_max",
    lambda name: task(name, (tensor("x", "B", "D"),), "values = x.max(dim=1)\nreturn values[0], values[1]"),
    """// kernel-lsp: 1
// op: NAME(x: f32[B, D]) -> (values: f32[B], indices: i64[B])
// where: D <= 4096 and B % (D - 1) == 0
// launch[D <= 32]: short_rows<D><<<B, 32>>>(x, values, indices)
// launch[D > 32]: long_rows<<<B, 256, D * 4>>>(x, values, indices, D) cluster=2

template <int D> __global__ void short_rows(const float* x, float* values, long long* indices) {}
__global__ void long_rows(const float* x, float* values, long long* indices, int D) {}
""",
)
AWKWARD_NAMES = Sample(
    "awkward",
    lambda name: task(
        name,
        (
            tensor("stream", "launches", "F"),
            tensor("key", "launches", "F"),
            scalar("operator", 2),
            scalar("flag", True),
        ),
        "found = stream * operator\nreturn found + key if flag else found",
    ),
    """// kernel-lsp: 1
// op: NAME(stream: f32[launches, F], key: f32[launches, F], operator: int) -> (out: f32[launches, F])
// launch: combine<<<launches, F>>>(stream, key, out, F, operator)

__global__ void combine(const float* stream, const float* key, float* out, int F, int factor) {
    int i = blockIdx.x * F + threadIdx.x;
    out[i] = stream[i] * factor + key[i];
}
""",
)
CONSTANT_SHAPE = Sample(
    "embed",
    lambda name: task(
        name,
        (tensor("ids", "T", dtype=DType.I64), tensor("table", "100", "64", dtype=DType.BF16), scalar("scale", 0.5)),
        "return F.embedding(ids, table) * 0.5",
    ),
    """// kernel-lsp: 1
// op: NAME(ids: i64[T], table: bf16[100, 64]) -> (out: bf16[T, 64])
// scratch: seen: i32[T + 1], also: u8[4]
// fill: seen = -1
// launch: look_up<true, __nv_bfloat16><<<T, 64>>>(ids, table, out, seen, 0.5)

#include <cuda_bf16.h>
template <bool SCALED, typename T_>
__global__ void look_up(const long long* ids, const T_* table, T_* out, int* seen, float scale) {}
""",
)
LIBRARY_ONLY = Sample(
    "product",
    lambda name: task(name, (tensor("a", "M", "K"), tensor("b", "K", "N")), "return a @ b"),
    """// kernel-lsp: 1
// op: NAME(a: f32[M, K], b: f32[K, N]) -> (out: f32[M, N])
// library: aten::mm(a, b) -> (out)
// op: NAME_backward(grad_out: f32[M, N], a: f32[M, K], b: f32[K, N]) -> (grad_b: f32[K, N])
// scratch: turned: f32[K, M]
// launch: turn<<<ceil_div(M * K, 256), 256>>>(a, turned, M, K)
// library: aten::mm(turned, grad_out) -> (grad_b)

__global__ void turn(const float* a, float* turned, int M, int K) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < M * K) turned[i % K * M + i / K] = a[i];
}
""",
)
MANY_ARGUMENTS = Sample(
    "many",
    lambda name: task(
        name,
        tuple(tensor(f"argument_number_{number}", "ROWS_OF_ALL", "COLUMNS_OF_ALL") for number in range(12)),
        "return " + " + ".join(f"argument_number_{number}" for number in range(3)),
    ),
    "// kernel-lsp: 1\n// op: NAME("
    + ", ".join(f"argument_number_{number}: f32[ROWS_OF_ALL, COLUMNS_OF_ALL]" for number in range(12))
    + ") -> (out: f32[ROWS_OF_ALL, COLUMNS_OF_ALL])\n// launch: add<<<ROWS_OF_ALL, 256>>>("
    + ", ".join(f"argument_number_{number}" for number in range(12))
    + ", out, ROWS_OF_ALL * COLUMNS_OF_ALL)\n\n__global__ void add("
    + ", ".join(f"const float* a{number}" for number in range(12))
    + ", float* out, int n) {}\n",
)
BAKED_NUMBER = Sample(
    "softmax_with_a_temperature_baked",
    lambda name: task(name, (tensor("scores", "B", "D"), scalar("temperature", 0.7)), "return scores / 0.7"),
    """// kernel-lsp: 1
// op: NAME(scores: f32[B, D], temperature: float) -> (out: f32[B, D])
// launch: divide<<<B, 256>>>(scores, out, D)
// op: NAME_backward(grad_out: f32[B, D], scores: f32[B, D], temperature: float) -> (grad_scores: f32[B, D])
// launch: divide<<<B, 256>>>(grad_out, grad_scores, D)

__global__ void divide(const float* scores, float* out, int D) {
    for (int i = threadIdx.x; i < D; i += 256) out[blockIdx.x * D + i] = scores[blockIdx.x * D + i] / 0.7f;
}
""",
)
MANY_RESULTS = Sample(
    "weighted_sum_of_many",
    lambda name: task(
        name,
        tuple(tensor(f"argument_{number}", "B", "D") for number in range(6)),
        "return " + " + ".join(f"argument_{number} * {number + 1}" for number in range(6)),
    ),
    "// kernel-lsp: 1\n// op: NAME("
    + ", ".join(f"argument_{number}: f32[B, D]" for number in range(6))
    + ") -> (out: f32[B, D])\n// launch: add<<<B, 256>>>("
    + ", ".join(f"argument_{number}" for number in range(6))
    + ", out, D)\n// op: NAME_backward(grad_out: f32[B, D], "
    + ", ".join(f"argument_{number}: f32[B, D]" for number in range(6))
    + ") -> ("
    + ", ".join(f"grad_argument_{number}: f32[B, D]" for number in range(6))
    + ")\n// launch: scale<<<B, 256>>>(grad_out, "
    + ", ".join(f"grad_argument_{number}" for number in range(6))
    + ", D)\n\n__global__ void add("
    + ", ".join(f"const float* a{number}" for number in range(6))
    + ", float* out, int D) {}\n__global__ void scale(const float* g, "
    + ", ".join(f"float* a{number}" for number in range(6))
    + ", int D) {}\n",
)
ONE_GRADIENT = Sample(
    "gated_sum",
    lambda name: task(name, tuple(tensor(each, "N") for each in "xyzw"), "return (x + y) * z + w"),
    """// kernel-lsp: 1
// op: NAME(x: f32[N], y: f32[N], z: f32[N], w: f32[N]) -> (out: f32[N])
// launch: add<<<ceil_div(N, 256), 256>>>(x, y, z, w, out, N)
// op: NAME_backward(grad_out: f32[N], x: f32[N], y: f32[N], z: f32[N], w: f32[N])
//    -> (grad_x: f32[N], grad_y = grad_x, grad_z: f32[N], grad_w = grad_out)
// launch: scale<<<ceil_div(N, 256), 256>>>(grad_out, x, y, z, grad_x, grad_z, N)

__global__ void add(const float* x, const float* y, const float* z, const float* w, float* out, int N) {}
__global__ void scale(const float* g, const float* x, const float* y, const float* z, float* gx, float* gz, int N) {}
""",
)
RENAMED = Sample(
    "weighted",
    lambda name: task(name, (tensor("weights", "B", "D"), tensor("value", "D")), "return weights * value"),
    """// kernel-lsp: 1
// op: NAME(weights: f32[B, D], value: f32[D]) -> (output: f32[B, D])
// launch: weigh<<<B, 256>>>(weights, value, output, D)
// op: NAME_backward(grad_output: f32[B, D], weights: f32[B, D], value: f32[D])
//     -> (grad_weights: f32[B, D], grad_value: f32[D])
// launch: sums<<<D, 256>>>(grad_output, weights, value, grad_weights, grad_value, B, D)

__global__ void weigh(const float* weights, const float* value, float* output, int D) {}
__global__ void sums(const float* g, const float* weights, const float* value, float* gw, float* gv, int B, int D) {}
""",
)
"""Has an argument and a result whose names the operator file has for itself."""
INTEGER = Sample(
    "times",
    lambda name: task(name, (tensor("x", "B", "D"), scalar("n", 2)), "return x * n"),
    """// kernel-lsp: 1
// op: NAME(x: f32[B, D], n: int) -> (out: f32[B, D])
// where: n > 0 and D % n == 0
// launch: times<<<B, 256>>>(x, out, D, n)

__global__ void times(const float* x, float* out, int D, int n) {}
""",
)
RMS_NORM = Sample("rms_norm", rms_norm_task, rms_norm_cu("NAME"))
RMS_NORM_MODULE = Sample(
    "rms_norm_module",
    lambda name: rms_norm_task(name, "module"),
    rms_norm_cu("NAME", with_backward=False, with_eps=False),
)
SAMPLES = (
    RMS_NORM,
    RMS_NORM_MODULE,
    TOTAL,
    LINEAR_RELU,
    ROW_MAX,
    AWKWARD_NAMES,
    CONSTANT_SHAPE,
    LIBRARY_ONLY,
    MANY_ARGUMENTS,
    BAKED_NUMBER,
    MANY_RESULTS,
    RENAMED,
)
