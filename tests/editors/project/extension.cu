#include <torch/extension.h>

__global__ void mask_readings(const float *in, const bool *keep, float *out, int64_t count) {
    int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) out[at] = keep[at] ? in[at] : 0.0f;
}

torch::Tensor mask(torch::Tensor in, torch::Tensor keep) {
    TORCH_CHECK(in.is_cuda() && keep.is_cuda(), "in and keep must be CUDA tensors");
    auto out = torch::empty_like(in);
    int64_t count = in.numel();
    mask_readings<<<(count + 255) / 256, 256>>>(in.data_ptr<float>(), keep.data_ptr<bool>(), out.data_ptr<float>(), count);
    return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("mask", &mask, "Zero what is masked out");
}
