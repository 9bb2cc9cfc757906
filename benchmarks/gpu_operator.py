"""Proves exported operators on a GPU and times them. Operators given need the standard library and torch alone.

    python3 benchmarks/gpu_operator.py [--operator FILE.py --inputs "x=f32[64, 128], eps=1e-6"]... [--out FOLDER]

Without options it takes the RMSNorm that `benchmarks/prepare_operators.py` writes, for which it needs kernel_lsp, and
proves the worker's GPU commands on the operations beside it. Integers that index something: ``i64[512] < 1000``. The
result is one JSON file under ``benchmarks/results``; the exit status is 1 when a check failed, 2 without a GPU
(``--device cpu`` runs what can be run without one).
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_INPUTS = "x=f32[16384, 4096], weight=f32[4096], eps=1e-6"
FORWARD_FACTOR, BACKWARD_FACTOR = 2.0, 5.0
"""Times the error of PyTorch's own result at the same dtype."""
FLOOR_ULPS = 4.0
"""Relative L2 that a correct kernel may lose where PyTorch is exact, in units of the dtype's epsilon."""
N_OVERHEAD_CALLS, N_OVERHEAD_ROUNDS = 1000, 7
N_SAMPLES = 100
L2_FLUSH_FACTOR = 2
N_WARM_UP = 3
LOW_PERCENTILE, HIGH_PERCENTILE = 10, 90
SLEEP_CYCLES_PER_US = 2000
"""Cycles of `torch.cuda._sleep` at the highest clock of current GPUs: sleeping too long costs little."""
MAX_SLEEP_US = 2000.0
N_THREADS = 4
COMPILE_MODES = ("default", "max-autotune-no-cudagraphs")
SLEEP_CYCLES = 20_000_000
MAX_SIZE = 1 << 62
DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
    "bool": torch.bool,
}


@dataclass
class Check:
    """One thing that was tried. `outcome` is ``passed``, ``failed`` or ``skipped``."""

    name: str
    outcome: str
    detail: str = ""
    elapsed_s: float = 0.0


@dataclass
class Report:
    """Everything about one operator."""

    operator: str
    inputs: str
    checks: list[Check] = field(default_factory=list)
    times: dict[str, Any] = field(default_factory=dict)


class Skip(Exception):
    """The check needs something that is not here."""


class Operator:
    """An exported operator and the inputs it is run on."""

    def __init__(self, path: Path, inputs: str, device: str) -> None:
        self.path, self.name, self.device = path, path.stem, torch.device(device)
        self.module = load_module(path, self.name)
        self.specification = inputs
        self.function: Callable[..., Any] = getattr(self.module, self.name)
        self.reference: Callable[..., Any] = getattr(self.module, f"{self.name}_reference")
        self.forward = self.module.OPERATOR.call  # what users get: without what the forward keeps for its backward
        self.registered = getattr(torch.ops.kernel_lsp, self.name).default
        backward = getattr(torch.ops.kernel_lsp, f"{self.name}_backward", None)
        self.backward = backward.default if backward is not None else None

    def inputs(self, seed: int = 0, device: torch.device | None = None) -> list[Any]:
        """Fresh inputs; floating tensors are normal and ask for gradients."""
        generator = torch.Generator().manual_seed(seed)
        values = [spec.make(generator, device or self.device) for spec in parse_inputs(self.specification)]
        return [value.requires_grad_() if is_floating(value) else value for value in values]

    def small_inputs(self, n_rows: int = 4, n_columns: int = 16) -> list[Any]:
        """Inputs cut as far as the plan's shapes allow: both ways, else rows alone, else not at all."""
        whole = self.inputs()
        for columns in (n_columns, MAX_SIZE):
            smaller = all_cut(whole, n_rows, columns)
            if not self.module._runtime.mismatch(self.module.OPERATOR.contract(*smaller)):
                return smaller
        return whole


@dataclass(frozen=True)
class InputSpec:
    """One input: a tensor's dtype and shape (and the bound of its integers), or a number."""

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    below: int = 2
    number: float | int | bool | None = None

    def make(self, generator: torch.Generator, device: torch.device) -> Any:
        if self.number is not None:
            return self.number
        dtype = DTYPES[self.dtype]
        if dtype.is_floating_point:
            return torch.randn(self.shape, generator=generator).to(dtype).to(device)
        return torch.randint(0, self.below, self.shape, generator=generator).to(dtype).to(device)


