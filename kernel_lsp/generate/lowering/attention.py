"""Lower the gradient of scaled dot-product attention, which the graph keeps as one call, to products and a softmax.

It is that of the FlashAttention paper (Dao et al. 2022, appendix B.2) without its tiling: probabilities are
recomputed from the log-sum-exp of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.index import ONE, Index, divide_exactly
from kernel_lsp.generate.ir.scalar import Access, Scalar, cast, compare, index_value, select
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.lowering.arithmetic import number, op
from kernel_lsp.generate.lowering.builder import Call, Shape, accumulation_dtype, lowers, read
from kernel_lsp.generate.lowering.contraction import Factors, converted

MINUS_INFINITY = float("-inf")


@lowers("_scaled_dot_product_flash_attention_for_cpu_backward")
def _attention_backward(call: Call) -> tuple[Tensor, ...]:
    attention = _Attention.of(call)
    grad = call.tensor(0, "grad_out")
    # The graph's own logsumexp is unreliable: the decomposition of the forward returns the probabilities instead.
    scores = attention.scores()
    probabilities = attention.probabilities(scores, attention.log_sum_exp(scores))
    grad_value = attention.over_queries(probabilities, grad, "grad_value")
    grad_probabilities = attention.product(grad, attention.value, "grad_probabilities")
    own = attention.row_products(probabilities, grad_probabilities)
    dtype = attention.dtype

    def body(index: tuple[Index, ...]) -> Scalar:
        difference = op("sub", Access(grad_probabilities, index), Access(own, index[:-1]))
        return op("mul", op("mul", Access(probabilities, index), difference), number(attention.scale, difference))

    grad_scores = call.builder.pointwise(dtype, grad_probabilities.shape, body, name="grad_scores")
    grad_query = attention.weighted(grad_scores, attention.key, "grad_query")
    grad_key = attention.over_queries(grad_scores, attention.query, "grad_key")
    return tuple(converted(call, tensor, item) for item, tensor in enumerate((grad_query, grad_key, grad_value)))


def _repeated(call: Call, tensor: Tensor, n_shared: Index) -> Tensor:
    """Return keys or values with one head for each head of the queries."""
    if n_shared == ONE:
        return tensor
    batch, heads, *rest = tensor.shape
    shape = (batch, heads * n_shared, *rest)
    return call.builder.view(tensor, shape, lambda index: (index[0], index[1] // n_shared, *index[2:]))


@dataclass(frozen=True)
class _Attention:
    """The operands of one call."""

    call: Call
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    is_causal: bool
    scale: float
    n_shared: Index
    """Queries' heads that share a head of keys and values."""
    key_batch: Shape
    """Shape of the keys without their last two dims: batch and heads."""

    @classmethod
    def of(cls, call: Call) -> _Attention:
        """Read the operands of a call."""
        query, key, value = (call.tensor(position, "query") for position in (1, 2, 3))
        dropout, causal = call.raw(6, "dropout_p", 0.0), call.raw(7, "is_causal", False)
        if dropout:
            call.fail("its dropout is random")
        n_shared = divide_exactly(query.shape[1], key.shape[1]) if len(query.shape) == len(key.shape) else None
        if n_shared is None or not call.builder.same_size(key.shape[1], value.shape[1]):
            call.fail("the number of heads of the queries is no known multiple of that of the keys")
        scale = call.optional_number(99, "scale")
        size = query.shape[-1].constant
        if scale is None and size is None:
            call.fail("the size of a head must be fixed")
        chosen = float(scale) if scale is not None else float(size or 1) ** -0.5
        key_batch = key.shape[:-2]
        key, value = (_repeated(call, tensor, n_shared) for tensor in (key, value))
        mask_tensor = call.optional_tensor(8, "attn_mask")
        return cls(call, query, key, value, mask_tensor, bool(causal), chosen, n_shared, key_batch)

    @property
    def dtype(self) -> DType:
        return accumulation_dtype(self.query.dtype)

    def scores(self) -> Tensor:
        """Return the scaled and masked products of queries and keys, (..., T, S)."""
        products = self.product(self.query, self.key, "scores")

        def body(index: tuple[Index, ...]) -> Scalar:
            return self._masked(op("mul", Access(products, index), number(self.scale, Access(products, index))), index)

        return self.call.builder.pointwise(self.dtype, products.shape, body, name="scores")

    def log_sum_exp(self, scores: Tensor) -> Tensor:
        """Return log(sum(exp)) of every row, as ATen saves it."""
        axis = len(scores.shape) - 1

        def body(index: tuple[Index, ...]) -> Scalar:
            return Access(scores, index)

        peak = self.call.builder.reduction("max", self.dtype, scores.shape, (axis,), body, name="peak")

        def shifted_exp(index: tuple[Index, ...]) -> Scalar:
            return op("exp", op("sub", Access(scores, index), Access(peak, index[:-1])))

        total = self.call.builder.reduction("sum", self.dtype, scores.shape, (axis,), shifted_exp, name="sum_exp")

        def both(index: tuple[Index, ...]) -> Scalar:
            return op("add", Access(peak, index), op("log", Access(total, index)))

        return self.call.builder.pointwise(self.dtype, total.shape, both, name="log_sum_exp")

    def probabilities(self, scores: Tensor, log_sum: Tensor) -> Tensor:
        def body(index: tuple[Index, ...]) -> Scalar:
            return op("exp", op("sub", Access(scores, index), cast(Access(log_sum, index[:-1]), self.dtype)))

        return self.call.builder.pointwise(self.dtype, scores.shape, body, name="probabilities")

    def product(self, left: Tensor, right: Tensor, name: str) -> Tensor:
        """Return left @ right^T over the size of a head: (..., T, S)."""
        shape = (*left.shape[:-1], right.shape[-2])

        def factors(index: tuple[Index, ...], k: tuple[Index, ...]) -> tuple[Scalar, Scalar]:
            return Access(left, (*index[:-1], k[0])), Access(right, (*index[:-2], index[-1], k[0]))

        return self._contract(shape, (left.shape[-1],), factors, name)

    def weighted(self, weights: Tensor, values: Tensor, name: str) -> Tensor:
        """Return weights @ values: (..., T, D)."""
        shape = (*weights.shape[:-1], values.shape[-1])

        def factors(index: tuple[Index, ...], k: tuple[Index, ...]) -> tuple[Scalar, Scalar]:
            return Access(weights, (*index[:-1], k[0])), Access(values, (*index[:-2], k[0], index[-1]))

        return self._contract(shape, (weights.shape[-1],), factors, name)

    def over_queries(self, weights: Tensor, rows: Tensor, name: str) -> Tensor:
        """Return weights^T @ rows, summed over the heads that share keys: (..., S, D)."""
        shape = (*self.key_batch, weights.shape[-1], rows.shape[-1])
        shared = () if self.n_shared == ONE else (self.n_shared,)

        def factors(index: tuple[Index, ...], k: tuple[Index, ...]) -> tuple[Scalar, Scalar]:
            head = index[1] * self.n_shared + k[0] if shared else index[1]
            outer = (index[0], head, *index[2:-2], k[-1])
            return Access(weights, (*outer, index[-2])), Access(rows, (*outer, index[-1]))

        return self._contract(shape, (*shared, weights.shape[-2]), factors, name)

    def row_products(self, probabilities: Tensor, grads: Tensor) -> Tensor:
        """Return the row sums of probabilities times their gradients, which are those of the result times its
        gradient, without the result."""

        def body(index: tuple[Index, ...]) -> Scalar:
            return op("mul", Access(probabilities, index), Access(grads, index))

        axes = (len(grads.shape) - 1,)
        return self.call.builder.reduction("sum", self.dtype, grads.shape, axes, body, name="row_products")

    def _contract(self, shape: Shape, reduced: Shape, factors: Factors, name: str) -> Tensor:
        rank = len(shape)
        axes = (tuple(range(rank - 2)), (rank - 2,), (rank - 1,))
        return self.call.builder.contraction(self.dtype, shape, reduced, factors, axes, name=name)

    def _masked(self, score: Scalar, index: Sequence[Index]) -> Scalar:
        if self.is_causal:
            is_seen = compare("le", index_value(index[-1]), index_value(index[-2]))
            score = select(is_seen, score, number(MINUS_INFINITY, score))
        if self.mask is None:
            return score
        mask = read(self.mask, index)
        if mask.dtype == DType.BOOL:
            return select(mask, score, number(MINUS_INFINITY, score))
        return op("add", score, cast(mask, score.dtype))
