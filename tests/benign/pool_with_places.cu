// Maxima of windows and where they are in the image.
// kernel-lsp: 1
// task: tasks.py::pooled_with_places
// op: pooled_with_places(x: f32[B, C, H, W]) -> (out_0: f32[B, C, H // 2, W // 2], out_1: i64[B, C, H // 2, W // 2])
// launch: k<<<ceil_div(B * C * (H // 2) * (W // 2), 64), 64>>>(x, out_0, out_1, B * C * (H // 2) * (W // 2), H, W)

__global__ void k(const float* x, float* values, long long* places, int total, int height, int width) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i >= total) return;
    const int w = width / 2, h = height / 2, left = i % w * 2, top = i / w % h * 2;
    const float* image = x + (i / (w * h)) * (long long)height * width;
    float best = image[top * width + left];
    int place = top * width + left;
    for (int j = 1; j < 4; ++j) {
        const int other = (top + j / 2) * width + left + j % 2;
        if (image[other] > best || (isnan(image[other]))) best = image[other], place = other;
    }
    values[i] = best;
    places[i] = place;
}
