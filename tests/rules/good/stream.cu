#include <vector>
#include <cuda_runtime.h>
__global__ void scale(float* __restrict__ x, float a, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= a; }
cudaError_t run(std::vector<float>& host, cudaStream_t stream) {
  const int n = static_cast<int>(host.size());
  const size_t bytes = host.size() * sizeof(float);
  float* d_x = nullptr;
  cudaError_t error = cudaMallocAsync(&d_x, bytes, stream);
  if (error == cudaSuccess) error = cudaMemcpyAsync(d_x, host.data(), bytes, cudaMemcpyHostToDevice, stream);
  scale<<<(n + 255) / 256, 256, 0, stream>>>(d_x, 2.0f, n);
  if (error == cudaSuccess) error = cudaGetLastError();
  if (error == cudaSuccess) error = cudaMemcpyAsync(host.data(), d_x, bytes, cudaMemcpyDeviceToHost, stream);
  cudaFreeAsync(d_x, stream);
  return error;
}
