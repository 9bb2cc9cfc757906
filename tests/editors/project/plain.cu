__global__ void scale(const float *x, float *out, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = x[i] * by;
}

void launch(const float *x, float *out, int n) {
    scale<<<(n + 255) / 256, 256>>>(x, out, 2.0f, n);
}
