"""Run a captured target on a case: in fp64, as its graph on upcast inputs without casts among floats, and as the user
wrote it, at the declared dtypes."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..capture.backward import GRADIENT
from ..capture.captured import Captured
from ..capture.exported_program import Program, user_outputs
from ..capture.validation import call_original, differentiate, leaves_of
from ..cases.case_values import Case, placeholder_values, widened
from ..cases.families import GRADIENT_FAMILIES, GRADIENT_SCALES, NARROW_SCALE, draw
from ..failure import TargetFailure, raised_by_user, short_message
from ..operators import is_a

ATTENTION = "aten.scaled_dot_product_attention."
ATTENTION_BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward."
"""The step that a captured backward has for PyTorch's attention. It takes the forward's result, its 5th argument, and
its sums, the 6th."""
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def has_attention(program: Program) -> bool:
    """Check whether the code calls PyTorch's attention."""
    return any(str(node.target).startswith(ATTENTION) for node in program.functional.graph_module.graph.nodes)


@contextmanager
def attention_by_its_formula() -> Iterator[None]:
    """Have PyTorch compute attention by matrix products and a softmax. On a CPU its fused backward skips what a causal
    mask hides; on a GPU there is none in fp64."""
    is_fused = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_flash_sdp(is_fused)


def attention_of_seen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    product: Product = torch.matmul,
) -> torch.Tensor:
    """Return [..., L, V] for query [..., L, E], key [..., S, E] and value [..., S, V]; NaN in every row that sees a
    non-finite value. Dropout is ignored: it has no reference. `product` multiplies queries and keys."""
    if enable_gqa:
        key, value = _repeated(key, query.shape[-3]), _repeated(value, query.shape[-3])
    weights, hidden = _weights(product(query, key.mT) * _scale(query, scale), attn_mask, is_causal)
    is_special = ~torch.isfinite(value)
    sees_special = (~hidden).to(value.dtype) @ is_special.to(value.dtype) > 0
    return (weights @ value.masked_fill(is_special, 0.0)).masked_fill(sees_special, math.nan)