def main() -> int:
    options = parse_options()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: run this on a machine with a GPU, or with --device cpu", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with tempfile.TemporaryDirectory() as folder:
        pairs = list(zip(options.operator, options.inputs, strict=True)) or [(prepared(folder), DEFAULT_INPUTS)]
        reports = [prove(Operator(Path(path), inputs, options.device)) for path, inputs in pairs]
    path = write_results(reports, options.device, options.out)
    n_failed = sum(check.outcome == "failed" for report in reports for check in report.checks)
    print(f"{path}: {n_failed} checks failed")
    return 1 if n_failed else 0


def prepared(folder: str) -> str:
    """Write the operator of an RMSNorm, and the operations beside it, and return its file."""
    program, paths = ROOT / "benchmarks" / "prepare_operators.py", [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    subprocess.run([sys.executable, str(program), folder], env=environment, stdout=subprocess.DEVNULL, check=True)
    return str(Path(folder, "rms_norm.py"))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--operator", action="append", default=[], help="an exported operator file")
    parser.add_argument("--inputs", action="append", default=[], help="its inputs, one for each --operator")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    if len(options.operator) != len(options.inputs):
        parser.error("give one --inputs for each --operator")
    return options


def prove(operator: Operator) -> Report:
    """Run every check and every timing; none stops the others."""
    report = Report(operator.name, operator.specification)
    for name, check in CHECKS.items():
        report.checks.append(run_check(name, check, operator))
        print(f"{operator.name}: {name}: {report.checks[-1].outcome} {report.checks[-1].detail}", flush=True)
    for name, measure in TIMINGS.items() if operator.device.type == "cuda" else ():
        report.times[name] = measure(operator)
        print(f"{operator.name}: {name}: {json.dumps(report.times[name])}", flush=True)
    return report


def run_check(name: str, check: Callable[[Operator], str | None], operator: Operator) -> Check:
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome, detail = "passed", check(operator) or ""
    except Skip as reason:
        outcome, detail = "skipped", str(reason)
    except Exception as error:  # whatever a check raises is its result
        traceback.print_exc()
        outcome, detail = "failed", f"{type(error).__name__}: {error}"[:2000]
    return Check(name, outcome, detail, round(time.perf_counter() - started, 3))


def write_results(reports: list[Report], device: str, folder: Path) -> Path:
    """One JSON file, named after the day and the GPU."""
    facts = device_facts(device)
    date = datetime.date.today().isoformat()
    content = {
        "schema_version": 1,
        "kind": "measured",
        **facts,
        "cuda_version": torch.version.cuda,
        "python_version": sys.version.split()[0],
        "date": date,
        "method": "CUDA events, cold L2 (flushed before each call), A-B-B-A, device asleep while the host enqueues; "
        "median with 10th and 90th percentile",
        "operators": [asdict(report) for report in reports],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"gpu_operator-{re.sub(r'[^a-z0-9]+', '_', facts['gpu'].lower())}-{date}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


# --- checks


def check_contract(operator: Operator) -> str:
    """The inputs are inside the contract, so that what follows runs the kernels."""
    reason = operator.module._runtime.outside(operator.module.OPERATOR.contract(*operator.inputs()))
    if operator.device.type == "cpu":
        assert reason == "the tensors are on cpu", reason
        return "on a CPU everything is computed by PyTorch"
    assert not reason, reason
    call(operator.forward, operator.inputs())
    assert count_launches(operator) > 0, "no kernel was bound"
    return f"{count_launches(operator)} kinds of inputs bound"


def check_forward(operator: Operator) -> str:
    found = [check_results_near_exact(operator, seed) for seed in range(3)]
    return f"relative L2 error over that of eager, at most: {max(found):.2f}"


def check_backward(operator: Operator) -> str:
    need_gradients(operator)
    found = [check_gradients_near_exact(operator, seed) for seed in range(3)]
    return f"relative L2 error over that of eager, at most: {max(found):.2f}"


def check_repeated_runs_agree(operator: Operator) -> None:
    inputs = operator.inputs()
    first = results_of(operator.forward, inputs)
    for _ in range(10):
        for one, other in zip(first, results_of(operator.forward, inputs), strict=True):
            assert torch.equal(one, other), "two runs differ"


def check_opcheck(operator: Operator) -> None:
    for detach in (False, True):
        inputs = operator.small_inputs()
        torch.library.opcheck(operator.registered, tuple(detached(inputs) if detach else inputs))


def check_opcheck_of_backward(operator: Operator) -> None:
    if operator.backward is None:
        raise Skip("no backward kernel")
    inputs = detached(operator.small_inputs())
    returned = results_of(operator.registered, inputs)
    given = [returned[place] for place in operator.module.OPERATOR.given]
    torch.library.opcheck(operator.backward, (*random_gradients(operator, inputs), *given, *inputs))


def check_compiled(operator: Operator) -> None:
    """Whole graph, forward and backward, several sizes without a graph break."""
    for function in (operator.function, operator.forward):
        torch._dynamo.reset()
        compiled = torch.compile(lambda *inputs, f=function: f(*inputs), fullgraph=True)
        for n_rows in (3, 5, 8):
            inputs = operator.small_inputs(n_rows)
            check_close(results_of(compiled, inputs), results_of(operator.reference, inputs))
            if requires_gradient(operator, inputs):
                check_close(gradients_of(compiled, inputs), gradients_of(operator.reference, inputs))


def check_strided_inputs(operator: Operator) -> None:
    inputs = [strided(value) for value in operator.small_inputs()]
    assert any(isinstance(v, torch.Tensor) and not v.is_contiguous() for v in inputs), "nothing is strided"
    check_close(results_of(operator.forward, inputs), results_of(operator.reference, inputs))


def check_unaligned_inputs(operator: Operator) -> None:
    inputs = [unaligned(value) for value in detached(operator.small_inputs())]
    check_close(results_of(operator.forward, inputs), results_of(operator.reference, inputs))


def check_other_stream(operator: Operator) -> None:
    """Inputs that are made late on a side stream: a launch on any other stream would read too early."""
    need_gpu(operator)
    inputs = detached(operator.inputs())
    expected = results_of(operator.reference, inputs)
    held = [torch.zeros_like(value) if isinstance(value, torch.Tensor) else value for value in inputs]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        for late, value in zip(held, inputs, strict=True):
            if isinstance(late, torch.Tensor):
                late.copy_(value)
        found = results_of(operator.forward, held)
    stream.synchronize()
    check_close(found, expected)


def check_cuda_graph(operator: Operator) -> None:
    """Captured once, replayed with other values at the same addresses."""
    need_gpu(operator)
    inputs = detached(operator.inputs())
    call(operator.forward, inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = results_of(operator.forward, inputs)
    for value, other in zip(inputs, operator.inputs(seed=1), strict=True):
        if isinstance(value, torch.Tensor):
            value.copy_(other)
    graph.replay()
    torch.cuda.synchronize()
    check_close(found, results_of(operator.reference, inputs))


def check_second_device(operator: Operator) -> None:
    if operator.device.type != "cuda" or torch.cuda.device_count() < 2:
        raise Skip("fewer than two CUDA devices")
    torch.cuda.set_device(0)
    inputs = operator.inputs(device=torch.device("cuda", 1))
    check_close(results_of(operator.function, inputs), results_of(operator.reference, inputs))
    if requires_gradient(operator, inputs):
        check_close(gradients_of(operator.function, inputs), gradients_of(operator.reference, inputs))
    assert torch.cuda.current_device() == 0


def check_threads(operator: Operator) -> None:
    """Several threads, each on a stream of its own, and autograd's own threads behind them."""
    need_gpu(operator)
    problems: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            inputs = operator.inputs(seed)
            torch.cuda.synchronize()
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    found = results_of(operator.forward, inputs)
                torch.cuda.current_stream().synchronize()
                check_close(found, results_of(operator.reference, inputs))
        except BaseException as error:  # reported by the thread that asked
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(N_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def check_outside_the_contract(operator: Operator) -> str:
    """Another dtype, another rank, no elements, a CPU: PyTorch computes, and says so once."""
    inputs = detached(operator.small_inputs())
    double = [value.double() if is_floating(value) else value for value in inputs]
    on_cpu = [value.cpu() if isinstance(value, torch.Tensor) else value for value in inputs]
    said = []
    for others in (double, on_cpu):
        for _ in range(2):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                check_close(results_of(operator.function, others), results_of(operator.reference, others))
            said.append(sum("computed by PyTorch" in str(warning.message) for warning in caught))
        check_close(results_of(operator.forward, others), results_of(operator.reference, others))
    assert said[1] == said[3] == 0, f"it repeats itself: {said}"
    return f"warnings: {said}"


def check_gradients_to_second_order(operator: Operator) -> None:
    need_gradients(operator)
    inputs = [value.double().detach() if is_floating(value) else value for value in operator.small_inputs(2, 4)]
    inputs = [value.requires_grad_() if is_floating(value) else value for value in inputs]
    assert torch.autograd.gradcheck(operator.forward, inputs)
    assert torch.autograd.gradgradcheck(operator.forward, inputs)


def check_double_backward_of_kernels(operator: Operator) -> None:
    """A second derivative through kernels at the declared dtype, against the reference's."""
    need_gradients(operator)
    inputs = operator.small_inputs()
    check_close(second_gradients_of(operator.forward, inputs), second_gradients_of(operator.reference, inputs), 100.0)


def check_inputs_are_untouched(operator: Operator) -> None:
    inputs = detached(operator.inputs())
    before = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
    call(operator.forward, inputs)
    for value, copy in zip(inputs, before, strict=True):
        assert not isinstance(value, torch.Tensor) or torch.equal(value, copy), "an input changed"


def check_worker_commands(operator: Operator) -> str:
    """`load` and `check` of the worker, on the operations beside the operator."""
    need_gpu(operator)
    bound_path = operator.path.with_name(f"{operator.name}.operations.json")
    if not bound_path.exists():
        raise Skip(f"no {bound_path.name}")
    gpu = load_worker("gpu.check_commands")
    operations = json.loads(bound_path.read_text())
    kernels = sorted({step["kernel"] for op in operations.values() for step in op["steps"] if step["kind"] == "launch"})
    request = {"candidate": "c", "device": 0, "kernels": kernels, "file_name": f"{operator.name}.cu"}
    loaded = load_worker("gpu.run").handle_load({**request, "text": operator.path.with_suffix(".cu").read_text()})
    assert loaded["loaded"], loaded["log"]
    details = []
    with tempfile.TemporaryDirectory() as folder:
        for operation in operations.values():
            details.append(run_in_worker(gpu, operator, operation, Path(folder)))
    return "; ".join(details)


CHECKS: dict[str, Callable[[Operator], str | None]] = {
    "inputs are inside the contract": check_contract,
    "forward against fp64": check_forward,
    "backward against fp64": check_backward,
    "repeated runs agree bitwise": check_repeated_runs_agree,
    "inputs are untouched": check_inputs_are_untouched,
    "opcheck of the forward": check_opcheck,
    "opcheck of the backward": check_opcheck_of_backward,
    "torch.compile, whole graph": check_compiled,
    "strided inputs": check_strided_inputs,
    "unaligned inputs": check_unaligned_inputs,
    "another stream": check_other_stream,
    "a CUDA graph": check_cuda_graph,
    "a second device": check_second_device,
    "several threads": check_threads,
    "outside the contract": check_outside_the_contract,
    "gradcheck and gradgradcheck of the fallback": check_gradients_to_second_order,
    "second derivative through the kernels": check_double_backward_of_kernels,
    "the worker's GPU commands": check_worker_commands,
}


# --- timings


def time_first_use(operator: Operator) -> dict[str, float]:
    """Seconds of a first call in a new process: without and with the kernel in the cache on disk."""
    with tempfile.TemporaryDirectory() as cache:
        return {"not_cached_s": first_call_s(operator, cache), "cached_s": first_call_s(operator, cache)}


def time_host_overhead(operator: Operator) -> dict[str, float]:
    """Host time of one call in microseconds, on inputs so small that the device is never what is waited for."""
    inputs = detached(operator.small_inputs())
    leaves = operator.small_inputs()
    tensor = next(value for value in inputs if is_floating(value))
    with torch.no_grad():
        times = {
            "function": host_time_us(lambda: operator.function(*inputs)),
            "operator": host_time_us(lambda: operator.forward(*inputs)),
            "reference": host_time_us(lambda: operator.reference(*inputs)),
            "torch.add": host_time_us(lambda: torch.add(tensor, tensor)),
            "torch.softmax": host_time_us(lambda: torch.softmax(tensor, -1)),
            "torch.empty": host_time_us(lambda: torch.empty_like(tensor)),
        }
    return {**times, "function with gradient": host_time_us(lambda: operator.function(*leaves))}


def time_forward(operator: Operator) -> dict[str, Any]:
    """Device time of the operator beside eager and torch.compile of the reference."""
    inputs = detached(operator.inputs())
    torch._dynamo.reset()
    baselines: dict[str, Callable[[], Any]] = {"eager": lambda: operator.reference(*inputs)}
    for mode in COMPILE_MODES:
        compiled = torch.compile(operator.reference, fullgraph=True, dynamic=False, mode=mode)
        baselines[f"torch.compile, {mode}"] = lambda compiled=compiled: compiled(*inputs)
    with torch.no_grad():
        for baseline in baselines.values():
            baseline()
        moved = bytes_of(inputs) + bytes_of(results_of(operator.forward, inputs))
        return compare(operator, lambda: operator.forward(*inputs), baselines, moved)


def time_backward(operator: Operator) -> dict[str, Any]:
    """Device time of the backward alone: graphs are built once and kept."""
    inputs = operator.inputs()
    if not requires_gradient(operator, inputs):
        return {}
    torch._dynamo.reset()
    compiled = torch.compile(operator.reference, fullgraph=True, dynamic=False)
    gradients = random_gradients(operator, inputs)
    calls = {
        name: backward_call(function, inputs, gradients)
        for name, function in (("ours", operator.forward), ("eager", operator.reference))
    }
    moved = bytes_of(inputs) + bytes_of(gradients) + bytes_of(calls["ours"]())
    ours = calls.pop("ours")
    with torch._functorch.config.patch(donated_buffer=False):  # or a compiled graph cannot be kept
        calls["torch.compile"] = backward_call(compiled, inputs, gradients)
        calls["torch.compile"]()
    return compare(operator, ours, calls, moved)


TIMINGS: dict[str, Callable[[Operator], dict[str, Any]]] = {
    "first_use": time_first_use,
    "host_overhead_us": time_host_overhead,
    "forward": time_forward,
    "backward": time_backward,
}


def compare(
    operator: Operator, ours: Callable[[], Any], others: dict[str, Callable[[], Any]], moved: int
) -> dict[str, Any]:
    """Ours beside each baseline, interleaved with it; an A-A pair gives the noise."""
    found: dict[str, Any] = {"bytes_moved": moved, "cache": "cold", "baselines": {}}
    for name, other in {"ours again": ours, **others}.items():
        mine, theirs = interleaved_times(ours, other, N_SAMPLES, operator.device.index or 0)
        pair = {"ours": summary(mine), "theirs": summary(theirs)}
        pair["speedup"] = pair["theirs"]["time_us"] / pair["ours"]["time_us"]
        found["baselines"][name] = pair
    best = min(pair["ours"]["time_us"] for pair in found["baselines"].values())
    found["terabytes_per_s"] = moved / best * 1e-6
    return found


def backward_call(
    function: Callable[..., Any], inputs: list[Any], gradients: tuple[torch.Tensor, ...]
) -> Callable[[], Any]:
    found = call(function, inputs)
    outputs = [value for value in as_tuple(found) if value.requires_grad]
    wanted = [value for value in inputs if is_floating(value)]
    return lambda: torch.autograd.grad(outputs, wanted, gradients[: len(outputs)], retain_graph=True)


def host_time_us(function: Callable[[], Any]) -> float:
    """Median over rounds of the mean over calls. The device keeps up, since its work is small."""
    rounds = []
    for _ in range(N_OVERHEAD_ROUNDS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(N_OVERHEAD_CALLS):
            function()
        rounds.append((time.perf_counter() - started) / N_OVERHEAD_CALLS * 1e6)
    return round(statistics.median(rounds), 3)


FIRST_CALL = """
import sys, time, warnings, torch
sys.path.insert(0, {folder!r}); sys.path.insert(0, {benchmarks!r})
import gpu_operator
operator = gpu_operator.Operator(gpu_operator.Path({path!r}), {inputs!r}, "cuda")
inputs = gpu_operator.detached(operator.inputs())
torch.cuda.synchronize()
started = time.perf_counter()
operator.forward(*inputs)
torch.cuda.synchronize()
print(time.perf_counter() - started)
"""


def first_call_s(operator: Operator, cache: str) -> float:
    program = FIRST_CALL.format(
        folder=str(operator.path.parent),
        benchmarks=str(ROOT / "benchmarks"),
        path=str(operator.path),
        inputs=operator.specification,
    )
    environment = {**os.environ, "XDG_CACHE_HOME": cache}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return round(float(done.stdout.split()[-1]), 4)


# --- below: comparing


def check_results_near_exact(operator: Operator, seed: int) -> float:
    """The largest ratio of our error to PyTorch's own, each against fp64. Raises AssertionError past the budget."""
    inputs = operator.inputs(seed)
    found, eager = results_of(operator.forward, inputs), results_of(operator.reference, inputs)
    return check_near_exact(found, eager, results_of(operator.reference, in_fp64(inputs)), FORWARD_FACTOR)


def check_gradients_near_exact(operator: Operator, seed: int) -> float:
    """Check the gradients as `check_results_near_exact` checks results."""
    inputs = operator.inputs(seed)
    gradients = random_gradients(operator, inputs)
    found, eager = (gradients_of(f, inputs, gradients) for f in (operator.forward, operator.reference))
    exact = gradients_of(operator.reference, in_fp64(inputs), tuple(gradient.double() for gradient in gradients))
    return check_near_exact(found, eager, exact, BACKWARD_FACTOR)


def check_near_exact(
    found: tuple[torch.Tensor, ...], eager: tuple[torch.Tensor, ...], exact: tuple[torch.Tensor, ...], factor: float
) -> float:
    ratios = []
    for ours, theirs, true in zip(found, eager, exact, strict=True):
        floor = FLOOR_ULPS * torch.finfo(ours.dtype).eps if ours.is_floating_point() else 0.0
        error, trusted = relative_l2(ours, true), relative_l2(theirs, true)
        assert error <= factor * trusted + floor, f"relative L2 error {error:.3g}, eager {trusted:.3g}"
        ratios.append(error / max(trusted, sys.float_info.min) if error else 0.0)
    return max(ratios)


def in_fp64(inputs: list[Any]) -> list[Any]:
    return [value.detach().double() if is_floating(value) else value for value in inputs]


def relative_l2(found: torch.Tensor, exact: torch.Tensor) -> float:
    difference, scale = (found.double() - exact.double()).norm(), exact.double().norm()
    return float(difference / scale) if float(scale) else float(difference)


def check_close(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...], slack: float = 1.0) -> None:
    """Shapes, dtypes and values; `slack` widens assert_close's own tolerances, for sums in another order."""
    assert len(found) == len(expected), f"{len(found)} results, not {len(expected)}"
    for one, other in zip(found, expected, strict=True):
        if not one.is_floating_point():
            torch.testing.assert_close(one, other)
            continue
        rtol, atol = (10 * slack * value for value in torch.testing._comparison.default_tolerances(one, other))
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol * max(1.0, float(other.abs().max())))


def results_of(function: Callable[..., Any], inputs: list[Any]) -> tuple[torch.Tensor, ...]:
    return tuple(value.detach() for value in as_tuple(call(function, inputs)))


def gradients_of(
    function: Callable[..., Any], inputs: list[Any], gradients: tuple[torch.Tensor, ...] = ()
) -> tuple[torch.Tensor, ...]:
    """Gradients of the floating inputs; of the sum of squares where no gradients are given."""
    leaves = [value.detach().requires_grad_() if is_floating(value) else value for value in inputs]
    outputs = [value for value in as_tuple(call(function, leaves)) if value.requires_grad]
    wanted = [value for value in leaves if is_floating(value)]
    if gradients:
        return torch.autograd.grad(outputs, wanted, gradients[: len(outputs)])
    return torch.autograd.grad(sum(value.square().sum() for value in outputs), wanted)


def second_gradients_of(function: Callable[..., Any], inputs: list[Any]) -> tuple[torch.Tensor, ...]:
    leaves = [value.detach().requires_grad_() if is_floating(value) else value for value in inputs]
    wanted = [value for value in leaves if is_floating(value)]
    outputs = [value for value in as_tuple(call(function, leaves)) if value.requires_grad]
    first = torch.autograd.grad(sum(value.sum() for value in outputs), wanted, create_graph=True)
    return torch.autograd.grad(sum(value.square().sum() for value in first), wanted)


def random_gradients(operator: Operator, inputs: list[Any]) -> tuple[torch.Tensor, ...]:
    """One for each floating result."""
    with torch.no_grad():
        results = results_of(operator.reference, inputs)
    generator = torch.Generator().manual_seed(7)
    return tuple(
        torch.randn(result.shape, generator=generator).to(result.dtype).to(result.device)
        for result in results
        if result.is_floating_point()
    )


def run_in_worker(gpu: ModuleType, operator: Operator, operation: dict[str, Any], folder: Path) -> str:
    """One bound operation through `check`."""
    files = load_worker("files")
    names = [spec.name for spec in parse_inputs(operator.specification)]
    values = dict(zip(names, detached(operator.inputs()), strict=True))
    inputs = list(values.values())
    for gradient, tensor in zip(random_gradients(operator, inputs), operation["tensors"], strict=False):
        values.setdefault(tensor["name"], gradient)
    declared = [tensor for tensor in operation["tensors"] if tensor["role"] == "input"]
    entries = [files.write_tensor(str(folder / t["name"]), t["name"], values[t["name"]]) for t in declared]
    outputs = {t["name"]: str(folder / t["name"]) for t in operation["tensors"] if t["role"] == "output"}
    request = {"candidate": "c", "operation": operation, "inputs": entries}
    again = {name: f"{path}.again" for name, path in outputs.items()}
    ran = gpu.handle_check({**request, "case": "c", "outputs": outputs, "again": again})
    assert ran["status"] == "ran", ran
    assert not ran["changed_inputs"], ran
    assert not ran["overrun"], ran
    found = tuple(files.read_tensor(entry).to(operator.device) for entry in ran["outputs"])
    if operation["name"] != operator.name:
        check_close(found, gradients_of(operator.reference, inputs, random_gradients(operator, inputs)), 10.0)
        return f"{operation['name']} ran"
    check_close(found, results_of(operator.reference, inputs))
    return f"{operation['name']} ran"


# --- below: timing


def interleaved_times(
    first: Callable[[], Any], second: Callable[[], Any], n_samples: int, device: int
) -> tuple[list[float], list[float]]:
    """Device times of both in microseconds, taken A-B-B-A, each call after a flush of L2.

    The device sleeps before each start event for as long as the host needs to enqueue the call, so that the gaps
    between launches are the device's and not Python's.
    """
    flush = _L2Flush(device)
    timers = [_CallTimer(call, flush) for call in (first, second)]
    while len(timers[0].samples_us) < n_samples:
        for index in (0, 1, 1, 0):
            timers[index].sample()
    return timers[0].samples_us, timers[1].samples_us


def summary(samples_us: Sequence[float]) -> dict[str, Any]:
    """Median, 10th and 90th percentile."""
    cuts = statistics.quantiles(samples_us, n=100, method="inclusive")
    return {
        "time_us": statistics.median(samples_us),
        "low_us": cuts[LOW_PERCENTILE - 1],
        "high_us": cuts[HIGH_PERCENTILE - 1],
        "n_samples": len(samples_us),
    }


class _L2Flush:
    """Writes over more memory than L2 holds, with other values each time."""

    def __init__(self, device: int) -> None:
        n_bytes = L2_FLUSH_FACTOR * torch.cuda.get_device_properties(device).L2_cache_size
        self._memory = torch.randint(1, 1 << 30, (n_bytes // 4,), dtype=torch.int32, device=device)

    def __call__(self) -> None:
        self._memory.add_(1)


class _CallTimer:
    """Takes samples of one call."""

    def __init__(self, call: Callable[[], Any], flush: Callable[[], None]) -> None:
        self._call, self._flush = call, flush
        self.samples_us: list[float] = []
        for _ in range(N_WARM_UP):
            call()
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        enqueue_us = (time.perf_counter() - started) * 1e6
        self._sleep_cycles = int(min(2 * enqueue_us, MAX_SLEEP_US) * SLEEP_CYCLES_PER_US)

    def sample(self) -> None:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._flush()
        torch.cuda._sleep(self._sleep_cycles)
        start.record()
        self._call()
        end.record()
        end.synchronize()
        self.samples_us.append(start.elapsed_time(end) * 1e3)


# --- below: inputs


def parse_inputs(text: str) -> list[InputSpec]:
    """``x=f32[64, 128], targets=i64[64] < 128, eps=1e-6``. Raises ValueError for anything else."""
    specs = []
    for part in re.split(r",(?![^\[]*\])", text):
        tensor = re.fullmatch(r"\s*(\w+)\s*=\s*(\w+)\[([\d,\s]*)\](?:\s*<\s*(\d+))?\s*", part)
        number = re.fullmatch(r"\s*(\w+)\s*=\s*([-+.\w]+)\s*", part)
        if tensor and tensor[2] in DTYPES:
            shape = tuple(int(size) for size in tensor[3].split(",") if size.strip())
            specs.append(InputSpec(tensor[1], tensor[2], shape, int(tensor[4] or 2)))
        elif number:
            specs.append(InputSpec(number[1], number=parse_number(number[2])))
        else:
            raise ValueError(f"not an input: {part.strip()!r}")
    return specs


def parse_number(text: str) -> float | int | bool:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


def all_cut(inputs: list[Any], n_rows: int, n_columns: int) -> list[Any]:
    """The inputs with the first dim of every tensor of two or more, and the last dim of all, cut."""
    return [cut(value, n_rows, n_columns) if isinstance(value, torch.Tensor) else value for value in inputs]


def cut(tensor: torch.Tensor, n_rows: int, n_columns: int) -> torch.Tensor:
    kept = tensor.detach()[..., :n_columns]
    kept = kept[:n_rows] if kept.dim() > 1 else kept
    return kept.contiguous().requires_grad_(tensor.requires_grad)


def strided(value: Any) -> Any:
    """The same values with gaps between them."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    doubled = torch.empty((*value.shape, 2), dtype=value.dtype, device=value.device)
    doubled[..., 0] = value.detach()
    return doubled[..., 0]


def unaligned(value: Any) -> Any:
    """The same values, one element off any alignment."""
    if not isinstance(value, torch.Tensor):
        return value
    buffer = torch.empty(value.numel() + 1, dtype=value.dtype, device=value.device)
    buffer[1:] = value.detach().flatten()
    return buffer[1:].view(value.shape)


def detached(inputs: list[Any]) -> list[Any]:
    return [value.detach() if isinstance(value, torch.Tensor) else value for value in inputs]


def is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def as_tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def call(function: Callable[..., Any], inputs: list[Any]) -> Any:
    return function(*inputs)


def bytes_of(values: Any) -> int:
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def requires_gradient(operator: Operator, inputs: list[Any]) -> bool:
    with torch.no_grad():
        results = results_of(operator.reference, inputs)
    return any(map(is_floating, inputs)) and any(result.is_floating_point() for result in results)


def need_gradients(operator: Operator) -> None:
    if not requires_gradient(operator, operator.inputs()):
        raise Skip("nothing here has a gradient")


def need_gpu(operator: Operator) -> None:
    if operator.device.type != "cuda":
        raise Skip("needs a GPU")


def count_launches(operator: Operator) -> int:
    bound = operator.module.OPERATOR.forward.bound.by_inputs.values()
    return sum(not isinstance(value, str) and value.n_launches > 0 for value in bound)


# --- below: loading


def load_module(path: Path, name: str) -> ModuleType:
    sys.path.append(str(path.parent))  # of the runtime beside it
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_worker(name: str) -> ModuleType:
    """A module of the worker's folder, loaded as the worker itself loads them: without kernel_lsp."""
    package = "_kernel_lsp_worker"
    if package not in sys.modules:
        folder = ROOT / "kernel_lsp" / "worker"
        spec = importlib.util.spec_from_file_location(
            package, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[package] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[package])
    return importlib.import_module(f"{package}.{name}")


def device_facts(device: str) -> dict[str, str]:
    if device == "cuda":
        return load_worker("gpu.device").device_facts(torch.cuda.current_device())
    return {"gpu": "none (CPU)", "driver": "none", "torch_version": torch.__version__}


if __name__ == "__main__":
    raise SystemExit(main())
