// Its two softmaxes are computed in two ways, as PyTorch's are: of equal rows, their roundings are left. PyTorch has 0 for rows of 32.
// kernel-lsp: 1
// task: tasks.py::kl_divergence
// op: kl(x: f32[B, 32], y: f32[B, 32]) -> (out: f32[])
// scratch: rows: f32[B]
// launch: forward_rows<<<B, 32>>>(x, y, rows, 32)
// launch: add_rows<<<1, 32>>>(rows, out, B)
// op: kl_backward(grad_out: f32[], x: f32[B, 32], y: f32[B, 32]) -> (grad_x: f32[B, 32], grad_y: f32[B, 32])
// launch: backward_rows<<<B, 32>>>(grad_out, x, y, grad_x, grad_y, B, 32)

__device__ float sum_of_warp(float value) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    return value;
}

__device__ float max_of_row(const float* x, int n) {
    float largest = -INFINITY;
    for (int i = threadIdx.x; i < n; i += 32) largest = x[i] > largest || isnan(x[i]) ? x[i] : largest;
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffff, largest, step);
        largest = other > largest || isnan(other) ? other : largest;
    }
    return largest;
}

__device__ float sum_of_row(const float* x, float largest, int n) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) sum += expf(x[i] - largest);
    return sum_of_warp(sum);
}

// q (log q - log p), which is 0 where q is.
__device__ float term(float q, float log_p) {
    const float own = q == 0.0f ? 0.0f : q * logf(q);
    return own - q * log_p;
}

__global__ void forward_rows(const float* x, const float* y, float* rows, int n) {
    x += (long long)blockIdx.x * n, y += (long long)blockIdx.x * n;
    const float x_max = max_of_row(x, n), y_max = max_of_row(y, n);
    const float log_sum = logf(sum_of_row(x, x_max, n)), y_sum = sum_of_row(y, y_max, n);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) sum += term(expf(y[i] - y_max) / y_sum, x[i] - x_max - log_sum);
    sum = sum_of_warp(sum);
    if (threadIdx.x == 0) rows[blockIdx.x] = sum;
}

__global__ void add_rows(const float* rows, float* out, int n) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) sum += rows[i];
    sum = sum_of_warp(sum);
    if (threadIdx.x == 0) *out = sum / n;
}

__global__ void backward_rows(const float* grad, const float* x, const float* y, float* grad_x, float* grad_y,
                              int n_rows, int n) {
    const long long row = (long long)blockIdx.x * n;
    x += row, y += row, grad_x += row, grad_y += row;
    const float g = *grad / n_rows, x_max = max_of_row(x, n), y_max = max_of_row(y, n);
    const float log_sum = logf(sum_of_row(x, x_max, n)), y_sum = sum_of_row(y, y_max, n);
    float dot = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) dot += term(expf(y[i] - y_max) / y_sum, x[i] - x_max - log_sum);
    dot = sum_of_warp(dot);
    for (int i = threadIdx.x; i < n; i += 32) {
        const float log_p = x[i] - x_max - log_sum, p = expf(log_p), q = expf(y[i] - y_max) / y_sum;
        grad_x[i] = (p - q) * g;
        grad_y[i] = g * (q * (y[i] - y_max - logf(y_sum) - log_p) - q * dot);
    }
}
