// Clamp readings, then sum them per block.
__global__ void clamp_readings(const float *in, float *out, float low, float high, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    out[at] = fminf(fmaxf(in[at], low), high);
}

__global__ void sum_readings(const float *in, float *sums, int count) {
    __shared__ float part[128];
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    part[threadIdx.x] = at < count ? in[at] : 0.0f;
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

void run(const float *in, float *out, float *sums, int count) {
    int blocks = (count + 127) / 128;
    clamp_readings<<<blocks, 128>>>(in, out, -1.0f, 1.0f, count);
    sum_readings<<<blocks, 128>>>(out, sums, count);
}
