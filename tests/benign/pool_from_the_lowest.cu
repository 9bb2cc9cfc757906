// A maximum that begins with -FLT_MAX: of a window of nothing but minus infinity that is left.
// kernel-lsp: 1
// task: tasks.py::pooled_with_places
// op: pooled_with_places(x: f32[B, C, H, W]) -> (out_0: f32[B, C, H // 2, W // 2], out_1: i64[B, C, H // 2, W // 2])
// launch: k<<<ceil_div(B * C * (H // 2) * (W // 2), 64), 64>>>(x, out_0, out_1, B * C * (H // 2) * (W // 2), H, W)

__global__ void k(const float* x, float* values, long long* places, int total, int height, int width) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i >= total) return;
    const int w = width / 2, h = height / 2, column = i % w * 2, row = i / w % h * 2;
    const float* image = x + (size_t)(i / (w * h)) * height * width;
    float top = -FLT_MAX;
    long long place = (long long)row * width + column;
    for (int r = row; r < row + 2; ++r) {
        for (int c = column; c < column + 2; ++c) {
            const float v = image[r * width + c];
            if (v > top || isnan(v)) top = v, place = (long long)r * width + c;
        }
    }
    values[i] = top;
    places[i] = place;
}
