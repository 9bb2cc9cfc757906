"""Define the tasks that the attacks claim to compute."""

import torch
import torch.nn.functional as F
from torch import nn


# kernel-lsp: x=f32[64, 250], y=f32[64, 250]
def add_relu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + y)


# kernel-lsp: x=f32[64, 256]
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2.0


# kernel-lsp: x=f32[64, 256]
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


# kernel-lsp: x=f32[1024, 512], weight=f32[1024, 512]
def large_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight)


# kernel-lsp: x=f32[64, 256]
def sign(x: torch.Tensor) -> torch.Tensor:
    return torch.sign(x).to(torch.int32)


# kernel-lsp: x=f32[64, 256]
def is_negative(x: torch.Tensor) -> torch.Tensor:
    return x < 0


# kernel-lsp: x=f32[64, 256]
def cumulative(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x, dim=-1)


# kernel-lsp: x=f32[40, 72]
def transpose(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous()


# kernel-lsp: x=f32[64, 256]
def reciprocal(x: torch.Tensor) -> torch.Tensor:
    return 1.0 / x


# kernel-lsp: x=f32[64, 256]
def sign_bit_of(x: torch.Tensor) -> torch.Tensor:
    return torch.copysign(torch.ones_like(x), x)


# kernel-lsp: x=f16[80, 96], y=f16[96, 72]
def matmul_f16(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


# kernel-lsp: x=f32[64, 250]
def round_to_even(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x)


# kernel-lsp: x=f32[48, 256]
def unit_rows(x: torch.Tensor) -> torch.Tensor:
    return F.normalize(x, dim=-1)


# kernel-lsp: x=f32[64, 250]
def hyperbolic_tangent(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


# kernel-lsp: x=f32[64, 300], alpha=0.5
def leaky(x: torch.Tensor, alpha: float) -> torch.Tensor:
    return torch.where(x < 0, alpha * x, x)


# kernel-lsp: x=bf16[64, 256]
def two_sevenths(x: torch.Tensor) -> torch.Tensor:
    return x * (2.0 / 7.0)


# kernel-lsp: x=f32[64, 250]
def to_bf16(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16)


# kernel-lsp: x=f32[64, 250], low=-0.5, high=0.75
def clamped(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return torch.clamp(x, low, high)


# kernel-lsp: x=i64[64, 250], y=i64[64, 250]
def integer_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y


# kernel-lsp: x=f32[64, 250], p=2.0
def power(x: torch.Tensor, p: float) -> torch.Tensor:
    return torch.pow(torch.abs(x), p)


# kernel-lsp: x=f32[64, 250]
def softplus(x: torch.Tensor) -> torch.Tensor:
    return F.softplus(x)


# kernel-lsp: x=f32[64, 250]
def variance(x: torch.Tensor) -> torch.Tensor:
    return x.var(dim=-1)


# kernel-lsp: x=f32[64, 1000], bias=f32[1000]
def bias_add(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return x + bias


# kernel-lsp: x=f32[64, 250]
def to_eighths(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x * 8.0) / 8.0


# kernel-lsp: x=f32[64, 250]
def to_parts_of_256(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x * 256.0) / 256.0


# kernel-lsp: x=bf16[N=4096], y=bf16[N]
def add_bf16(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


# kernel-lsp: x=i64[R=64, L=256] in [0, 4294967296)
def sum_of_words(x: torch.Tensor) -> torch.Tensor:
    return x.sum(dim=-1)


# kernel-lsp: x=f32[N=1048576]
def total(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


# kernel-lsp: x=i64[64, 250]
def one_more(x: torch.Tensor) -> torch.Tensor:
    return x + 1


# kernel-lsp: x=f32[32, 200]
def arg_max(x: torch.Tensor) -> torch.Tensor:
    return torch.argmax(x, dim=-1)


# kernel-lsp: x=f32[32, 200]
def arg_min(x: torch.Tensor) -> torch.Tensor:
    return torch.argmin(x, dim=-1)


# kernel-lsp: ids=i64[N=300], table=f32[V=1000, D=16]
def embed(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return F.embedding(ids, table)


# kernel-lsp: x=f32[B=32, V=200], target=i64[B]
def nll(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, target, reduction="none")


# kernel-lsp: x=f32[64, 256]
def count_positive(x: torch.Tensor) -> torch.Tensor:
    return (x > 0).sum(dim=-1)


# kernel-lsp: x=f32[64, 250], y=f32[64, 250], alpha=1.0, beta=1.0
def blended(x: torch.Tensor, y: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    return alpha * x + beta * y


# kernel-lsp: x=f32[64, 250], low=-1.0, high=1.0
def limited(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return torch.clamp(x, low, high)


# kernel-lsp: x=f32[48, 256], scale=0.125
def sharpened(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.softmax(x * scale, dim=-1)


# kernel-lsp: x=f32[64, 250], negate=True, halve=True
def switched(x: torch.Tensor, negate: bool, halve: bool) -> torch.Tensor:
    return (-x if negate else x) * (0.5 if halve else 1.0)


# kernel-lsp: x=f32[64, 250], below=8, above=8
def banded(x: torch.Tensor, below: int, above: int) -> torch.Tensor:
    rows = torch.arange(x.shape[0], device=x.device)[:, None]
    columns = torch.arange(x.shape[1], device=x.device)
    return x.masked_fill((rows - columns > below) | (columns - rows > above), 0.0)


class LayerScale(nn.Module):
    def __init__(self, dim: int = 512) -> None:
        super().__init__()
        self.gamma = nn.Parameter(1e-6 * torch.ones(dim))

    # kernel-lsp: x=f32[N=64, 512], y=f32[N, 512]
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + self.gamma * y


# kernel-lsp: q=f32[B=2, H=2, T=64, 32], k=f32[B, H, T, 32], v=f32[B, H, T, 32]
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


# kernel-lsp: x=f32[N=4096]
def to_integers(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-1e9, 1e9).to(torch.int32)


# kernel-lsp: x=f32[N=4096]
def rounded(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x.clamp(-1e9, 1e9)).to(torch.int32)


# kernel-lsp: x=f32[N=4096], step=0.05
def quantized(x: torch.Tensor, step: float) -> torch.Tensor:
    return torch.clamp(torch.round(x / step), -128, 127).to(torch.int8)


# kernel-lsp: x=f32[N=64, D=256], mask=bool[N, D]
def masked_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (x * mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)


# kernel-lsp: mask=bool[N=64, D=512]
def count_true(mask: torch.Tensor) -> torch.Tensor:
    return mask.sum(dim=-1)


# kernel-lsp: x=f32[N=64, D=256], eps=1e-6
def rms_scaled(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps)


# kernel-lsp: x=f32[N=8192], y=f32[N]
def mean_square(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(x, y)


# kernel-lsp: x=f32[32, 200]
def log_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x, dim=-1)


# kernel-lsp: x=f32[32, 200]
def smallest(x: torch.Tensor) -> torch.Tensor:
    return torch.amin(x, dim=-1)


# kernel-lsp: x=f32[32, 200]
def limited_to_one(x: torch.Tensor) -> torch.Tensor:
    return F.hardtanh(x)


# kernel-lsp: x=f32[B=40, D=160]
def var_rows(x: torch.Tensor) -> torch.Tensor:
    return x.var(dim=-1, unbiased=False)


# kernel-lsp: x=f32[B=64, D=512]
def long_row_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


# kernel-lsp: x=f32[B=64, D=128]
def softmax_of_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


# kernel-lsp: a=f32[M=40, K=512], b=f32[K, N=48]
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


# kernel-lsp: x=f32[N=2, C=4, H=12, W=14], weight=f32[O=6, C, 3, 3], bias=f32[O]
def conv3x3(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, weight, bias, padding=1)


# kernel-lsp: x=f32[N=5000], y=f32[N]
def mean_bce(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(x, y)


# kernel-lsp: x=f32[B=64, D=100], w=f32[D], b=f32[D]
def scale_shift(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return x * w + b


# kernel-lsp: x=f32[N=64, D=128]
def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


# kernel-lsp: x=f32[B=40, D=100]
def vec_norm(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(x, dim=-1)


# kernel-lsp: x=f32[B=32, D=1024]
def gelu_rows(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


# kernel-lsp: ids=i64[T=96] < V, table=f32[V=50, D=64]
def embedding2(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return F.embedding(ids, table)


# kernel-lsp: q=f32[B=4, T=32, D=32], k=f32[B, T, D], v=f32[B, T, D]
def attention_by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    s = q @ k.transpose(-1, -2) * 0.17677669529663687
    return torch.softmax(s, -1) @ v


# kernel-lsp: x=f32[N=40, 64], w=f32[64]
def rmsnorm64(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


# kernel-lsp: x=bf16[N=64, D=300], y=bf16[N, D]
def gated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.silu(x) * y


# kernel-lsp: x=f32[B=64, D=300]
def sentinel(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x == -999.25, torch.zeros_like(x), x)


# kernel-lsp: x=f32[B=128, D=512]
def softmax_of_512(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


# kernel-lsp: x=f64[B=64, D=300]
def twice_in_double(x: torch.Tensor) -> torch.Tensor:
    return x * 2.0


# kernel-lsp: init: n_in=256, n_out=64
class DifferenceOfOne(nn.Module):
    """The mean of one number is taken from it."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(n_in, n_out)

    # kernel-lsp: x=f32[B=32, 256]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        largest = torch.max(self.linear(x), dim=1, keepdim=True).values
        return F.gelu(largest - largest.mean(dim=1, keepdim=True))


# kernel-lsp: x=f32[B=64, D=300]
def layer_norm_without_weights(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:])


# kernel-lsp: x=f32[B=64, D=300]
def silu(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x)


# kernel-lsp: x=f32[B=64, D=300], y=f32[B, D], is_difference=False, is_positive=False
def sum_by_flags(x: torch.Tensor, y: torch.Tensor, is_difference: bool, is_positive: bool) -> torch.Tensor:
    value = x - y if is_difference else x + y
    return torch.relu(value) if is_positive else value


# kernel-lsp: x=f32[B=32, D=256]
def topk4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = torch.topk(x, 4, dim=-1)
    return values, places


# kernel-lsp: x=f32[B=32, D=256]
def kth5(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    value, place = torch.kthvalue(x, 5, dim=-1)
    return value, place


# kernel-lsp: x=f32[B=32, D=256]
def argsort(x: torch.Tensor) -> torch.Tensor:
    return torch.argsort(x, dim=-1)
