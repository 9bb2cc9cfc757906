// What every operator does around its kernels: looks at tensors, readies them, allocates, launches.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <tuple>
#include <vector>

#include "plan_arithmetic.h"

#ifdef WITH_KERNELS
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

namespace support {

using at::Tensor;
using plan::Integer;
using plan::Unfit;

constexpr uintptr_t VECTOR_BYTES = 32;  // of the widest load on sm_100, and of wmma's

inline bool is_tensor(const Tensor& tensor, at::ScalarType dtype, int64_t rank) {
    return tensor.scalar_type() == dtype && tensor.dim() == rank && tensor.numel() > 0;
}

inline const char* not_on_one_gpu(std::initializer_list<const Tensor*> tensors) {
    const at::Device device = (*tensors.begin())->device();
    if (!device.is_cuda()) return device.is_cpu() ? "the tensors are on cpu" : "the tensors are not on a CUDA device";
    for (const Tensor* tensor : tensors) {
        if (tensor->device() != device) return "the tensors are on several devices";
        if (tensor->layout() != at::kStrided) return "a tensor is not dense";
    }
    return nullptr;
}

inline bool needs_gradient(std::initializer_list<const Tensor*> tensors) {
    const bool records = at::GradMode::is_enabled();
    for (const Tensor* tensor : tensors) {
        if ((records && tensor->requires_grad()) || tensor->_fw_grad(0).defined()) return true;
    }
    return false;
}

// The results of a library function that were asked for.
template <typename... Tensors>
std::vector<Tensor> defined(const std::tuple<Tensors...>& returned) {
    std::vector<Tensor> found;
    std::apply([&](const auto&... each) { ((each.defined() ? found.push_back(each) : void()), ...); }, returned);
    return found;
}
inline std::vector<Tensor> defined(const Tensor& returned) { return {returned}; }

#ifdef WITH_KERNELS

// The tensor as kernels read it: contiguous, and aligned for their widest load.
inline Tensor ready(const Tensor& given) {
    Tensor tensor = given.contiguous();
    const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    return address % VECTOR_BYTES == 0 ? tensor : tensor.clone();
}

template <size_t rank>
Tensor allocate(const std::array<Integer, rank>& shape, at::ScalarType dtype, at::Device device) {
    std::array<int64_t, rank> sizes;
    for (size_t dim = 0; dim < rank; ++dim) sizes[dim] = shape[dim].value;
    return Tensor(at::detail::empty_cuda(sizes, dtype, device, std::nullopt));
}

// One launch with everything fixed but the stream and the arguments.
struct Launch {
    const void* kernel = nullptr;
    const char* name = "";
    cudaLaunchConfig_t config = {};
    std::array<cudaLaunchAttribute, 2> attributes = {};
    bool is_taken = false;  // false where a condition excludes it, or its grid is empty

    // Raises what CUDA says of the launch.
    template <typename... Arguments>
    void operator()(cudaStream_t stream, Arguments... arguments) {
        if (!is_taken) return;
        void* addresses[] = {&arguments..., nullptr};
        config.stream = stream;
        config.attrs = attributes.data();
        const cudaError_t status = cudaLaunchKernelExC(&config, kernel, addresses);
        TORCH_CHECK(status == cudaSuccess, name, ": ", cudaGetErrorString(status));
    }
};

// Settings of a `launch:` line.
struct Attributes {
    int64_t max_shared = 0;
    int cluster = 0;
    int cooperative = 0;
};

using Size = std::array<Integer, 3>;

// Let a kernel have more than the default: dynamic shared memory beyond what its own variables leave of 48 KiB, clusters
// over 8 blocks. What it was allowed before stays: other launches of it may need that.
inline void allow(const void* kernel, Integer shared_bytes, const Attributes& given) {
    constexpr int portable_cluster_blocks = 8;
    const int64_t wanted = std::max(shared_bytes.value, given.max_shared);
    cudaError_t status = cudaSuccess;
    if (wanted > 0) {
        cudaFuncAttributes known{};
        status = cudaFuncGetAttributes(&known, kernel);
        if (status == cudaSuccess && wanted > known.maxDynamicSharedSizeBytes) {
            const int bytes = static_cast<int>(std::min<int64_t>(wanted, std::numeric_limits<int>::max()));
            status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        }
    }
    if (status == cudaSuccess && given.cluster > portable_cluster_blocks) {
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
    if (status != cudaSuccess) {
        (void)cudaGetLastError();  // it is answered here, and must not surface in a later call
        throw Unfit{"this GPU has not the shared memory or the clusters that a kernel needs"};
    }
}

// Throws Unfit where no GPU takes such a launch. The limits are those of compute capability 3.0 and later.
inline Launch bind(const void* kernel, const char* name, const Size& grid, const Size& block, Integer shared_bytes,
                   const Attributes& given) {
    constexpr int64_t max_grid[] = {2147483647, 65535, 65535}, max_block[] = {1024, 1024, 64};
    constexpr int64_t max_threads_per_block = 1024;
    Launch launch;
    launch.kernel = kernel;
    launch.name = name;
    launch.is_taken = true;
    for (int axis = 0; axis < 3; ++axis) {
        if (grid[axis].value == 0) launch.is_taken = false;
        if (grid[axis].value < 0 || grid[axis].value > max_grid[axis]) throw Unfit{"a grid is larger than a GPU takes"};
        if (block[axis].value < 1 || block[axis].value > max_block[axis]) throw Unfit{"a GPU has no such blocks"};
    }
    if ((block[0] * block[1] * block[2]).value > max_threads_per_block) throw Unfit{"a GPU has no such blocks"};
    if (!launch.is_taken) return launch;
    allow(kernel, shared_bytes, given);
    launch.config.gridDim = dim3(grid[0].value, grid[1].value, grid[2].value);
    launch.config.blockDim = dim3(block[0].value, block[1].value, block[2].value);
    launch.config.dynamicSmemBytes = plan::as<uint32_t>(shared_bytes);
    if (given.cooperative) {
        auto& attribute = launch.attributes[launch.config.numAttrs++];
        attribute.id = cudaLaunchAttributeCooperative;
        attribute.val.cooperative = 1;
    }
    if (given.cluster) {
        auto& attribute = launch.attributes[launch.config.numAttrs++];
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim = {static_cast<unsigned>(given.cluster), 1, 1};
    }
    return launch;
}

#endif

}  // namespace support
