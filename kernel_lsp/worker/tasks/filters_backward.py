"""Compare a task folder's own backward with the gradients of its forward. A kernel in place of `backward_fn` must
agree."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from ..capture.inputs import CallInputs
from ..capture.load import Callee, load_file
from ..capture.outputs import flatten_outputs
from ..capture.program import quiet
from ..capture.robust_kbench import build, read_settings
from ..capture.validation import seeded
from ..failure import Failure
from ..hide_cuda import without_cuda

BACKWARD_FILE = "func_backward.py"
AUTOGRAD_FUNCTION, BACKWARD_FUNCTION = "AutogradFunction", "backward_fn"
GRADIENT_SEED = 21


def compare_backward(source: dict[str, Any], configuration: int, seed: int) -> dict[str, Any]:
    """Return ``{"error", "dtype", "problem"}``: the largest relative L2 distance of any gradient, None without a
    backward file or where `problem` says why it is unknown. `dtype` is the narrowest among the gradients'."""
    file = os.path.join(os.path.dirname(os.path.abspath(source["file"])), BACKWARD_FILE)
    nothing = {"error": None, "dtype": "", "problem": ""}
    if source["kind"] != "robust_kbench" or not os.path.isfile(file):
        return nothing
    try:
        ours, theirs = [_load(path, source, configuration, seed) for path in (source["file"], file)]
        theirs[0].owner.load_state_dict(ours[0].owner.state_dict())
        with seeded(seed):
            tensors = ours[1].fresh() if ours[1].fresh is not None else []
        gradients = [_gradients(callee, inputs, tensors, file) for callee, inputs in (ours, theirs)]
    except Failure as failure:
        return {**nothing, "problem": failure.message}
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError) as error:  # of autograd or the user's code
        return {**nothing, "problem": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    return {**nothing, **_distance(*gradients)}


# --- below


def _load(file: str, source: dict[str, Any], configuration: int, seed: int) -> tuple[Callee, CallInputs]:
    """Build the model of one of the folder's files, in the same configuration."""
    loaded = load_file(file)
    own = getattr(loaded.module, AUTOGRAD_FUNCTION, None)
    if os.path.basename(file) == BACKWARD_FILE and not callable(getattr(own, BACKWARD_FUNCTION, None)):
        raise Failure(f"{BACKWARD_FILE} has no class {AUTOGRAD_FUNCTION} with a {BACKWARD_FUNCTION}", file=file)
    with seeded(seed):
        return build(loaded, {**source, "file": file}, read_settings(source["file"])[configuration])


def _gradients(
    callee: Callee, inputs: CallInputs, tensors: Sequence[torch.Tensor], file: str
) -> dict[str, torch.Tensor]:
    """Return the gradients of every floating input and parameter, by name, for the same random gradient of every
    output."""
    leaves = [tensor.detach().clone().requires_grad_(tensor.is_floating_point()) for tensor in tensors]
    positional, keywords = inputs.rebuild(leaves)
    generator = torch.Generator().manual_seed(GRADIENT_SEED)
    with quiet(), without_cuda(), torch.enable_grad():
        outputs = [tensor for _, tensor in flatten_outputs(callee.call(*positional, **keywords), file, None)]
        reached = [tensor for tensor in outputs if tensor.requires_grad]
        given = [torch.randn(tensor.shape, generator=generator).to(tensor.dtype) for tensor in reached]
        names = [leaf.name for leaf, tensor in zip(inputs.tensors, leaves) if tensor.requires_grad]
        wanted = [tensor for tensor in leaves if tensor.requires_grad]
        parameters = {name: p for name, p in callee.owner.named_parameters() if p.requires_grad}
        found = torch.autograd.grad(reached, [*wanted, *parameters.values()], given, allow_unused=True)
    pairs = zip([*names, *parameters], found)
    return {name: gradient.detach() for name, gradient in pairs if gradient is not None}


def _distance(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> dict[str, Any]:
    if ours.keys() != theirs.keys():
        only = sorted(ours.keys() ^ theirs.keys())
        return {"problem": f"one of forward and backward has no gradient of {', '.join(only)}"}
    worst = 0.0
    for name, expected in ours.items():
        if expected.shape != theirs[name].shape:
            return {"problem": f"the gradient of '{name}' has shape {list(theirs[name].shape)}"}
        size = float(expected.double().norm())
        worst = max(worst, float((theirs[name].double() - expected.double()).norm()) / (size or 1.0))
    narrowest = min((gradient.dtype for gradient in ours.values()), key=lambda dtype: -torch.finfo(dtype).eps)
    return {"error": worst if worst == worst else float("inf"), "dtype": str(narrowest).replace("torch.", "")}
