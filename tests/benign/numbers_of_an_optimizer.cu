// Rates between zero and one, a guard, and roots that numbers of the other sign have none of.
// kernel-lsp: 1
// task: tasks.py::adam
// op: adam(p: f32[N], g: f32[N], m: f32[N], v: f32[N], lr: float, b1: float, b2: float, eps: float)
//   -> (moved: f32[N], mean: f32[N], square: f32[N])
// launch: k<<<ceil_div(N, 256), 256>>>(p, g, m, v, moved, mean, square, lr, b1, b2, 1 - b1, 1 - b2, eps, N)

__global__ void k(const float* p, const float* g, const float* m, const float* v, float* moved, float* mean,
                  float* square, float lr, float b1, float b2, float c1, float c2, float eps, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float first = b1 * m[i] + c1 * g[i], second = b2 * v[i] + c2 * g[i] * g[i];
    mean[i] = first;
    square[i] = second;
    moved[i] = p[i] - lr * first / (sqrtf(second) + eps);
}
