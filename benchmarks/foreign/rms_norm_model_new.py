"""RMSNorm as KernelBench's solutions are written: `ModelNew` with an extension that is built inline."""

from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
__global__ void rms_norm_rows(const float* x, const float* weight, float* out, int D, float eps) {
    __shared__ float sums[256];
    const long long row = (long long)blockIdx.x * D;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < D; i += blockDim.x) squares += x[row + i] * x[row + i];
    sums[threadIdx.x] = squares;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    const float scale = rsqrtf(sums[0] / D + eps);
    for (int i = threadIdx.x; i < D; i += blockDim.x) out[row + i] = x[row + i] * scale * weight[i];
}

torch::Tensor rms_norm_cuda(torch::Tensor x, torch::Tensor weight, double eps) {
    auto out = torch::empty_like(x);
    rms_norm_rows<<<x.size(0), 256>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), out.data_ptr<float>(), x.size(1), (float)eps);
    return out;
}
"""
extension = load_inline(
    name="rms_norm_inline",
    cpp_sources="torch::Tensor rms_norm_cuda(torch::Tensor x, torch::Tensor weight, double eps);",
    cuda_sources=SOURCE,
    functions=["rms_norm_cuda"],
)


class ModelNew(nn.Module):
    def forward(self, x, weight, eps):
        return extension.rms_norm_cuda(x, weight, eps)
