"""Define the tasks of the benign kernels."""

import torch
import torch.nn.functional as F


# kernel-lsp: x=f32[64, 250], y=f32[64, 250]
def add_relu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + y)


# kernel-lsp: x=f32[64, 256]
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2.0


# kernel-lsp: x=f32[64, 300]
def row_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(dim=-1)


# kernel-lsp: x=f32[64, 256]
def mean_all(x: torch.Tensor) -> torch.Tensor:
    return x.mean()


# kernel-lsp: x=f32[48, 256]
def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


# kernel-lsp: x=f32[48, 256], weight=f32[256], bias=f32[256]
def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)


# kernel-lsp: x=f32[48, 128], weight=f32[80, 128]
def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight)


# kernel-lsp: x=bf16[48, 128], weight=bf16[80, 128]
def linear_bf16(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight)


# kernel-lsp: x=f16[48, 256]
def gelu_f16(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x)


# kernel-lsp: x=f32[64, 256]
def gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


# kernel-lsp: x=f32[64, 256]
def silu(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x)


# kernel-lsp: x=f32[64, 256]
def is_negative(x: torch.Tensor) -> torch.Tensor:
    return x < 0


# kernel-lsp: x=f32[32, 200]
def arg_max(x: torch.Tensor) -> torch.Tensor:
    return torch.argmax(x, dim=-1)


# kernel-lsp: x=i64[64, 256]
def parity(x: torch.Tensor) -> torch.Tensor:
    return x & 1


# kernel-lsp: x=f32[40, 72]
def transpose(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous()


# kernel-lsp: x=f32[32, 300]
def cumulative(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x, dim=-1)


# kernel-lsp: x=f32[]
def square_of_one(x: torch.Tensor) -> torch.Tensor:
    return x * x


# kernel-lsp: x=f32[1]
def negate_one(x: torch.Tensor) -> torch.Tensor:
    return -x


# kernel-lsp: x=f64[64, 100]
def norm_f64(x: torch.Tensor) -> torch.Tensor:
    return torch.sqrt((x * x).sum(dim=-1))


# kernel-lsp: x=f32[64, 256]
def triangle(x: torch.Tensor) -> torch.Tensor:
    return torch.tril(x)


# kernel-lsp: x=f32[64, 256]
def largest(x: torch.Tensor) -> torch.Tensor:
    return torch.amax(x, dim=-1)


# kernel-lsp: x=f32[8, 16, 34]
def blur(x: torch.Tensor) -> torch.Tensor:
    return F.avg_pool1d(x, 3, stride=1)


# kernel-lsp: x=f32[1024, 512], weight=f32[1024, 512]
def large_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight)


# kernel-lsp: x=f32[64, 256]
def first_and_rest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.amax(dim=-1), x.sum(dim=0)


# kernel-lsp: x=f32[64, 256]
def reciprocal(x: torch.Tensor) -> torch.Tensor:
    return 1.0 / x


# kernel-lsp: x=f32[64, 256], y=f32[64, 256]
def angle_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.atan2(y, x) + torch.copysign(x, y)


