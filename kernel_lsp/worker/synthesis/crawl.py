"""The command `crawl_operators`: list torch's operators with their signatures, and the uses that a probe found.

Three namespaces are read: `torch`, `torch.nn.functional` and the modules of `torch.nn`. A signature comes from Python
where the operator is written in it, else from its ATen schema.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Iterator
from random import Random
from typing import Any, Callable

import torch
from torch.overrides import get_overridable_functions
from torch.utils._python_dispatch import TorchDispatchMode

from .tensors import NORMAL, POSITIVE, RANGES, STRATEGIES, UNIT, call_operator, draw_call, draw_values, tensor_arguments

MODULE, FUNCTION = "module", "function"
EXCLUDED_PARTS = (
    "dropout rrelu random rand bernoulli multinomial normal_ poisson gumbel fractional quantize quantized cudnn "
    "miopen mkldnn sparse fbgemm backward native_ convolution lazy container crossmaplrn triton _copy unsafe "
    "cholesky svd lstsq pinverse slogdet matrix_exp matrix_power renorm as_strided resize empty storage "
    "batch_norm_ embedding_renorm"
).split()
"""Parts of names that are left out: random draws, other layouts and vendors, factorizations, and internal forms."""
EXCLUDED = frozenset(
    "Module ModuleList ModuleDict Sequential ParameterList ParameterDict Identity Flatten Unflatten clone detach alias "
    "det logdet inverse qr lu geqrf ormqr orgqr sym_sqrt resolve_conj resolve_neg asarray hash_tensor "
    "frobenius_norm nuclear_norm adaptive_max_pool1d_with_indices conv_tbc max_pool1d_with_indices positive "
    "arctan arcsin arccos arcsinh arccosh arctanh absolute negative multiply divide true_divide subtract clip "
    "greater fix inner_product ger threshold Transformer SyncBatchNorm argwhere nonzero nonzero_static "
    "unique_consecutive zeros_like ones_like combinations binomial nextafter norm_except_dim take arctan2 histc "
    "heaviside lobpcg pca_lowrank einsum diagflat kron vander block_diag cartesian_prod tensordot".split()
)
"""Names that are left out beside those: containers, identities, and aliases of other operators."""
NAMESPACES = {"torch": "torch", "torch.nn.functional": "F", "torch.nn": "nn"}
SHAPES = {1: (24,), 2: (6, 16), 3: (4, 8, 18), 4: (2, 8, 9, 10), 5: (2, 4, 6, 7, 8)}
"""Rank -> the probe's shape. Sizes differ, so that an operator which needs equal ones is noticed."""
N_TRIES = 2
MAX_OPERANDS = 2
RESULTS = {torch.float32: "float", torch.int64: "int"}


def crawl_operators(request: dict[str, Any]) -> dict[str, Any]:
    """Return a share of the catalogue: ``{"share", "n_shares"}`` -> ``{"operators": [...], "torch_version"}``.

    `uses` of an operator may be empty: nothing that was drawn for it gave a finite tensor.
    """
    torch.set_num_threads(1)  # shares run in parallel, on tensors too small to split
    entries = list(_entries())[int(request["share"]) :: int(request["n_shares"])]
    found = [{**entry, "uses": find_uses(entry, resolve_operator(entry))} for entry in entries]
    return {"operators": found, "torch_version": torch.__version__}


def resolve_operator(entry: dict[str, Any]) -> Callable[..., Any]:
    """Return the function or the module's class of a catalogue's entry."""
    return getattr(importlib.import_module(entry["namespace"]), entry["name"])


def _entries() -> Iterator[dict[str, Any]]:
    for namespace, kind, name, value in _candidates():
        if _is_excluded(name):
            continue
        arguments = module_arguments(value) if kind == MODULE else function_arguments(value, name)
        if arguments is not None:
            yield {
                "name": name,
                "namespace": namespace,
                "short": f"{NAMESPACES[namespace]}.{name}",
                "kind": kind,
                "arguments": arguments,
            }


def _candidates() -> Iterator[tuple[str, str, str, Any]]:
    for name, value in sorted(vars(torch.nn).items()):
        if isinstance(value, type) and issubclass(value, torch.nn.Module):
            yield "torch.nn", MODULE, name, value
    functions, known = get_overridable_functions(), set()
    for namespace, module in (("torch.nn.functional", torch.nn.functional), ("torch", torch)):
        names = {function.__name__ for function in functions[module]}
        if module is torch:
            names |= {function.__name__ for function in functions.get(torch.functional, ())}
        for name in sorted(names):
            if callable(getattr(module, name, None)) and name not in known:  # torch repeats those of nn.functional
                known.add(name)
                yield namespace, FUNCTION, name, getattr(module, name)


def _is_excluded(name: str) -> bool:
    lowered = name.lower()
    hidden = name.startswith("_") or name.endswith("_") or name in EXCLUDED
    return hidden or any(part in lowered for part in EXCLUDED_PARTS)


def module_arguments(module: type) -> list[dict[str, Any]] | None:
    """Return the arguments of a module's constructor, and its forward's tensors; None where they cannot be read."""
    try:
        constructor = inspect.signature(module)
        forward = inspect.signature(module.forward)  # type: ignore[attr-defined]  # of torch.nn
    except (TypeError, ValueError):
        return None
    tensors = [argument for argument in list(forward.parameters.values())[2:] if argument.default is argument.empty]
    if _is_open(constructor) or any(one.kind is one.VAR_POSITIONAL for one in tensors):
        return None
    return [_argument(one) for one in constructor.parameters.values()] + [
        {**_argument(one), "type": "Tensor", "is_call": True} for one in tensors if one.kind is not one.VAR_KEYWORD
    ]