def _weights(
    scores: torch.Tensor, attn_mask: torch.Tensor | None, is_causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the softmax of the scores that no mask hides, and the mask of the hidden ones, both [..., L, S]."""
    hidden = torch.zeros_like(scores, dtype=torch.bool)
    if is_causal:
        hidden = torch.ones_like(hidden).triu(1)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        hidden = hidden | ~attn_mask
    elif attn_mask is not None:
        scores, hidden = scores + attn_mask, hidden | (attn_mask == -math.inf)
    return torch.softmax(scores.masked_fill(hidden, -math.inf), -1), hidden


def _scale(query: torch.Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _repeated(shared: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Return the keys or values of each of the `n_heads` heads, of which groups share one."""
    return shared.repeat_interleave(n_heads // shared.shape[-3], -3)


def attention_gradients(
    moved: Moved,
    dtype: torch.dtype,
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of query [B, H, L, E], key [B, G, S, E] and value [B, G, S, V] as PyTorch's fused kernels
    compute them: `weight * (gradient . value - gradient . out)`. `moved` replaces the two products of rows, which are
    equal where a weight is 1. Autograd subtracts `sum(weight * (gradient . value))`, so that the difference is 0."""
    keys, values = _repeated(key, query.shape[-3]), _repeated(value, query.shape[-3])
    weights, _ = _weights(query @ keys.mT * _scale(query, scale), attn_mask, is_causal)
    of_weights = moved(PRODUCT, (gradient, values.mT), gradient @ values.mT, dtype)
    terms = gradient * (weights @ values)
    of_row = moved(SUM, (terms,), terms.sum(-1, keepdim=True), dtype)
    of_scores = weights * (of_weights - of_row) * _scale(query, scale)
    shared = [of_scores.mT @ query, weights.mT @ gradient]
    grouped = [each.unflatten(1, (key.shape[1], -1)).sum(2) for each in shared]
    return of_scores @ keys, grouped[0], grouped[1]


PRODUCT, SUM = "aten.matmul.default", "aten.sum.dim_IntList"
MAX_MOVED_SCORES = 1 << 24
"""Maximum scores of an attention whose products are moved: in fp64 they take 128 MiB, and as much for each step."""
LIMITS_OF_DTYPE = "aten.nan_to_num."
"""The operation that inserts the dtype's largest number, which differs in float64."""


@dataclass(frozen=True)
class Meets:
    """An operation's first argument, by its node's name: its dtype in the code, whether it is an input or computed, and
    the dimension of the operation, None where it has none."""

    name: str
    dtype: torch.dtype
    is_input: bool
    dim: int | None


Change = Callable[[torch.Tensor, Meets], torch.Tensor]
"""Returns the replacement of an operation's first argument."""


@dataclass(frozen=True)
class Seen:
    """Replaces the first argument of the operations of this kind, a word of `operators.json`."""

    kind: str
    change: Change


Widen = Callable[[Any], Any]
"""Returns an input in float64."""
Moved = Callable[[str, Sequence[Any], Any, torch.dtype], Any]
"""Returns the replacement of a result, from an operation, its arguments, its result, and the result's dtype in the
code."""


class ExactInterpreter(torch.fx.Interpreter):
    """Runs the user's graph in float64: a cast to a lower dtype inside the code must not round the reference. Tensors
    that the graph creates are on its inputs' device. `attention` replaces PyTorch's own; `seen` replaces the first
    argument of some operations; `moved` replaces results of others, and of the products within an attention."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        device: torch.device,
        attention: Callable[..., torch.Tensor] | None,
        seen: Seen | None,
        moved: Moved | None,
        widen: Widen,
    ) -> None:
        super().__init__(module)
        self._device, self._attention, self._seen, self._moved = device, attention, seen, moved
        self._widen, self._wide = widen, set[torch.fx.Node]()

    def run_node(self, n: torch.fx.Node) -> Any:
        self._node = n
        for source in n.all_input_nodes:
            self._widen_input(source)
        return super().run_node(n)

    def _widen_input(self, source: torch.fx.Node) -> None:
        """Widen an input at its first use. It is freed after its last, so all of them are never wide at once."""
        if source.op == "placeholder" and source not in self._wide:
            self._wide.add(source)
            self.env[source] = self._widen(self.env[source])

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if is_a(target, "assertion"):
            return None
        if (attention := self._attention_for(target, args)) is not None:
            return attention(*_widened(args, self._device), **_widened(kwargs, self._device))
        if self._moved is not None and _is_attention_backward(target):
            return self._gradients_of_batches(*_widened(args, self._device), **_widened(kwargs, self._device))
        if self._seen is not None and is_a(target, self._seen.kind) and args[0].is_floating_point():
            source: Any = self._node.args[0]
            dim, is_input = _dim(target, args, kwargs), source.op == "placeholder"
            meets = Meets(self._node.name, source.meta["val"].dtype, is_input, dim)
            args = (self._seen.change(args[0], meets), *args[1:])
        args = _widened(args, self._device)
        if target is torch.ops.aten.view.default:
            target = torch.ops.aten.reshape.default  # what replaces attention has other strides
        if str(target).startswith(LIMITS_OF_DTYPE):
            args, kwargs = _with_limits(args, kwargs, self._node.meta["val"].dtype), {}
        result = super().call_function(target, args, _widened(kwargs, self._device))
        if self._moved is not None and args and isinstance(args[0], torch.Tensor):
            made: Any = self._node.meta.get("val")
            first = made[0] if isinstance(made, (tuple, list)) and made else made
            return self._moved(str(target), args, result, getattr(first, "dtype", torch.float32))
        return result

    def _attention_for(self, target: Any, args: Any) -> Callable[..., torch.Tensor] | None:
        """Return what replaces PyTorch's attention: its formula, so that its products are moved as others are."""
        if not str(target).startswith(ATTENTION):
            return None
        if self._attention is not None or self._moved is None:
            return self._attention
        n_scores = args[0].numel() // args[0].shape[-1] * args[1].shape[-2]
        return partial(attention_of_seen, product=self._moved_product) if n_scores <= MAX_MOVED_SCORES else None

    def _moved_product(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        assert self._moved is not None
        return self._moved(PRODUCT, (left, right), left @ right, self._node.meta["val"].dtype)

    def _gradients_of_batches(
        self,
        gradient: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *others: Any,
        **of: Any,
    ) -> tuple[torch.Tensor, ...]:
        """Compute the gradients of an attention for so many batches at a time that their scores fit into memory. Raises
        NotImplementedError for many scores on a CPU, which takes minutes; PyTorch's own error shows as much there."""
        assert self._moved is not None
        mask, n_scores = of.get("attn_mask"), query.shape[1] * query.shape[2] * key.shape[2]
        if query.device.type == "cpu" and len(query) * n_scores > MAX_MOVED_SCORES:
            raise NotImplementedError(f"{len(query) * n_scores} scores of an attention on a CPU")
        n_batches = max(1, MAX_MOVED_SCORES // max(1, n_scores))
        whole = [gradient, query, key, value] + ([] if mask is None else [mask.expand(len(query), -1, -1, -1)])
        one = partial(attention_gradients, self._moved, self._node.meta["val"][0].dtype, is_causal=others[3])
        parts = [
            one(*part[:4], attn_mask=next(iter(part[4:]), None), scale=of.get("scale"))
            for part in zip(*(each.split(n_batches) for each in whole))
        ]
        return tuple(torch.cat(of_one) for of_one in zip(*parts))


def run_exact(
    program: Program,
    values: Sequence[torch.Tensor],
    attention: Callable[..., torch.Tensor] | None = None,
    seen: Seen | None = None,
    moved: Moved | None = None,
    widen: Widen | None = None,
) -> list[torch.Tensor]:
    """Return the user's outputs in float64, from the placeholders' values. `attention` replaces PyTorch's, `seen` first
    arguments, `moved` results. `widen` converts inputs, each at its first use, in the order of the graph."""
    device = values[0].device if values else torch.device("cpu")
    module = program.functional.graph_module
    interpreter = ExactInterpreter(module, device, attention, seen, moved, widen or widened)
    with _float64_unless_said():
        results = list(interpreter.run(*values, enable_io_processing=False))
    return results[len(results) - len(user_outputs(program.functional)) :]


def run_steps(module: torch.fx.GraphModule, values: Sequence[torch.Tensor], moved: Moved) -> list[torch.Tensor]:
    """Return the results of a captured graph in float64, forward or backward. `moved` replaces those of its steps."""
    device = values[0].device if values else torch.device("cpu")
    with _float64_unless_said():
        return list(
            ExactInterpreter(module, device, None, None, moved, widened).run(*values, enable_io_processing=False)
        )


def without_attention_forward(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return a backward graph without the forward of its attention, which `attention_gradients` computes again; the
    graph itself where it has no attention. The forward would hold the scores of all batches at once."""
    if not any(_is_attention_backward(node.target) for node in module.graph.nodes):
        return module
    pruned = copy.copy(module)
    pruned.graph = copy.deepcopy(module.graph)
    for node in pruned.graph.nodes:
        if _is_attention_backward(node.target):
            gradient = node.args[0]
            node.args = (*node.args[:4], gradient, gradient, *node.args[6:])
    pruned.graph.eliminate_dead_code()
    return pruned


def _is_attention_backward(target: object) -> bool:
    return str(target).startswith(ATTENTION_BACKWARD)


def _dim(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> int | None:
    """Return the operation's dimension, by its schema."""
    for position, argument in enumerate(target._schema.arguments):
        if argument.name == "dim":
            dim = args[position] if position < len(args) else kwargs.get("dim", argument.default_value)
            return int(dim)
    return None


@contextlib.contextmanager
def _float64_unless_said() -> Iterator[None]:
    """Make float64 the default dtype of tensors that the code creates without one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _with_limits(args: Sequence[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> tuple[Any, ...]:
    """Return the arguments of `nan_to_num` with the replacements of infinities at the code's dtype."""
    given = dict(zip(("self", "nan", "posinf", "neginf"), args)) | kwargs
    limits = torch.finfo(dtype)
    high, low = given.get("posinf"), given.get("neginf")
    return given["self"], given.get("nan"), limits.max if high is None else high, limits.min if low is None else low


def _widened(value: Any, device: torch.device) -> Any:
    """Return `value` with every floating dtype replaced by float64, and every device by this one."""
    if isinstance(value, torch.device):
        return device
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    if isinstance(value, (list, tuple)):
        return type(value)(_widened(entry, device) for entry in value)
    if isinstance(value, dict):
        return {name: _widened(entry, device) for name, entry in value.items()}
    return value


CPU = torch.device("cpu")


@dataclass(frozen=True)
class ReferenceRun:
    """One direction of a captured target, on inputs of one family."""

    captured: Captured
    family: str
    seed: int
    is_backward: bool

    def exact(
        self,
        values: Sequence[torch.Tensor],
        gradients: Callable[[list[torch.Tensor]], list[torch.Tensor]],
        *,
        widen: Widen = widened,
        moved: Moved | None = None,
    ) -> list[torch.Tensor]:
        """Return the fp64 results: outputs, or the gradients of the wanted arguments, from `gradients` of outputs."""
        if not self.is_backward:
            with torch.no_grad():
                return run_exact(self.captured.program, values, moved=moved, widen=widen)
        leaves = leaves_of(self.captured, [widen(value) for value in values])
        outputs = run_exact(self.captured.program, leaves, moved=moved)
        return differentiate(self.captured, outputs, leaves, gradients(outputs))

    def expected(self, case: Case, original: Case) -> list[torch.Tensor]:
        """Return the fp64 results on a case's own inputs. Fills in the original's gradients."""

        def drawn(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
            original.gradients = self._gradients(outputs)
            return [gradient.to(outputs[0].device).double() for gradient in original.gradients]

        values = placeholder_values(self.captured, case)
        try:
            return self.exact(values, drawn)
        except Exception as error:  # any operator may refuse these sizes or values, with any exception
            raise _refused(self.captured, error) from None

    def native(self, case: Case, expected: list[torch.Tensor]) -> tuple[list[torch.Tensor], str]:
        """Run the user's own code at the declared dtypes. Returns the rounded reference and a note where torch has no
        kernel for it."""
        captured, values = self.captured, placeholder_values(self.captured, case)
        try:
            if not self.is_backward:
                with torch.no_grad():
                    return call_original(captured, values), ""
            leaves = leaves_of(captured, values)
            return differentiate(captured, call_original(captured, leaves), leaves, case.gradients), ""
        except (RuntimeError, NotImplementedError) as error:
            if "not implemented for" not in str(error):
                raise _refused(captured, error) from None
            dtypes = result_dtypes(captured, self.is_backward)
            note = f"PyTorch cannot run this on a CPU ({short_message(error)}): its result is the rounded reference"
            return [result.to(dtype) for result, dtype in zip(expected, dtypes)], note
        except Exception as error:  # as in `expected`
            raise _refused(captured, error) from None

    def _gradients(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return random gradients of the floating outputs, at their declared dtypes, on the CPU."""
        family, exponent = GRADIENT_FAMILIES.get(self.family, "normal"), GRADIENT_SCALES.get(self.family, 0)
        captured, dtypes = self.captured, _declared_outputs(self.captured)
        assert captured.backward is not None, "gradients are for a backward pass"
        found = []
        with CPU:
            for p in captured.backward.outputs:
                name, shape = GRADIENT + captured.output_names[p], tuple(outputs[p].shape)
                scale = 2.0 ** (exponent / NARROW_SCALE if dtypes[p] == torch.float16 else exponent)
                found.append(draw(family, shape, dtypes[p], self.seed, name) * scale)
        return found


def result_dtypes(captured: Captured, is_backward: bool) -> list[torch.dtype]:
    """Return the declared dtypes of the outputs, or of the gradients that exist."""
    if not is_backward:
        return _declared_outputs(captured)
    assert captured.backward is not None
    pairs = zip(captured.backward.of, captured.backward.results)
    return [captured.program.fake_inputs[position].dtype for position, result in pairs if result is not None]


def _refused(captured: Captured, error: BaseException) -> TargetFailure:
    source = captured.source
    return raised_by_user(
        error,
        "running the target on test inputs",
        source["file"],
        line=source["line"],
        next_step="capture with sizes at which the target runs",
    )


def _declared_outputs(captured: Captured) -> list[torch.dtype]:
    return [node.meta["val"].dtype for node in user_outputs(captured.program.functional)]