# kernel-lsp: x=f16[80, 96], y=f16[96, 72]
def matmul_f16(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


# kernel-lsp: x=f32[64, 250]
def quantized(x: torch.Tensor) -> torch.Tensor:
    return torch.clamp(torch.round(x * 16.0), -128, 127).to(torch.int8)


# kernel-lsp: x=f32[64, 300], alpha=0.5
def leaky(x: torch.Tensor, alpha: float) -> torch.Tensor:
    return torch.where(x < 0, alpha * x, x)


# kernel-lsp: x=f32[64, 256], exp=f32[64, 256], half=f32[256]
def scaled_and_shifted(x: torch.Tensor, exp: torch.Tensor, half: torch.Tensor) -> torch.Tensor:
    return x * exp + half


# kernel-lsp: q=f32[4, 24, 32], k=f32[4, 24, 32], v=f32[4, 24, 32]
def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


# kernel-lsp: ids=i64[N=300], table=f32[V=1000, D=16]
def embed(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return F.embedding(ids, table)


# kernel-lsp: x=f32[B=32, V=200], target=i64[B]
def nll(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, target, reduction="none")


# kernel-lsp: x=f32[32, 200]
def cumulative_maximum(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cummax(x, dim=-1)


# kernel-lsp: x=f32[6, 16, 50]
def arg_max_of_channels(x: torch.Tensor) -> torch.Tensor:
    return torch.argmax(x, dim=1)


# kernel-lsp: x=f32[2, 3, 24, 30]
def pooled_with_places(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.max_pool2d(x, 2, return_indices=True)


# kernel-lsp: x=f32[16, 100]
def stably_sorted(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.sort(x, dim=-1, stable=True)


# kernel-lsp: x=f32[R=40, T=90, C=50]
def running_product(x: torch.Tensor) -> torch.Tensor:
    return torch.cumprod(x, 1)


# kernel-lsp: src=f32[N=500, D=32], idx=i64[N] in [0, 50)
def rows_added(src: torch.Tensor, idx: torch.Tensor) -> torch.Tensor:
    return torch.zeros(50, src.shape[1], device=src.device).index_add(0, idx, src)


# kernel-lsp: x=f32[N=2, C=8, L=200], w=f32[16, 8, 5], b=f32[16]
def strided_conv1d(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.conv1d(x, w, b, stride=2, padding=2)


# kernel-lsp: q=bf16[B=1, 8, T=64, 64], k=bf16[B, 2, T, 64], v=bf16[B, 2, T, 64]
def grouped_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


# kernel-lsp: x=f32[64, 256]
def count_positive(x: torch.Tensor) -> torch.Tensor:
    return (x > 0).sum(dim=-1)


# kernel-lsp: x=f16[80, 96], y=f16[96, 64]
def matmul_of_16s(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


# kernel-lsp: x=f32[48, 256], eps=1e-6
def rms_by_guard(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


# kernel-lsp: p=f32[4096], g=f32[4096], m=f32[4096], v=f32[4096], lr=0.001, b1=0.9, b2=0.999, eps=1e-8
def adam(
    p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, lr: float, b1: float, b2: float, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mean = b1 * m + (1 - b1) * g
    square = b2 * v + (1 - b2) * g * g
    return p - lr * mean / (square.sqrt() + eps), mean, square


# kernel-lsp: x=f32[32, 64], allowed=bool[32, 64], temperature=0.7
def tempered(x: torch.Tensor, allowed: torch.Tensor, temperature: float) -> torch.Tensor:
    return torch.softmax(x.masked_fill(~allowed, float("-inf")) / temperature, dim=-1)


# kernel-lsp: x=f32[64, 250], low=-1.0, high=1.0
def limited_in_order(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return F.hardtanh(x, low, high)


# kernel-lsp: logits=f32[T=64, E=16]
def experts_chosen(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    probabilities = torch.softmax(logits, -1)
    w, i = torch.topk(probabilities, 2, -1)
    return w / w.sum(-1, keepdim=True), i


# kernel-lsp: x=f32[N=100000]
def relu_and_scale(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 1.7


# kernel-lsp: logits=f32[N=256, V=512], labels=i64[N] in [0, 512)
def mean_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels)


# kernel-lsp: x=f32[4000], step=0.05
def in_steps(x: torch.Tensor, step: float) -> torch.Tensor:
    return torch.clamp(torch.round(x / step), -128, 127).to(torch.int8)


# kernel-lsp: x=f32[4000]
def to_whole_numbers(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x.clamp(-1e9, 1e9)).to(torch.int32)


# kernel-lsp: x=f32[48, 200], mask=bool[48, 200], eps=1e-6
def normalized_where(x: torch.Tensor, mask: torch.Tensor, eps: float) -> torch.Tensor:
    n = mask.sum(dim=-1, keepdim=True).clamp(min=1)
    variance = (x.pow(2) * mask).sum(dim=-1, keepdim=True) / n
    return x * torch.rsqrt(variance + eps)


# kernel-lsp: x=f32[B=2, C=4, H=11, W=13]
def pooled(x: torch.Tensor) -> torch.Tensor:
    return F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False)


# kernel-lsp: x=f32[16, 1000]
def elu_and_softplus(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.elu(x, 0.7), F.softplus(x)


# kernel-lsp: x=f32[16, 96], w=f32[96]
def scaled_relu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * w)


# kernel-lsp: x=f32[16, 128]
def rows_in_bytes(x: torch.Tensor) -> torch.Tensor:
    scale = 127.0 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
    return (x * scale).round().clamp(-128, 127).to(torch.int8)


# kernel-lsp: x=f16[N=3, C=16, H=12, W=12], w=f16[K=16, C, 3, 3], b=f16[K]
def conv_f16(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(F.conv2d(x, w, b, padding=1))


# kernel-lsp: x=f32[B=16, D=500]
def stdrow(x: torch.Tensor) -> torch.Tensor:
    return torch.std(x, dim=1)


# kernel-lsp: x=f32[N=96, C=50], t=i64[N] < 50, w=f32[C]
def ce_weight(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, t, weight=w * w + 0.1)


# kernel-lsp: x=f32[N=40, D=100]
def magnitude(x: torch.Tensor) -> torch.Tensor:
    return x.abs()


# kernel-lsp: x=f32[N=2, 3, H=16, W=16], w=f32[8, 3, 3, 3], b=f32[8]
def conv_pad_relu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.conv2d(x, w, b, padding=1))


# kernel-lsp: x=f32[N=64, D=300]
def logsumexp(x: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(x, dim=1)


# kernel-lsp: x=f32[M=32, K=64], w=f32[N=48, K], b=f32[N]
def gemm_scale_hardtanh_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.hardtanh(F.linear(x, w, b) * 0.5, -2.0, 2.0))


# kernel-lsp: x=f32[N=2, 8, H=12, W=12], w1=f32[8,8,3,3], s1=f32[8], h1=f32[8], w2=f32[8,8,3,3], s2=f32[8], h2=f32[8]
def resnet_block(
    x: torch.Tensor,
    w1: torch.Tensor,
    s1: torch.Tensor,
    h1: torch.Tensor,
    w2: torch.Tensor,
    s2: torch.Tensor,
    h2: torch.Tensor,
) -> torch.Tensor:
    y = F.conv2d(x, w1, padding=1) * s1.view(1, -1, 1, 1) + h1.view(1, -1, 1, 1)
    y = torch.relu(y)
    y = F.conv2d(y, w2, padding=1) * s2.view(1, -1, 1, 1) + h2.view(1, -1, 1, 1)
    return torch.relu(y + x)


# kernel-lsp: x=f32[N=2, 3, H=16, W=16], w=f32[8, 3, 3, 3], b=f32[8]
def conv_sub_hs_pool_mish(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.mish(F.max_pool2d(F.hardswish(F.conv2d(x, w, b) - 0.5), 2))


# kernel-lsp: x=f32[N=64, D=512]
def l2_norm(x: torch.Tensor) -> torch.Tensor:
    return x / torch.norm(x, p=2, dim=1, keepdim=True)


# kernel-lsp: x=f32[N=64, D=512]
def elu(x: torch.Tensor) -> torch.Tensor:
    return F.elu(x, alpha=1.0)


# kernel-lsp: x=f32[N=32, D2=512]
def swiglu(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return F.silu(a) * b


# kernel-lsp: x=f32[B=8, D=96]
def sorted_in_any_order(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = torch.sort(x, dim=-1)
    return values, places


# kernel-lsp: x=f16[B=8, D=96]
def four_largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = torch.topk(x, 4, dim=-1)
    return values, places.int()


# kernel-lsp: x=f32[B=8, D=97]
def median_and_place(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    value, place = torch.median(x, dim=-1)
    return value, place


# kernel-lsp: x=f32[B=8, 32], y=f32[B, 32]
def kl_divergence(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean")