def function_arguments(function: Callable[..., Any], name: str) -> list[dict[str, Any]] | None:
    """Return a function's arguments after its first tensor; None where its signature is unknown."""
    try:
        signature = inspect.signature(function)
        if not _is_open(signature):
            return [_argument(one) for one in list(signature.parameters.values())[1:]]
    except (TypeError, ValueError):
        pass
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        arguments = schema.arguments
        if arguments and str(arguments[0].type) == "Tensor" and not any(one.name == "out" for one in arguments):
            return [_schema_argument(one) for one in arguments[1:]]
    return None


def _is_open(signature: inspect.Signature) -> bool:
    return any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in signature.parameters.values())


def _argument(parameter: inspect.Parameter) -> dict[str, Any]:
    annotation = parameter.annotation
    type_ = "" if annotation is parameter.empty else str(getattr(annotation, "__name__", annotation))
    return {
        "name": parameter.name,
        "type": "Tensor" if type_.endswith("Tensor") else type_,
        "is_required": parameter.default is parameter.empty,
    }


def _schema_argument(argument: Any) -> dict[str, Any]:
    return {
        "name": argument.name,
        "type": str(argument.type),
        "is_required": not argument.has_default_value(),
    }


def find_uses(entry: dict[str, Any], operator: Callable[..., Any]) -> list[dict[str, Any]]:
    """Return the uses of an operator: ``{"rank", "values", "strategies", "result", "result_values", "ops"}``."""
    n_operands = len(tensor_arguments(entry))
    if n_operands > MAX_OPERANDS:
        return []
    return [
        use
        for rank in SHAPES
        for strategies in _strategies(n_operands)
        if (use := _widest(entry, operator, rank, list(strategies))) is not None
    ]


def _strategies(n_operands: int) -> list[tuple[str, ...]]:
    """Return the operands' strategies to try. Two operands are alike, or the second is of labels."""
    alike = [(name,) * n_operands for name in STRATEGIES]
    labels = ("classes", "signs") if n_operands == 2 else ()
    return list(dict.fromkeys([*alike, *(("same", name) for name in labels)]))


def _widest(
    entry: dict[str, Any], operator: Callable[..., Any], rank: int, strategies: list[str]
) -> dict[str, Any] | None:
    """Return the use with the widest range of values that works."""
    for values in RANGES:
        results = list(_results(entry, operator, rank, values, strategies))
        if all(result is None for _, result in results):
            return None  # shapes do not fit: so they would not in another range
        good = [ops for ops, result in results if _is_good(result)]
        if good and not any(_is_broken(result) for _, result in results):
            tensors = [result for _, result in results if _is_good(result)]
            return {
                "rank": rank,
                "values": values,
                "strategies": strategies,
                "result": RESULTS[tensors[0].dtype],
                "result_values": _range(tensors),
                "ops": good[0],
            }
    return None


def _results(
    entry: dict[str, Any], operator: Callable[..., Any], rank: int, values: str, strategies: list[str]
) -> Iterator[tuple[list[str], Any]]:
    """Yield the operators that ran and the result, for each draw of the arguments; None for a failure."""
    for number in range(N_TRIES):
        random = Random(f"{entry['short']}/{rank}/{number}")
        shape = SHAPES[rank]
        drawn = draw_call(entry, shape, values, strategies, random)
        if drawn is None:
            return
        scalars, operands = drawn
        generator = torch.Generator().manual_seed(number)
        first = draw_values(shape, values, generator)
        given = {n: draw_values(each.shape, each.values, generator, each.high) for n, each in operands.items()}
        yield _run(entry, operator, first, scalars, given)


def _run(
    entry: dict[str, Any],
    operator: Callable[..., Any],
    first: torch.Tensor,
    scalars: dict[str, Any],
    operands: dict[str, torch.Tensor],
) -> tuple[list[str], Any]:
    before, names = first.clone(), _Names()
    try:
        with warnings.catch_warnings(), torch.no_grad(), names:
            warnings.simplefilter("error")  # a deprecated or doubtful use makes no good task
            result = call_operator(entry, operator, first, scalars, operands)
    except Exception:  # whatever an operator says of drawn arguments, they are not for it
        return names.names, None
    memory = first.untyped_storage().data_ptr()
    is_new = isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() != memory
    return names.names, result if is_new and torch.equal(before, first) else None


def _is_good(result: Any) -> bool:
    return (
        isinstance(result, torch.Tensor) and result.dtype in RESULTS and result.numel() > 0 and not _is_broken(result)
    )


def _is_broken(result: Any) -> bool:
    """Tell a result that is not finite: the operator needs a narrower range."""
    return isinstance(result, torch.Tensor) and not bool(torch.isfinite(result).all())


def _range(results: list[torch.Tensor]) -> str:
    low = min(float(result.min()) for result in results)
    high = max(float(result.max()) for result in results)
    if low <= 0.0:
        return NORMAL
    return UNIT if high < 1.0 else POSITIVE


class _Names(TorchDispatchMode):
    """Note the names of the ATen operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))
