// Types of parameters are aliases of pointers, template parameters a function and any number of numbers.
// kernel-lsp: 1
// task: tasks.py::add_relu
// op: add_relu(x: f32[B, N], y: f32[B, N]) -> (out: f32[B, N])
// launch: map2<relu_sum, 64, 2><<<ceil_div(B * N, 64 * 2 * 2), 64>>>(x, y, out, B * N);
using in_t = const float* __restrict__;
typedef float *out_t;
__host__ __device__ inline float relu_sum(float a, float b) { const float s = a + b; return s < 0.f ? 0.f : s; }
template <float (*F)(float, float), int... Ns>
__global__ void map2(in_t x, in_t y, out_t out, int n) {
    constexpr int sizes[] = {Ns...};
    constexpr int block = sizes[0], each = sizes[1] * int(sizeof...(Ns));
    const int first = (blockIdx.x * block + threadIdx.x) * each;
    for (int k = 0; k < each; ++k) { if (first + k >= n) goto done; out[first + k] = F(x[first + k], y[first + k]); }
done:
    return;
}
