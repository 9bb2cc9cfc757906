"""The commands `prepare_baseline`, which prepares a PyTorch baseline of the task as a subject of timing,
`prepare_compiler`, which imports what its compiled modes need, and `profile_trace`, which lists PyTorch's own launches,
from the torch profiler (kineto).

Runs in a process that never loaded a candidate. TF32 is off, as the tolerances of correctness assume. cuDNN selects its
algorithms by trying them, which only makes the baseline faster.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._functorch.config

from ..capture.exported_program import quiet
from ..capture.load import load_file
from ..capture.reference import compile_reference
from ..failure import EnvironmentFailure, Failure, short_message
from ..files import device_of, read_tensor
from ..gpu.device import once_there_is_memory
from .rounds import SUBJECTS, admit
from .subject import Subject, is_large, n_affordable_sets, refuse_zeros, set_precision

GRADIENT_PREFIX = "grad_"
"""Prefix of a backward's inputs that are the gradients of its results."""
EAGER = "eager"
PEER = "peer:"
PEER_TOLERANCE = 3e-2
"""Maximum relative L2 difference between a peer's results and eager's: allows bf16 rounding and TF32."""
OWN_GRAPHS = ("reduce-overhead",)
"""Modes of `torch.compile` that capture CUDA graphs: one result is alive at a time."""
HARNESS_GRAPHS = {"max-autotune": "max-autotune-no-cudagraphs"}
"""Modes that run without graphs of their own, in ours: theirs copy every input first, which only takes longer."""
N_FEW_CALLS = 3
"""Calls of which the fastest measures a slow choice: the first may load or compile its code, and each may fall into a
pause of this process. Two of more than `LOADED_MS`."""
SLOW_CHOICE_MS = 100.0
"""Milliseconds from which few calls measure a choice of max-autotune. PyTorch enqueues five and more before it
looks at the time, and every timing of a candidate would wait for their end."""
FAR, FAR_MS = 10.0, 2.0
"""Multiple of an operation's fastest choice, and milliseconds, from which few calls measure another choice of it: for
depthwise convolutions Triton's take 7 to 13 ms beside cuDNN's 0.06 (H200, 2026-11-29). Below, the launch counts."""
LOADED_MS = 1000.0
"""Milliseconds of a call beside which the time to load its code is negligible."""
HOPELESS, N_HOPELESS = 100.0, 2
"""Multiple of the fastest choice, and number of choices beyond it and `LOADED_MS`, from which the rest of an
operation's count as slow as these without a call: of level1/84's depthwise convolution each call takes 4 s, beside
2.7 ms."""
N_CAPTURE_CALLS = 3
"""Calls of a mode with graphs of its own: a plain one, one that records, one that replays."""

Function = Callable[..., Any]


MIN_COMPILE_THREADS, SHARES = 2, 2
"""Minimum processes of one mode that compile kernels, and divisor of the cores: by default each of three modes takes
one per core."""
COMPILE_NICENESS = 10
"""Niceness of these processes: they take a tenth of a core that our own compiler or an executor wants, and all of it
once a search is over."""


def prepare_baseline(request: dict[str, Any]) -> dict[str, Any]:
    """Prepare ``{"subject", "device", "mode", "reference": {"name", "source", "arguments", "direction", "gradients"},
    "inputs": [file entries], "written_bytes"}``.

    `mode` is ``eager``, one of `torch.compile`'s, or ``peer:FILE::NAME``, a function of another library with the
    reference's arguments and results. `arguments` are the reference's, in order: ``{"tensor": name}`` or
    ``{"value": number}``. `gradients` names the arguments that the task's backward differentiates: a forward with any
    records for autograd, as in a training step. `written_bytes` are the bytes of its results. `device` is an index, or
    ``cpu``. Answers ``{"status": "ready", "prepare_s", ...}`` as
    `timing.rounds.admit`, or ``{"status": "failed", "message"}``: any exception of PyTorch is an answer.
    """
    started = time.monotonic()
    where = device_of(request["device"])
    device = where.index
    set_precision()

    def prepared() -> dict[str, Any]:
        inputs = {entry["name"]: read_tensor(entry, where) for entry in request["inputs"]}
        refuse_zeros(inputs)
        written_bytes = int(request["written_bytes"])
        subject = reference_subject(request["reference"], inputs, request["mode"], device, written_bytes)
        return admit(request["subject"], subject)

    def let_go() -> None:
        SUBJECTS.pop(request["subject"], None)
        torch.cuda.empty_cache()

    try:
        with quiet():
            answer = prepared() if device is None else once_there_is_memory(device, prepared, let_go)
    except Failure:
        raise  # not PyTorch's fault
    except Exception as error:  # torch.compile raises any exception of its parts
        return {"status": "failed", "message": f"{type(error).__name__}: {short_message(error)}"}
    return {"status": "ready", "prepare_s": time.monotonic() - started, **answer}


