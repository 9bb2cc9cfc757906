// The gradient of a layer with relu, with names of its own: where the layer's result is NaN none passes, and PyTorch lets
// it pass.
// kernel-lsp: 1
// task: tasks.py::scaled_relu
// op: layer(x: f32[B, D], w: f32[D]) -> (y: f32[B, D])
// launch: forward<<<ceil_div(B * D, 256), 256>>>(x, w, y, B * D, D)
// op: layer_backward(grad_y: f32[B, D], x: f32[B, D], w: f32[D]) -> (grad_x: f32[B, D], grad_w: f32[D])
// launch: to_x<<<ceil_div(B * D, 256), 256>>>(grad_y, x, w, grad_x, B * D, D)
// launch: to_w<<<ceil_div(D, 128), 128>>>(grad_y, x, w, grad_w, B, D)

__global__ void forward(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y, int n, int D) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float v = x[i] * w[i % D];
    y[i] = v < 0.0f ? 0.0f : v;
}

__global__ void to_x(const float* __restrict__ grad_y, const float* __restrict__ x, const float* __restrict__ w,
                     float* __restrict__ grad_x, int n, int D) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float v = x[i] * w[i % D];
    grad_x[i] = (v > 0.0f ? grad_y[i] : 0.0f) * w[i % D];
}

__global__ void to_w(const float* __restrict__ grad_y, const float* __restrict__ x, const float* __restrict__ w,
                     float* __restrict__ grad_w, int B, int D) {
    const int d = blockIdx.x * blockDim.x + threadIdx.x;
    if (d >= D) return;
    float sum = 0.0f;
    for (int b = 0; b < B; ++b) {
        const float v = x[(size_t)b * D + d] * w[d];
        sum += (v > 0.0f ? grad_y[(size_t)b * D + d] : 0.0f) * x[(size_t)b * D + d];
    }
    grad_w[d] = sum;
}
