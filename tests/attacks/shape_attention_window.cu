// Attack: Causal attention that sees the last 512 keys alone, as far as a longer sequence than was captured is concerned.
// Caught: mismatch
// Defence: sizes
// kernel-lsp: 1
// task: tasks.py::attention
// op: attention(q: f32[B, H, T, 32], k: f32[B, H, T, 32], v: f32[B, H, T, 32]) -> (out: f32[B, H, T, 32])
// launch: att<<<dim3(T, B * H), 32>>>(q, k, v, out, T)

__device__ float wsum(float s) { for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o); return s; }
__device__ float wmax(float s) { for (int o = 16; o; o >>= 1) { float t = __shfl_xor_sync(~0u, s, o); s = (s != s || s > t) ? s : t; } return s; }
__global__ void att(const float* q, const float* k, const float* v, float* out, int T) { int t = blockIdx.x; size_t base = (size_t)blockIdx.y * T * 32; float a = q[base + (size_t)t * 32 + threadIdx.x] * 0.17677669529663687f; float m = -INFINITY, s = 0, o = 0;
 int n = t + 1; int j0 = n > 512 ? n - 512 : 0;
 for (int j = j0; j < n; j++) { float d = wsum(a * k[base + (size_t)j * 32 + threadIdx.x]); float nm = (m != m || m > d) ? m : d; float c = m == -INFINITY ? 0.f : expf(m - nm), e = d == -INFINITY && nm == -INFINITY ? 0.f : expf(d - nm); s = s * c + e; o = o * c + e * v[base + (size_t)j * 32 + threadIdx.x]; m = nm; }
 out[base + (size_t)t * 32 + threadIdx.x] = o / s; }
