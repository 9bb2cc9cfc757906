// PyTorch's fused attention and its gradients, as the library steps `sdpa::forward` and `sdpa::backward` call them.
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
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>

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

inline Gradients sdpa_by_products(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& grad, bool is_causal, double scale) {
    const int64_t n_shared = query.size(-3) / key.size(-3);
    const Tensor q = query.to(at::kFloat), g = grad.to(at::kFloat);
    const Tensor k = key.to(at::kFloat).repeat_interleave(n_shared, -3);
    const Tensor v = value.to(at::kFloat).repeat_interleave(n_shared, -3);
    Tensor scores = q.matmul(k.mT()) * scale;
    if (is_causal) scores = scores.masked_fill(at::ones_like(scores).tril().logical_not(), -INFINITY);
    const Tensor weights = scores.softmax(-1), grad_weights = g.matmul(v.mT());
    const Tensor grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, true)) * scale;
    const auto of_group = [&](const Tensor& found) { return found.unflatten(-3, {-1, n_shared}).sum(-3); };
    return {grad_scores.matmul(k).to(query.scalar_type()), of_group(grad_scores.mT().matmul(q)).to(key.scalar_type()),
            of_group(weights.mT().matmul(g)).to(value.scalar_type())};
}

// The gradients of queries, keys and values, after another forward pass, by PyTorch's choice of backend.
inline Gradients sdpa_backward(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& grad, bool is_causal, double scale) {
    enum Backend { flash = 1, efficient = 2, cudnn = 3 };  // of at::SDPBackend
    switch (at::_fused_sdp_choice(query, key, value, {}, 0.0, is_causal, scale, is_grouped(query, key))) {
        case cudnn: {
            const auto [out, lse, from_q, from_k, max_q, max_k, seed, offset, debug] =
                at::_scaled_dot_product_cudnn_attention(query, key, value, {}, true, 0.0, is_causal, false, scale);
            return at::_scaled_dot_product_cudnn_attention_backward_symint(
                grad, query, key, value, out, lse, seed, offset, {}, from_q, from_k, max_q, max_k, 0.0, is_causal, scale);
        }
        case flash: {
            const auto [out, lse, from_q, from_k, max_q, max_k, seed, offset, debug] =
                at::_scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal, false, scale);
            return at::_scaled_dot_product_flash_attention_backward_symint(
                grad, query, key, value, out, lse, from_q, from_k, max_q, max_k, 0.0, is_causal, seed, offset, scale);
        }
        case efficient: {
            const auto [out, lse, seed, offset] =
                at::_scaled_dot_product_efficient_attention(query, key, value, {}, true, 0.0, is_causal, scale);
            const auto found = at::_scaled_dot_product_efficient_attention_backward(
                grad, query, key, value, {}, out, lse, seed, offset, 0.0, {true, true, true, false}, is_causal, scale);
            return {std::get<0>(found), std::get<1>(found), std::get<2>(found)};
        }
    }
    return sdpa_by_products(query, key, value, grad, is_causal, scale);
}

}  // namespace support
