// The forward keeps a peak and a sum of each row: the backward needs one pass fewer.
// kernel-lsp: 1
// task: tasks.py::softmax
// op: softmax(x: f32[B, N]) -> (out: f32[B, N])
// keeps: peak: f32[B], total: f32[B]
// launch: forward_rows<<<B, 32>>>(x, out, peak, total, N)
// op: softmax_backward(grad_out: f32[B, N], x: f32[B, N], peak: f32[B], total: f32[B]) -> (grad_x: f32[B, N])
// launch: backward_rows<<<B, 32>>>(grad_out, x, peak, total, grad_x, N)

__device__ float sum_of_warp(float value) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    return value;
}

__global__ void forward_rows(const float* x, float* out, float* peak, float* total, int n) {
    const long long row = (long long)blockIdx.x * n;
    float largest = -INFINITY;
    for (int i = threadIdx.x; i < n; i += 32) {
        const float value = x[row + i];
        largest = value > largest || isnan(value) ? value : largest;
    }
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffff, largest, step);
        largest = other > largest || isnan(other) ? other : largest;
    }
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) sum += expf(x[row + i] - largest);
    sum = sum_of_warp(sum);
    for (int i = threadIdx.x; i < n; i += 32) out[row + i] = expf(x[row + i] - largest) / sum;
    if (threadIdx.x == 0) {
        peak[blockIdx.x] = largest;
        total[blockIdx.x] = sum;
    }
}

__global__ void backward_rows(const float* grad, const float* x, const float* peak, const float* total,
                              float* grad_x, int n) {
    const long long row = (long long)blockIdx.x * n;
    const float largest = peak[blockIdx.x], sum = total[blockIdx.x];
    float dot = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) dot += grad[row + i] * (expf(x[row + i] - largest) / sum);
    dot = sum_of_warp(dot);
    for (int i = threadIdx.x; i < n; i += 32) {
        grad_x[row + i] = (expf(x[row + i] - largest) / sum) * (grad[row + i] - dot);
    }
}