def prepare_compiler(request: dict[str, Any]) -> dict[str, Any]:
    """Prepare for ``{"device", "mode"}`` what every `torch.compile` does first: imports, processes that compile, and on
    a GPU a small compilation in this mode, which imports the rest. Answers ``{"status": "ready"}``; errors recur where
    something is compiled."""
    with contextlib.suppress(Exception):
        from torch._inductor import async_compile, compile_fx  # noqa: F401 (to have it imported)
        from torch._inductor import config as inductor
        from torch._inductor.runtime.benchmarking import benchmarker
        from torch._inductor.select_algorithm import AlgorithmSelectorCache

        kind: Any = type(benchmarker)
        measure_slow_choices_once(kind, AlgorithmSelectorCache)
        if torch.version.cuda is not None:
            share = max(MIN_COMPILE_THREADS, (os.cpu_count() or 1) // SHARES)
            inductor.compile_threads = min(inductor.compile_threads or 1, share)
            start_compile_processes(async_compile.AsyncCompile)
        if (where := device_of(request["device"])).type == "cuda":
            _compile_something_small(where, request["mode"])
    return {"status": "ready"}


def start_compile_processes(compiler: Any) -> None:
    """Start the processes of PyTorch's compiler, of low priority. Until they run one thread compiles."""
    compiler.warm_pool()
    process = getattr(compiler.process_pool(), "process", None)  # it forks the others at the first request
    if process is not None:
        niceness = max(COMPILE_NICENESS, os.getpriority(os.PRIO_PROCESS, 0))  # who started us may have more
        os.setpriority(os.PRIO_PROCESS, process.pid, niceness)
    compiler.use_process_pool()


@functools.cache
def _compile_something_small(where: torch.device, mode: str) -> None:
    """Compile elementwise work and a sum, once per process, and forget it."""
    small = torch.compile(lambda x: (x * 2).relu().sum(-1), mode=HARNESS_GRAPHS.get(mode, mode), dynamic=False)
    values = torch.ones(64, 64, device=where)
    with quiet(), torch.no_grad():
        for _ in range(N_CAPTURE_CALLS):
            small(values)
    torch._dynamo.reset()


class ChoiceTimes:
    """Milliseconds of the choices of the operation that max-autotune measures now; empty outside of one."""

    def __init__(self) -> None:
        self._begin(is_open=False)
        self.is_calling = False

    def _begin(self, *, is_open: bool) -> None:
        self._is_open, self._best_ms, self._hopeless_ms = is_open, math.inf, list[float]()

    @contextlib.contextmanager
    def of_one_operation(self) -> Iterator[None]:
        """Note the times that are measured meanwhile."""
        self._begin(is_open=True)
        try:
            yield
        finally:
            self._begin(is_open=False)

    def of_few_calls(self, call: Callable[[], Any]) -> float | None:
        """Return the time of a choice that is too slow to win; None for one to be measured as PyTorch does."""
        if len(self._hopeless_ms) >= N_HOPELESS:
            return min(self._hopeless_ms)
        limit_ms = min(SLOW_CHOICE_MS, max(FAR_MS, FAR * self._best_ms))
        fastest_ms = math.inf
        for n_before in range(N_FEW_CALLS):
            if n_before > 1 and fastest_ms > LOADED_MS:
                break
            fastest_ms = min(fastest_ms, self._call_ms(call))
            if fastest_ms <= limit_ms:
                return None
        if fastest_ms > LOADED_MS and fastest_ms > HOPELESS * self._best_ms:
            self._hopeless_ms.append(fastest_ms)
        return fastest_ms

    def _call_ms(self, call: Callable[[], Any]) -> float:
        self.is_calling = True
        try:
            return _device_ms(call)
        finally:
            self.is_calling = False

    def note(self, choice_ms: Any) -> None:
        """Note the time of a choice."""
        if self._is_open and isinstance(choice_ms, float):
            self._best_ms = min(self._best_ms, choice_ms)


@functools.cache
def measure_slow_choices_once(benchmarker: Any, selector: Any = None) -> None:
    """Have this class of PyTorch's measure choices that cannot win by few calls. `selector` is the class that
    measures all choices of an operation, by which they are compared."""
    measure, times = benchmarker.benchmark_gpu, ChoiceTimes()

    @functools.wraps(measure)
    def bounded(self: Any, _callable: Callable[[], Any], *arguments: Any, **options: Any) -> Any:
        if times.is_calling:  # a choice that tunes its own parts
            return measure(self, _callable, *arguments, **options)
        found = None if options.get("return_mode") == "all" else times.of_few_calls(_callable)
        found = measure(self, _callable, *arguments, **options) if found is None else found
        times.note(found)
        return found

    benchmarker.benchmark_gpu = bounded
    every = getattr(getattr(selector, "benchmark_choices", None), "__func__", None)
    if every is None:
        return

    @functools.wraps(every)
    def of_one(cls: Any, *arguments: Any, **options: Any) -> Any:
        with times.of_one_operation():
            return every(cls, *arguments, **options)

    selector.benchmark_choices = classmethod(of_one)


def _device_ms(call: Callable[[], Any]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def reference_subject(
    reference: dict[str, Any],
    inputs: dict[str, torch.Tensor],
    mode: str,
    device: int | None,
    written_bytes: int,
) -> Subject:
    """Return the reference over several sets of inputs, which are on the device. Compiles in a compiled mode.

    The times of a forward and its backward add up to a training step's: libraries may compute gradients in either, and
    Liger's losses do so in their forward where an input requires a gradient.
    """
    function = compile_reference(reference["source"], reference["name"])
    if mode.startswith(PEER):
        function = _peer(mode.removeprefix(PEER), function, _arguments(reference, inputs))
    elif mode != EAGER:
        torch._functorch.config.donated_buffer = False  # a backward runs repeatedly over one forward
        function = torch.compile(function, mode=HARNESS_GRAPHS.get(mode, mode), dynamic=False)
    names = {argument["tensor"] for argument in reference["arguments"] if "tensor" in argument}
    n_bytes = sum(tensor.nbytes for tensor in inputs.values())
    has_one_set = is_large(n_bytes + written_bytes)
    n_sets = 1 if has_one_set else n_affordable_sets(n_bytes, device)
    sets = [inputs, *({name: tensor.clone() for name, tensor in inputs.items()} for _ in range(n_sets - 1))]
    is_backward = reference["direction"] == "backward"
    arguments = [_arguments(reference, values) for values in sets]
    has_graphs = mode in OWN_GRAPHS and device is not None
    wanted = [[values[name] for name in reference["gradients"]] for values in sets]
    for tensors in wanted:
        for tensor in tensors:
            tensor.requires_grad_()
    if is_backward:
        given = [[_loss_gradient(value) for name, value in values.items() if name not in names] for values in sets]
        arm = _armed_backward(function, arguments, wanted, given, has_graphs)
    else:
        arm = _armed_forward(function, arguments, has_graphs, records=bool(reference["gradients"]))
    if mode != EAGER:
        _capture(arm)
    return Subject(
        arm,
        arm,
        len(sets),
        device,
        graph_arm=None if has_graphs else arm,
        max_calls=1 if has_graphs and is_backward else len(sets),
        is_large=has_one_set,
        written_bytes=written_bytes,
    )


def _peer(place: str, reference: Function, arguments: list[Any]) -> Function:
    """Return the function ``FILE::NAME``, once its results are the reference's and its inputs unchanged. Raises
    ValueError, ImportError."""
    file, _, name = place.partition("::")
    function: Function = getattr(load_file(file).module, name)
    with torch.no_grad():
        expected = _floating(_flat(reference(*arguments)))
        before = [value.clone() if isinstance(value, torch.Tensor) else value for value in arguments]
        found = _floating(_flat(function(*before)))
    if len(found) < len(expected) or not all(_difference(*pair) <= PEER_TOLERANCE for pair in zip(found, expected)):
        raise ValueError("its results differ from PyTorch's")
    kept = zip(before, arguments)
    if not all(torch.equal(ours, theirs) for ours, theirs in kept if isinstance(ours, torch.Tensor)):
        raise ValueError("it overwrites its inputs")
    return function


def _flat(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the relative L2 difference; infinity for other shapes."""
    if found.shape != expected.shape:
        return float("inf")
    norm = float(expected.double().norm())
    return float((found.double() - expected.double()).norm()) / (norm or 1.0)


def _loss_gradient(gradient: torch.Tensor) -> torch.Tensor:
    """Return one for the gradient of a scalar, as ``loss.backward()`` passes it: libraries scale nothing then."""
    return gradient if gradient.ndim else torch.ones_like(gradient)


def _armed_forward(
    function: Function, arguments: list[list[Any]], has_graphs: bool, records: bool
) -> Callable[[int], Function]:
    def step(place: int) -> None:
        if has_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.set_grad_enabled(records):
            function(*arguments[place])

    return lambda place: lambda: step(place)


def _armed_backward(
    function: Function,
    arguments: list[list[Any]],
    wanted: list[list[torch.Tensor]],
    given: list[list[torch.Tensor]],
    has_graphs: bool,
) -> Callable[[int], Function]:
    """Return an arm that runs the forward; the call is autograd's backward through it."""

    def arm(place: int) -> Function:
        if has_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.enable_grad():
            found = function(*arguments[place])
        results = _flat(found)
        # A result without a gradient still has an input for it, which nothing reads.
        pairs = [(result, grad) for result, grad in zip(_floating(results), given[place]) if result.requires_grad]
        flat, gradients = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return lambda: torch.autograd.grad(flat, wanted[place], gradients, retain_graph=True, allow_unused=True)

    return arm


def _capture(arm: Callable[[int], Function]) -> None:
    """Compile and record graphs before anything is timed."""
    with torch.no_grad():
        for _ in range(N_CAPTURE_CALLS):
            arm(0)()


def _floating(results: Sequence[Any]) -> list[torch.Tensor]:
    return [result for result in results if isinstance(result, torch.Tensor) and result.is_floating_point()]


def _arguments(reference: dict[str, Any], values: dict[str, torch.Tensor]) -> list[Any]:
    return [values[given["tensor"]] if "tensor" in given else given["value"] for given in reference["arguments"]]


N_WARM_UP, N_PROFILED = 3, 3


def profile_trace(request: dict[str, Any]) -> dict[str, Any]:
    """Trace ``{"device", "inputs": [file entries], "reference": {"name", "source", "arguments"}}`` -> ``{"kernels":
    [{"name", "n_calls", "time_us"}], "gpu"}``, per run of the reference, the longest first. Raises EnvironmentFailure
    without a GPU, or when the reference does not run on it."""
    index = int(request["device"])
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        raise EnvironmentFailure("torch sees no such GPU", next_step="use --device cpu")
    device = torch.device("cuda", index)
    reference = request["reference"]
    function = compile_reference(reference["source"], reference["name"])
    tensors = {entry["name"]: read_tensor(entry).to(device) for entry in request["inputs"]}
    arguments = _arguments(reference, tensors)
    try:
        with torch.no_grad(), quiet():
            events = _profiled(lambda: function(*arguments))
    except RuntimeError as error:
        raise EnvironmentFailure(f"PyTorch's own code cannot be profiled: {short_message(error)}") from None
    return {"kernels": kernels_of(events), "gpu": torch.cuda.get_device_name(index)}


def kernels_of(events: list[Any]) -> list[dict[str, Any]]:
    """Return the device's events of the profiled runs, summed by name, as counts and microseconds of one run."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if "CUDA" not in str(event.device_type):
            continue
        known = found.setdefault(event.name, {"name": event.name, "n_calls": 0, "time_us": 0.0})
        known["n_calls"] += 1
        known["time_us"] += float(event.time_range.end - event.time_range.start)
    for known in found.values():
        known["n_calls"] = max(1, round(known["n_calls"] / N_PROFILED))
        known["time_us"] /= N_PROFILED
    return sorted(found.values(), key=lambda kernel: -kernel["time_us"])


def _profiled(call: Any) -> list[Any]:
    from torch.profiler import ProfilerActivity, profile

    for _ in range(N_WARM_UP):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(N_PROFILED):
            call()
        torch.cuda.synchronize()
    return list(profiler.events())
