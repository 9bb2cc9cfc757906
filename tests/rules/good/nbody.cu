#define BLOCK_SIZE 256
__global__ void bodyForce(const float4* __restrict__ p, float4* __restrict__ v, float dt, int n) {
  int i = blockDim.x * blockIdx.x + threadIdx.x;
  float Fx = 0.0f, Fy = 0.0f, Fz = 0.0f;
  for (int tile = 0; tile < gridDim.x; tile++) {
    __shared__ float3 spos[BLOCK_SIZE];
    float4 tpos = p[min(tile * blockDim.x + threadIdx.x, n - 1)];
    spos[threadIdx.x] = make_float3(tpos.x, tpos.y, tpos.z);
    __syncthreads();
    for (int j = 0; j < BLOCK_SIZE; j++) {
      float dx = spos[j].x - p[min(i, n - 1)].x;
      Fx += dx * rsqrtf(dx * dx + 1e-9f); Fy += spos[j].y; Fz += spos[j].z;
    }
    __syncthreads();
  }
  if (i < n) { v[i].x += dt * Fx; v[i].y += dt * Fy; v[i].z += dt * Fz; }
}
