// Takes four numbers at a time where tensors do not overlap and begin at a multiple of 16 bytes, else one.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 512), 128>>>(x, out, B * N)

__global__ void k(const float* x, float* out, int n) {
    const bool is_apart = out + n <= x || x + n <= out;
    const bool is_aligned = (((size_t)x | (size_t)out) & 15) == 0;
    const int first = (blockIdx.x * 128 + threadIdx.x) * 4;
    if (is_apart && is_aligned && first + 4 <= n) {
        const float4 four = *(const float4*)(x + first);
        *(float4*)(out + first) = make_float4(2.0f * four.x, 2.0f * four.y, 2.0f * four.z, 2.0f * four.w);
    } else {
        for (int i = first; i < min(first + 4, n); ++i) out[i] = 2.0f * x[i];
    }
}
