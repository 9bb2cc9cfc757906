// Rows are exponentiated into scratch with a padded stride, and divided in a second launch.
// kernel-lsp: 1
// task: tasks.py::softmax
// op: softmax(x: f32[B, N]) -> (out: f32[B, N])
// scratch: e: f32[B, N + 3], total: f32[B]
// launch: exponentiate<<<B, 64>>>(x, e, total, N, N + 3)
// launch: k<<<dim3(ceil_div(N, 64), B), 64>>>(e, total, out, N, N + 3)

__global__ void exponentiate(const float* x, float* e, float* total, int n, int stride) {
    __shared__ float part[64];
    const float* row = x + blockIdx.x * (long long)n;
    float largest = -INFINITY;
    for (int i = threadIdx.x; i < n; i += 64) largest = row[i] > largest || isnan(row[i]) ? row[i] : largest;
    part[threadIdx.x] = largest;
    __syncthreads();
    for (int i = 0; i < 64; ++i) largest = part[i] > largest || isnan(part[i]) ? part[i] : largest;
    __syncthreads();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 64) sum += e[blockIdx.x * (long long)stride + i] = expf(row[i] - largest);
    part[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < 64; ++i) sum += part[i];
        total[blockIdx.x] = sum;
    }
}

__global__ void k(const float* e, const float* total, float* out, int n, int stride) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[blockIdx.y * (long long)n + i] = e[blockIdx.y * (long long)stride + i] / total[blockIdx.y];
}
