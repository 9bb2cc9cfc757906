__global__ void softmax(const float* __restrict__ inp, float* __restrict__ out, int C) {
  extern __shared__ float shared[];
  int idx = blockIdx.x, tid = threadIdx.x, warpId = threadIdx.x / 32, laneId = threadIdx.x % 32;
  int warpsPerBlock = blockDim.x / 32;
  float* maxvals = shared;
  float* sumvals = &shared[warpsPerBlock];
  const float* x = inp + idx * C;
  float maxval = -INFINITY;
  for (int i = tid; i < C; i += blockDim.x) maxval = fmaxf(maxval, x[i]);
  for (int offset = 16; offset > 0; offset /= 2) maxval = fmaxf(maxval, __shfl_down_sync(0xFFFFFFFF, maxval, offset));
  if (laneId == 0) maxvals[warpId] = maxval;
  __syncthreads();
  if (tid == 0) {
    float val = maxvals[tid];
    for (int i = 1; i < warpsPerBlock; i++) val = fmaxf(val, maxvals[i]);
    maxvals[0] = val;
  }
  __syncthreads();
  float offset = maxvals[0];
  float sumval = 0.0f;
  for (int i = tid; i < C; i += blockDim.x) { float e = expf(x[i] - offset); out[idx * C + i] = e; sumval += e; }
  for (int o = 16; o > 0; o /= 2) sumval += __shfl_down_sync(0xFFFFFFFF, sumval, o);
  if (laneId == 0) sumvals[warpId] = sumval;
  __syncthreads();
  if (tid == 0) { float val = sumvals[tid]; for (int i = 1; i < warpsPerBlock; ++i) val += sumvals[i]; sumvals[0] = val; }
  __syncthreads();
  float sum = sumvals[0];
  for (int i = tid; i < C; i += blockDim.x) out[idx * C + i] /= sum;
}
