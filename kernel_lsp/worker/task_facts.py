"""The commands `examine_task`, which measures the facts that the filters for tasks need by running the user's own code,
and `try_inputs`, which finds the first of several descriptions of a target's inputs that its code accepts: it runs on
fake tensors, which have a shape and no data, so trying takes neither memory nor time.

Nothing is judged here: the thresholds are in `kernel_lsp.verify.task_filters`. The code runs in the mode that it was
constructed in, on a GPU where torch sees one, and on the user's own inputs.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from .capture.attempt import is_data_dependent
from .capture.exported_program import quiet
from .capture.inputs import CallInputs, TensorLeaf, inputs_of
from .capture.lifting import state_of
from .capture.load import Callee, LoadedFile, load_file, resolve
from .capture.returned import flatten_outputs
from .capture.robust_kbench import build, read_settings
from .capture.validation import seeded
from .cases.families import FAMILIES
from .cases.integers import PLAIN, limited
from .failure import EnvironmentFailure, Failure, TargetFailure, raised_by_user, short_message
from .host import without_cuda

RUN_SEED = 20
"""Seed of the random state while the code runs, so that only inputs or weights make a difference."""
MIN_NOISE = 0.1
"""Minimum change of a weight, where its own values are smaller: zeros count as weights, too."""
N_TIMED_RUNS = {"cuda": 10, "cpu": 3}
DEFAULT_INTEGERS = (0, 2)
MAX_NAMED_WEIGHTS = 64
"""Maximum weights that are changed one by one; more are only changed all together."""
COMPILERS = {"cuda": "inductor", "cpu": "aot_eager"}
"""Compiler by device: on a CPU, the one that needs no C++ compiler on the machine."""

Outputs = list[tuple[str, torch.Tensor]]
BACKWARD_FILE = "func_backward.py"
AUTOGRAD_FUNCTION, BACKWARD_FUNCTION = "AutogradFunction", "backward_fn"
GRADIENT_SEED = 21
MISSING = object()


def examine_task(request: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of one configuration: ``{"source", "configuration", "n_seeds", "seed"}`` -> the facts. Raises
    Failure when the code does not run at all."""
    source = request["source"]
    loaded = load_file(source["file"])
    subject = _Subject(loaded, source, int(request.get("configuration", 0)))
    first = subject.draw(int(request["seed"]))
    outputs = subject.run(first)
    facts: dict[str, Any] = {"device": subject.device_name, "idle_modules": _idle_modules(subject.module)}
    facts["is_deterministic"] = _is_deterministic(subject, first)
    facts["outputs"] = _spread(subject, int(request["seed"]), int(request["n_seeds"]))
    facts["inputs"] = _impact_of_inputs(subject, first, outputs, int(request["seed"]))
    facts["weights"], facts["all_weights"] = _impact_of_weights(subject, first, outputs, int(request["seed"]))
    facts["eager_ms"] = _eager_ms(subject, first)
    compiler = str(request.get("compiler") or COMPILERS[subject.device.type])
    facts["compiler"], facts["compile_error"] = compiler, _compile_error(subject, first, compiler)
    facts["backward"] = compare_backward(source, int(request.get("configuration", 0)), int(request["seed"]))
    return facts


def count_configurations(request: dict[str, Any]) -> dict[str, Any]:
    """Return the names of a task folder's configurations; one for any other target: ``{"source"}`` -> ``{"names":
    [...]}``."""
    source = request["source"]
    if source["kind"] != "robust_kbench":
        return {"names": ["captured"]}
    return {"names": [settings.name for settings in read_settings(source["file"])]}


