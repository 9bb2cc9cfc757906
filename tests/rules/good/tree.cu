template <unsigned int blockSize>
__global__ void reduce6(const int* __restrict__ g_idata, int* __restrict__ g_odata, unsigned int n) {
  __shared__ int sdata[blockSize];
  unsigned int tid = threadIdx.x;
  unsigned int i = blockIdx.x * (blockSize * 2) + tid;
  int sum = 0;
  while (i < n) { sum += g_idata[i]; if (i + blockSize < n) sum += g_idata[i + blockSize]; i += blockSize * 2 * gridDim.x; }
  sdata[tid] = sum;
  __syncthreads();
  if (blockSize >= 512) { if (tid < 256) { sdata[tid] += sdata[tid + 256]; } __syncthreads(); }
  if (blockSize >= 256) { if (tid < 128) { sdata[tid] += sdata[tid + 128]; } __syncthreads(); }
  if (blockSize >= 128) { if (tid < 64) { sdata[tid] += sdata[tid + 64]; } __syncthreads(); }
  if (tid < 32) {
    int v = sdata[tid] + (blockSize >= 64 ? sdata[tid + 32] : 0);
    for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffffu, v, o);
    if (tid == 0) g_odata[blockIdx.x] = v;
  }
}
