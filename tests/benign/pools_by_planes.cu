// A block for each piece of each plane: the planes of a batch are along the grid's last dim, which has 65,535 at most.
// kernel-lsp: 1
// task: tasks.py::pooled
// op: pooled(x: f32[B, C, H, W]) -> (out: f32[B, C, (H - 1) // 2 + 1, (W - 1) // 2 + 1])
// launch: pool<<<dim3(ceil_div((W - 1) // 2 + 1, 16), ceil_div((H - 1) // 2 + 1, 16), B * C), dim3(16, 16)>>>(x, out, H, W)

__global__ void pool(const float* __restrict__ x, float* __restrict__ out, int height, int width) {
    const int out_height = (height - 1) / 2 + 1, out_width = (width - 1) / 2 + 1;
    const int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= out_height || column >= out_width) return;
    const float* plane = x + (size_t)blockIdx.z * height * width;
    float sum = 0.0f;
    int n = 0;
    for (int i = 2 * row - 1; i <= 2 * row + 1; ++i) {
        for (int j = 2 * column - 1; j <= 2 * column + 1; ++j) {
            if (i >= 0 && i < height && j >= 0 && j < width) {
                sum += plane[(size_t)i * width + j];
                ++n;
            }
        }
    }
    out[((size_t)blockIdx.z * out_height + row) * out_width + column] = sum / n;
}