class _Subject:
    """The user's code in one configuration, with inputs of any seed."""

    def __init__(self, loaded: LoadedFile, source: dict[str, Any], configuration: int) -> None:
        self._source = source
        with seeded(RUN_SEED):
            callee, self._inputs = _load(loaded, source, configuration)
        self._what = _what(source, configuration)
        self.call, self.module = callee.call, callee.module
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if isinstance(self.module, torch.nn.Module):
            self.module.to(self.device)

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name() if self.device.type == "cuda" else "CPU"

    @property
    def leaves(self) -> list[TensorLeaf]:
        return self._inputs.tensors

    def draw(self, seed: int) -> list[torch.Tensor]:
        """Draw the user's own inputs after this seed; normal ones where only shapes are known."""
        if self._inputs.fresh is not None:
            with seeded(seed):
                return [tensor.to(self.device) for tensor in self._inputs.fresh()]
        generator = torch.Generator().manual_seed(seed)
        return [_drawn(leaf, generator).to(self.device) for leaf in self.leaves]

    def arguments(self, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """Return the call's arguments, with these tensors in place of its own."""
        return self._inputs.rebuild(tensors)

    def run(self, tensors: Sequence[torch.Tensor]) -> Outputs:
        """Run the code from a fixed random state. Raises TargetFailure."""
        with seeded(RUN_SEED), without_cuda():
            return self.run_as(self.call, tensors)

    def run_as(self, call: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> Outputs:
        """Run `call`, the user's code or a compiled form of it, from the current random state."""
        positional, keywords = self.arguments([tensor.clone() for tensor in tensors])
        file, line = self._source["file"], self._source["line"]
        try:
            with torch.no_grad(), quiet():
                return flatten_outputs(call(*positional, **keywords), file, line)
        except Failure:
            raise
        except torch.OutOfMemoryError as error:
            raise EnvironmentFailure(f"the task needs more memory: {short_message(error)}", file=file) from None
        except BaseException as error:  # any exception of the user's code is an answer about that code
            raise raised_by_user(error, self._what, file, line=line) from None


def _what(source: dict[str, Any], configuration: int) -> str:
    """Return what runs, for messages: a folder's configurations have names."""
    if source["kind"] != "robust_kbench":
        return "running the task"
    return f"running the task in configuration {read_settings(source['file'])[configuration].name!r}"


def _load(loaded: LoadedFile, source: dict[str, Any], configuration: int) -> tuple[Callee, CallInputs]:
    if source["kind"] == "robust_kbench":
        settings = read_settings(source["file"])
        if configuration >= len(settings):
            raise TargetFailure(f"the folder has {len(settings)} configurations", file=source["file"])
        return build(loaded, source, settings[configuration])
    callee = resolve(loaded, source)
    return callee, inputs_of(loaded, source, callee.call)


def _drawn(leaf: TensorLeaf, generator: torch.Generator) -> torch.Tensor:
    if leaf.dtype.is_floating_point:
        return FAMILIES["normal"](leaf.shape, generator).to(leaf.dtype)
    return limited(PLAIN, leaf.shape, leaf.dtype, leaf.integer_range or DEFAULT_INTEGERS, generator)


def _is_deterministic(subject: _Subject, tensors: Sequence[torch.Tensor]) -> bool:
    """Compare the bits of two consecutive calls."""
    with seeded(RUN_SEED), without_cuda():
        one, other = subject.run_as(subject.call, tensors), subject.run_as(subject.call, tensors)
    return all(_same(a, b) for (_, a), (_, b) in zip(one, other))


@dataclass
class _Moments:
    """Elementwise moments of one output over the seeds (Welford's algorithm)."""

    n: int
    mean: torch.Tensor
    squares: torch.Tensor

    def add(self, values: torch.Tensor) -> None:
        self.n += 1
        delta = values - self.mean
        self.mean = self.mean + delta / self.n
        self.squares = self.squares + delta * (values - self.mean)


def _spread(subject: _Subject, seed: int, n_seeds: int) -> list[dict[str, Any]]:
    """Return every output's range and non-finite elements over all seeds, and its spread between seeds and along each
    axis."""
    facts: dict[str, dict[str, Any]] = {}
    moments: dict[str, _Moments] = {}
    for number in range(n_seeds):
        for name, tensor in subject.run(subject.draw(seed + number)):
            values = tensor.detach().double()
            found = facts.setdefault(name, _empty_facts(name, tensor))
            _note(found, values)
            if name in moments and moments[name].mean.shape == values.shape:
                moments[name].add(values)
            else:
                moments[name] = _Moments(1, values, torch.zeros_like(values))
    for name, found in facts.items():
        deviations = (moments[name].squares / max(1, moments[name].n - 1)).sqrt()
        found["std_over_seeds"] = _number(deviations.mean())
    return list(facts.values())


def _empty_facts(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "name": name,
        "shape": list(tensor.shape),
        "largest": 0.0,
        "n_elements": tensor.numel(),
        "n_not_finite": 0,
        "std_along_axes": [None] * tensor.dim(),
        "std_over_seeds": 0.0,
    }


def _note(found: dict[str, Any], values: torch.Tensor) -> None:
    finite = values[torch.isfinite(values)]
    found["n_not_finite"] = max(found["n_not_finite"], values.numel() - finite.numel())
    if finite.numel():
        found["largest"] = max(found["largest"], float(finite.abs().max()))
    for axis, size in enumerate(values.shape):
        if size > 1:
            std = _number(values.std(dim=axis, unbiased=False).mean())
            known = found["std_along_axes"][axis]
            found["std_along_axes"][axis] = std if known is None else max(known, std)


def _impact_of_inputs(
    subject: _Subject, first: Sequence[torch.Tensor], outputs: Outputs, seed: int
) -> list[dict[str, Any]]:
    """Return the largest change of any output when one input is drawn anew and everything else stays."""
    others = subject.draw(seed + 1000)
    found = []
    for position, leaf in enumerate(subject.leaves):
        given, generator = list(first), torch.Generator().manual_seed(seed + 2000)
        given[position] = others[position]
        if _same(first[position], others[position]):  # the user's own input is the same for every seed
            given[position] = _drawn(leaf, generator).to(subject.device)
        found.append({"name": leaf.name, "impact": _distance(outputs, subject.run(given))})
    return found


def _impact_of_weights(
    subject: _Subject, tensors: Sequence[torch.Tensor], outputs: Outputs, seed: int
) -> tuple[list[dict[str, Any]], float | None]:
    """Return the largest change of any output when one parameter changes, and when all do; none and None without
    parameters."""
    if not isinstance(subject.module, torch.nn.Module):
        return [], None
    parameters = {name: p for name, p in subject.module.named_parameters() if p.is_floating_point() and p.numel()}
    if not parameters:
        return [], None
    state = {name: tensor.detach().clone() for name, tensor in state_of(subject.module).items()}
    generator = torch.Generator().manual_seed(seed)
    moved = {name: _moved(p, generator) for name, p in parameters.items()}
    named = parameters if len(parameters) <= MAX_NAMED_WEIGHTS else {}
    found = [
        {"name": name, "impact": _distance(outputs, _run_with(subject, tensors, {name: moved[name]}, state))}
        for name in named
    ]
    return found, _distance(outputs, _run_with(subject, tensors, moved, state))


def _run_with(
    subject: _Subject, tensors: Sequence[torch.Tensor], values: dict[str, torch.Tensor], state: dict[str, torch.Tensor]
) -> Outputs:
    """Run with other values in some parameters, and restore everything from `state`."""
    own = state_of(subject.module)
    with torch.no_grad():
        for name, value in values.items():
            own[name].copy_(value)
        try:
            return subject.run(tensors)
        finally:
            for name, value in state.items():
                own[name].copy_(value)


def _moved(parameter: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    size = max(float(parameter.detach().float().square().mean().sqrt()), MIN_NOISE)
    noise = torch.randn(parameter.shape, generator=generator).to(parameter.device)
    return (parameter.detach().float() + size * noise).to(parameter.dtype)


def _eager_ms(subject: _Subject, tensors: Sequence[torch.Tensor]) -> float:
    """Return the median time of a call to its end on the device."""
    is_gpu = subject.device.type == "cuda"
    positional, keywords = subject.arguments(tensors)
    samples = []
    with torch.no_grad(), quiet():
        for _ in range(N_TIMED_RUNS[subject.device.type]):
            if is_gpu:
                torch.cuda.synchronize()
            started = time.perf_counter()
            subject.call(*positional, **keywords)
            if is_gpu:
                torch.cuda.synchronize()
            samples.append((time.perf_counter() - started) * 1e3)
    return statistics.median(samples)


def _compile_error(subject: _Subject, tensors: Sequence[torch.Tensor], compiler: str) -> str:
    """Return the error under `torch.compile`; empty when the code runs."""
    torch.compiler.reset()
    try:
        # Not under `without_cuda`: Dynamo cannot trace through a mode that redirects calls.
        subject.run_as(torch.compile(subject.call, backend=compiler), tensors)
    except Failure as failure:
        return failure.message
    finally:
        torch.compiler.reset()
    return ""


def _idle_modules(module: Any) -> list[str]:
    """Return submodules without effect: dropout in eval mode or of probability 0, and identities."""
    if not isinstance(module, torch.nn.Module):
        return []
    dropout = torch.nn.modules.dropout._DropoutNd
    found = []
    for path, child in module.named_modules():
        if isinstance(child, dropout) and (child.p == 0 or not child.training):
            found.append(f"{path}: dropout of probability {child.p:g}{'' if child.training else ', in eval mode'}")
        elif isinstance(child, torch.nn.Identity):
            found.append(f"{path}: an identity")
    return found


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


def _distance(one: Outputs, other: Outputs) -> float:
    """Return the largest difference of any element of any output. Non-finite elements count only where one side alone
    has them."""
    largest = 0.0
    for (_, a), (_, b) in zip(one, other):
        if a.shape != b.shape:
            return float("inf")
        if not bool((torch.isfinite(a) == torch.isfinite(b)).all()):
            return float("inf")
        differences = (a.double() - b.double()).abs()
        differences = differences[torch.isfinite(differences)]
        if differences.numel():
            largest = max(largest, float(differences.max()))
    return largest


def _number(value: torch.Tensor) -> float:
    """Convert to a JSON number; 0 for a non-finite one, which another filter reports."""
    number = float(value)
    return number if number == number and abs(number) != float("inf") else 0.0


def compare_backward(source: dict[str, Any], configuration: int, seed: int) -> dict[str, Any]:
    """Return ``{"error", "dtype", "problem"}``: the largest relative L2 distance of any gradient, None without a
    backward of the folder's own (`backward_fn` None stands for the kernel's) or where `problem` says why it is unknown.
    `dtype` is the narrowest among the gradients'."""
    file = os.path.join(os.path.dirname(os.path.abspath(source["file"])), BACKWARD_FILE)
    nothing = {"error": None, "dtype": "", "problem": ""}
    if source["kind"] != "robust_kbench" or not os.path.isfile(file):
        return nothing
    try:
        loaded = _load_backward(file)
        if getattr(loaded.module, AUTOGRAD_FUNCTION).backward_fn is None:
            return nothing  # robust-kbench's own folders: the kernel brings the only backward there is
        ours = _build(load_file(source["file"]), source, configuration, seed)
        theirs = _build(loaded, {**source, "file": file}, configuration, seed)
        theirs[0].owner.load_state_dict(ours[0].owner.state_dict())
        with seeded(seed):
            tensors = ours[1].fresh() if ours[1].fresh is not None else []
        gradients = [_gradients(callee, inputs, tensors, file) for callee, inputs in (ours, theirs)]
    except Failure as failure:
        return {**nothing, "problem": failure.message}
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError) as error:  # of autograd or the user's code
        return {**nothing, "problem": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    return {**nothing, **_distances(*gradients)}


def _load_backward(file: str) -> LoadedFile:
    """Load the backward's file. Raises Failure where it declares nothing that a kernel could replace."""
    loaded = load_file(file)
    declared = getattr(getattr(loaded.module, AUTOGRAD_FUNCTION, None), BACKWARD_FUNCTION, MISSING)
    if declared is not None and not callable(declared):
        raise Failure(f"{BACKWARD_FILE} has no class {AUTOGRAD_FUNCTION} with a {BACKWARD_FUNCTION}", file=file)
    return loaded


def _build(loaded: LoadedFile, source: dict[str, Any], configuration: int, seed: int) -> tuple[Callee, CallInputs]:
    """Build the model of one of the folder's files. Both files' are built from the same seed."""
    with seeded(seed):
        return build(loaded, source, read_settings(source["file"])[configuration])


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


def _distances(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> dict[str, Any]:
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


def try_inputs(request: dict[str, Any]) -> dict[str, Any]:
    """Try: ``{"sources": [TargetSource, ...]}`` -> ``{"accepted": index}``. Raises the first failure if all fail."""
    loaded = load_file(request["sources"][0]["file"])
    callees: dict[str, Callee] = {}
    first: TargetFailure | None = None
    for index, source in enumerate(request["sources"]):
        key = json.dumps(source.get("init_arguments"))
        try:
            if key not in callees:
                callees[key] = resolve(loaded, source)
            _run(callees[key], source, inputs_of(loaded, source, callees[key].call))
            return {"accepted": index}
        except TargetFailure as failure:
            first = first or failure
    assert first is not None
    raise first


MAX_TRIED_ELEMENTS = 1 << 30
"""Maximum elements of a tensor that proposed inputs lead to: 4 GB in f32. Rows compared in pairs have more."""


class _SizeLimit(TorchDispatchMode):
    """Raises ValueError at an operator whose result is too large to compute with examples."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor) and each.numel() > MAX_TRIED_ELEMENTS:
                raise ValueError(f"{func} makes a tensor of {each.numel()} elements: smaller sizes are needed")
        return result


def _run(callee: Callee, source: dict[str, Any], inputs: Any) -> None:
    """Raise TargetFailure where the code rejects the inputs. A question for values ends the trial: shapes were
    accepted up to there."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), _SizeLimit(), torch.no_grad(), without_cuda():
            tensors = [torch.empty(leaf.shape, dtype=leaf.dtype) for leaf in inputs.tensors]
            positional, keywords = inputs.rebuild(tensors)
            callee.call(*positional, **keywords)
    except BaseException as error:  # the user's code may raise anything, exit included
        if is_data_dependent(error):
            return
        raise raised_by_user(
            error,
            "running the target on fake tensors",
            source["file"],
            line=source["line"],
            next_step="write the shapes that this line needs, or record them from a run",
        ) from None
