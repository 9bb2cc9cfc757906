// Ways that two dims decide on together: squares, whole numbers of vectors, one number of elements, many long rows.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, D]) -> (out: f32[B, D])
// launch: k<<<ceil_div(B * D, 128), 128>>>(x, out, B, D)

__global__ void k(const float* __restrict__ x, float* __restrict__ out, int b, int d) {
    const int total = b * d, i = blockIdx.x * 128 + threadIdx.x;
    if (total % 4 == 0) {
        if (i < total / 4) {
            float4 v = reinterpret_cast<const float4*>(x)[i];
            v.x *= 2.0f, v.y *= 2.0f, v.z *= 2.0f, v.w *= 2.0f;
            reinterpret_cast<float4*>(out)[i] = v;
        }
    } else if (b == d) {
        if (i < total) out[i % d * d + i / d] = 2.0f * x[i % d * d + i / d];
    } else if (total == 20449 || (b > 100 && d > 3000)) {
        if (i < total) out[total - 1 - i] = x[total - 1 - i] + x[total - 1 - i];
    } else if (i < total) {
        out[i] = 2.0f * x[i];
    }
}
