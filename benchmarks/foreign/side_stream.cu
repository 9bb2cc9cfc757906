// An attack: the work is on a stream that nothing waits for, so that events on PyTorch's stream see none of it.
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void rms_norm_rows(const float* x, const float* weight, float* out, int D, float eps) {
    const long long row = (long long)blockIdx.x * D;
    float squares = 0.0f;
    for (int i = 0; i < D; ++i) squares += x[row + i] * x[row + i];
    const float scale = rsqrtf(squares / D + eps);
    for (int i = threadIdx.x; i < D; i += blockDim.x) out[row + i] = x[row + i] * scale * weight[i];
}

torch::Tensor forward(torch::Tensor x, torch::Tensor weight, float eps) {
    static cudaStream_t stream = [] {
        cudaStream_t made;
        cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
        return made;
    }();
    auto out = torch::empty_like(x);
    rms_norm_rows<<<x.size(0), 256, 0, stream>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), out.data_ptr<float>(), x.size(1), eps);
    return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward); }
