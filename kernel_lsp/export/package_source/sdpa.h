// PyTorch's fused attention and its gradients, as the library steps `sdpa::...` call them.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <tuple>

namespace support {

using at::Tensor;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;

inline bool is_grouped(const Tensor& query, const Tensor& key) { return query.size(-3) != key.size(-3); }

// Attention of (B, H, M, D) queries over (B, H / groups, N, D) keys and values.
inline Tensor sdpa_forward(
    const Tensor& query, const Tensor& key, const Tensor& value, bool is_causal, double scale) {
    return at::scaled_dot_product_attention(query, key, value, {}, 0.0, is_causal, scale, is_grouped(query, key));
}

// float scores of all queries and keys.
inline Tensor sdpa_scores(const Tensor& query, const Tensor& key, bool is_causal, double scale) {
    const Tensor keys = key.to(at::kFloat).repeat_interleave(query.size(-3) / key.size(-3), -3);
    const Tensor scores = query.to(at::kFloat).matmul(keys.mT()) * scale;
    return is_causal ? scores.masked_fill(at::ones_like(scores).tril().logical_not(), -INFINITY) : scores;
}

inline Gradients sdpa_by_products(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& grad, bool is_causal, double scale) {
    const int64_t n_shared = query.size(-3) / key.size(-3);
    const Tensor q = query.to(at::kFloat), g = grad.to(at::kFloat);
    const Tensor k = key.to(at::kFloat).repeat_interleave(n_shared, -3);
    const Tensor v = value.to(at::kFloat).repeat_interleave(n_shared, -3);
    const Tensor weights = sdpa_scores(query, key, is_causal, scale).softmax(-1), grad_weights = g.matmul(v.mT());
    const Tensor grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, true)) * scale;
    const auto of_group = [&](const Tensor& found) { return found.unflatten(-3, {-1, n_shared}).sum(-3); };
    return {grad_scores.matmul(k).to(query.scalar_type()), of_group(grad_scores.mT().matmul(q)).to(key.scalar_type()),
            of_group(weights.mT().matmul(g)).to(value.scalar_type())};
}

enum Backend : int64_t { by_products = -1, by_flash = 1, by_efficient = 2, by_cudnn = 3 };  // of at::SDPBackend
constexpr int64_t efficient_rows = 32;  // of which that backend's logarithms are a multiple

// PyTorch's choice of backend; products on a CPU.
inline int64_t sdpa_backend(const Tensor& query, const Tensor& key, const Tensor& value, bool is_causal, double scale) {
    if (!query.is_cuda()) return by_products;
    return at::_fused_sdp_choice(query, key, value, {}, 0.0, is_causal, scale, is_grouped(query, key));
}

// The attention, and the logarithm of each query's sum of exponentials (B, H, M) for `sdpa_backward_kept`.
inline std::tuple<Tensor, Tensor> sdpa_forward_kept(
    const Tensor& query, const Tensor& key, const Tensor& value, bool is_causal, double scale) {
    Tensor out, log_sums;
    switch (sdpa_backend(query, key, value, is_causal, scale)) {
        case by_cudnn: {
            const auto found =
                at::_scaled_dot_product_cudnn_attention(query, key, value, {}, true, 0.0, is_causal, false, scale);
            out = std::get<0>(found), log_sums = std::get<1>(found);
            break;
        }
        case by_flash: {
            const auto found = at::_scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal, false, scale);
            out = std::get<0>(found), log_sums = std::get<1>(found);
            break;
        }
        case by_efficient: {
            const auto found =
                at::_scaled_dot_product_efficient_attention(query, key, value, {}, true, 0.0, is_causal, scale);
            out = std::get<0>(found), log_sums = std::get<1>(found).narrow(-1, 0, query.size(-2));
            break;
        }
        default:
            out = sdpa_forward(query, key, value, is_causal, scale);
            log_sums = sdpa_scores(query, key, is_causal, scale).logsumexp(-1);
    }
    return {out, log_sums.reshape(query.sizes().slice(0, query.dim() - 1))};
}

// The gradients of queries, keys and values from what `sdpa_forward_kept` returned.
inline Gradients sdpa_backward_kept(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& grad, const Tensor& out,
    const Tensor& log_sums, bool is_causal, double scale) {
    const int64_t n_queries = query.size(-2), n_keys = key.size(-2);
    const Tensor seed = at::zeros({2}, query.options().dtype(at::kLong));  // of a dropout that there is not
    switch (sdpa_backend(query, key, value, is_causal, scale)) {
        case by_cudnn:
            return at::_scaled_dot_product_cudnn_attention_backward(
                grad, query, key, value, out, log_sums.unsqueeze(-1), seed, seed, {}, {}, {}, n_queries, n_keys, 0.0,
                is_causal, scale);
        case by_flash:
            return at::_scaled_dot_product_flash_attention_backward(
                grad, query, key, value, out, log_sums, {}, {}, n_queries, n_keys, 0.0, is_causal, seed, seed, scale);
        case by_efficient: {
            const int64_t rest = (efficient_rows - n_queries % efficient_rows) % efficient_rows;
            const Tensor kept = at::constant_pad_nd(log_sums, {0, rest}, INFINITY);
            const auto found = at::_scaled_dot_product_efficient_attention_backward(
                grad, query, key, value, {}, out, kept, seed.select(0, 0), seed.select(0, 1), 0.0,
                {true, true, true, false}, is_causal, scale);
            return {std::get<0>(found), std::get<1>(found), std::get<2>(found)};
        }
    }
    return sdpa_by_products(query, key, value, grad, is_causal, scale);
}

// The gradients of queries, keys and values, after another forward pass.
inline Gradients sdpa_backward(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& grad, bool is_causal, double scale) {
    const auto [out, log_sums] = sdpa_forward_kept(query, key, value, is_causal, scale);
    return sdpa_backward_kept(query, key, value, grad, out, log_sums, is_causal, scale);
}

}  // namespace support
