// A template argument that has commas of its own.
// kernel-lsp: 1
// task: tasks.py::relu_and_scale
// op: relu_and_scale(x: f32[N]) -> (out: f32[N])
// launch: map<float, ops::Chain<ops::Relu, ops::Scale>><<<min(ceil_div(N, 1024), 2048), 256>>>(x, out, N)

#include <cuda/std/array>
#include <cuda/std/cstdint>
namespace ops {
struct Relu { __device__ float operator()(float v) const { return v < 0.f ? 0.f : v; } };
struct Scale { __device__ float operator()(float v) const { return v * 1.7f; } };
template <typename... F> struct Chain;
template <typename F> struct Chain<F> { __device__ float operator()(float v) const { return F{}(v); } };
template <typename F, typename... G> struct Chain<F, G...> { __device__ float operator()(float v) const { return Chain<G...>{}(F{}(v)); } };
}
template <typename T, typename Op>
__global__ void map(const T* __restrict__ x, T* __restrict__ out, int n) {
    constexpr int V = 4;
    const int stride = gridDim.x * blockDim.x * V;
    for (int i = (blockIdx.x * blockDim.x + threadIdx.x) * V; i < n; i += stride) {
        if (i + V <= n) {
            alignas(16) cuda::std::array<T, V> r;
            *reinterpret_cast<float4*>(&r) = *reinterpret_cast<const float4*>(x + i);
            for (auto& e : r) e = Op{}(e);
            *reinterpret_cast<float4*>(out + i) = *reinterpret_cast<float4*>(&r);
        } else {
            for (int j = i; j < n; ++j) out[j] = Op{}(x[j]);
        }
    }
}
