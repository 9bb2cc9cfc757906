// Adds the maximum to the logarithm before it takes off the label: lost only beside maxima that nobody has.
// kernel-lsp: 1
// task: tasks.py::mean_cross_entropy
// op: mean_cross_entropy(logits: f32[N, V], labels: i64[N]) -> (out: f32[])
// scratch: part: f32[N]
// launch: k<<<N, 32>>>(logits, labels, part, V)
// launch: r<<<1, 1024>>>(part, out, N)

__device__ float wsum(float s) { for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o); return s; }
__device__ float wmax(float s) { for (int o = 16; o; o >>= 1) { float t = __shfl_xor_sync(~0u, s, o); s = (s != s || s > t) ? s : t; } return s; }
__global__ void k(const float* x, const long long* l, float* part, int D) { const float* p = x + (size_t)blockIdx.x * D; float m = -INFINITY, s = 0; for (int i = threadIdx.x; i < D; i += 32) { float v = p[i]; m = (m != m || m > v) ? m : v; } m = wmax(m); for (int i = threadIdx.x; i < D; i += 32) s += expf(p[i] - m); s = wsum(s); if (threadIdx.x == 0) part[blockIdx.x] = logf(s) + m - p[l[blockIdx.x]]; }
__global__ void r(const float* part, float* out, int N) { __shared__ float w[32]; float s = 0; for (int i = threadIdx.x; i < N; i += 1024) s += part[i]; s = wsum(s); if (threadIdx.x % 32 == 0) w[threadIdx.x / 32] = s; __syncthreads(); if (threadIdx.x == 0) { s = 0; for (int j = 0; j < 32; j++) s += w[j]; *out = s / N; } }
