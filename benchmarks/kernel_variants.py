"""Time many `.cu` texts of one task against PyTorch on a GPU: for tuning templates, not for verdicts.

    python benchmarks/kernel_variants.py render FOLDER...         # CPU: the default text and its neighbours by one knob
    python benchmarks/kernel_variants.py bind FOLDER...           # CPU: bind each launch plan; needs kernel_lsp
    python benchmarks/kernel_variants.py time FOLDER... --out F   # GPU: needs torch alone
    python benchmarks/kernel_variants.py time FOLDER... --compile default  # with modes of torch.compile beside eager
    python benchmarks/kernel_variants.py means F            # default texts over the best of PyTorch that F has
    until python benchmarks/kernel_variants.py time FOLDER... --resume; do :; done  # status 3: a text broke the context

A FOLDER (such as a copy of `benchmarks/variants`) holds one folder per task: `task.py` in KernelBench's form
(`Model`, `get_inputs`, `get_init_inputs`), the texts `*.cu`, and an empty file `BACKWARD` where gradients count.
Numbers that a plan takes are `SCALARS` of `task.py` or attributes of its model; `SCHEDULES` names choices of knobs to
render, too. Floating values are compared with fp64 where that fits, integers are not: places of equal elements may
differ. Times are device times in a CUDA graph with a cold L2 cache. A claim about a kernel needs `kernel-lsp check` or
`optimize`.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import functools
import importlib.util
import inspect
import json
import multiprocessing
import os
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch

from kernel_lsp.worker.timing.stopwatch import CudaStopwatch

MAX_FP64_BYTES = 24 << 30
"""Maximum bytes of inputs in fp64 for an fp64 reference; larger tasks are compared with eager PyTorch."""
MAX_CALLS_IN_GRAPH = 20
TARGET_S = 0.12
"""Seconds of measuring for each subject."""
N_COMPILERS = 12
N_COMPILING_TASKS = 8
"""Tasks at once whose graphs torch.compile compiles: each holds its inputs on the GPU."""
MAX_COMPILE_S = 200.0
MAX_TASK_S = 60.0
"""Maximum time of a task without compilers: a text that hangs takes longer. Modes of torch.compile have more."""
NOT_REACHED = "not reached"
MAX_TEXTS = 24
"""Texts of one task: each costs about half a second of a GPU's time."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("render", "bind", "time", "means"))
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("kernel_variants.json"))
    parser.add_argument("--compile", nargs="+", default=(), metavar="MODE", help="time these modes of torch.compile")
    parser.add_argument("--default-only", action="store_true", help="render the default text alone")
    parser.add_argument("--deadline-s", type=float, default=540.0)
    parser.add_argument("--target-s", type=float, default=TARGET_S, help="seconds of measuring for each subject")
    parser.add_argument("--resume", action="store_true", help="skip the tasks that --out has, e.g. after status 3")
    arguments = parser.parse_args()
    if arguments.command == "means":
        return print_means(arguments.folders)
    tasks = [path.parent for folder in map(Path.resolve, arguments.folders) for path in sorted(folder.rglob("task.py"))]
    if arguments.command == "render":
        return asyncio.run(render_all(tasks, arguments.default_only))
    if arguments.command == "bind":
        return bind_all(tasks)
    return time_all(tasks, arguments)


# --- render: on the CPU, with kernel_lsp


async def render_all(folders: list[Path], default_only: bool) -> int:
    """Write the generator's texts beside each task. Returns 1 when a task has no text."""
    from kernel_lsp.config import load_settings
    from kernel_lsp.errors import KernelLspError
    from kernel_lsp.generate.program import plan_program
    from kernel_lsp.source.pytorch import read_target
    from kernel_lsp.verify.session.session import Session

    n_failed = 0
    async with Session(load_settings(ROOT, {"device": "cpu"})) as session:
        for folder in folders:
            try:
                source = read_target(str(folder / "task.py"), folder)
                task = await session.capture(source, with_backward=(folder / "BACKWARD").exists())
                schedules = getattr(load(folder / "task.py"), "SCHEDULES", {})
                texts = neighbours(plan_program(task), schedules, 1 if default_only else MAX_TEXTS)
            except KernelLspError as error:
                print(f"{folder.name}: {error}")
                n_failed += 1
                continue
            for name, text in texts.items():
                (folder / f"{name}.cu").write_text(text, encoding="utf-8")
            print(f"{folder.name}: {len(texts)} texts", flush=True)
    return int(n_failed > 0)


def neighbours(program: Any, schedules: Mapping[str, Mapping[str, Any]], max_texts: int) -> dict[str, str]:
    """The default text, those of `schedules` by name, and those that differ from the default by one knob, each once."""
    default = program.realize({})
    found = {"default": default.text}
    for name, choices in schedules.items():
        realized = program.realize(choices)
        if realized.is_valid:
            found[name] = realized.text
        else:
            print(f"{name} is no schedule of this program")
    for knob in default.knobs:
        for value in knob.values:
            realized = program.realize({knob.name: value})
            if realized.is_valid and realized.text not in found.values() and len(found) < max_texts:
                found[f"{knob.name}.{value}"] = realized.text
    return found


# --- bind: on the CPU, with kernel_lsp


def bind_all(folders: list[Path]) -> int:
    """Write `bound.json` beside each task. Returns 1 when a plan could not be bound."""
    n_failed = 0
    for folder in folders:
        has_backward = (folder / "BACKWARD").exists()
        shapes, outputs, numbers = shapes_of(folder, has_backward)
        found: dict[str, Any] = {}
        for path in sorted(folder.glob("*.cu")):
            try:
                found[path.stem] = bound_operations(path, shapes, outputs, numbers, has_backward)
            except Exception as problem:  # a text may be broken in any way: name it and go on
                print(f"{path}: {type(problem).__name__}: {problem}")
                n_failed += 1
        (folder / "bound.json").write_text(json.dumps(found), encoding="utf-8")
        print(f"{folder.name}: {len(found)} bound")
    return int(n_failed > 0)


Shapes = dict[str, tuple[int, ...]]


def shapes_of(folder: Path, has_backward: bool) -> tuple[Shapes, Shapes, dict[str, float]]:
    """Return the shapes of the forward's inputs, those of its outputs where a backward takes gradients of them, and the
    numbers that a plan may take."""
    module = load(folder / "task.py")
    try:
        model, inputs, out = _called(module, "meta", has_backward)
    except RuntimeError:  # a model that reads values while it is built
        model, inputs, out = _called(module, "cpu", has_backward)
    tensors = named_tensors(model, inputs)
    outputs = out if isinstance(out, (tuple, list)) else [out]
    numbers = {name: value for name, value in vars(model).items() if isinstance(value, (int, float))}
    numbers |= getattr(module, "SCALARS", {})
    named = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return named, {f"out{i}": tuple(out.shape) for i, out in enumerate(outputs)}, numbers


def _called(module: ModuleType, device: str, is_run: bool) -> tuple[torch.nn.Module, list[Any], Any]:
    """Return the model, its inputs, and its results where it `is_run`: steps of a recurrent layer take minutes."""
    with torch.device(device):
        model, inputs = module.Model(*module.get_init_inputs()), module.get_inputs()
        return model, inputs, model(*inputs) if is_run else ()


def bound_operations(
    path: Path, shapes: Shapes, outputs: Shapes, numbers: Mapping[str, float], backward: bool
) -> dict[str, Any]:
    """The forward and, where asked for, the backward operation of a text, bound."""
    from kernel_lsp.core.plan import ScalarParameter, TensorParameter
    from kernel_lsp.plan.binding import bind
    from kernel_lsp.plan.parser import parse_or_raise
    from kernel_lsp.plan.renaming import chained_backward
    from kernel_lsp.source.cuda import kernel_signatures
    from kernel_lsp.toolchain.nvrtc.standard_headers import headers_of

    text = path.read_text(encoding="utf-8")
    plan = parse_or_raise(text, str(path))
    signatures = kernel_signatures(text)
    results = [result.name for result in plan.forward.results]
    found: dict[str, Any] = {"text": text, "headers": headers_of(text), "results": results}
    for direction, operation in (("forward", plan.forward), ("backward", chained_backward(plan))):
        if operation is None or (direction == "backward" and not backward):
            continue
        given = {}
        for parameter in operation.parameters:
            if isinstance(parameter, TensorParameter):
                place = gradient_place(parameter.name, results)
                given[parameter.name] = shapes[parameter.name] if place is None else outputs[f"out{place}"]
        scalars = {p.name: numbers[p.name] for p in operation.parameters if isinstance(p, ScalarParameter)}
        bound = bind(operation, given, scalars, signatures)
        found[direction] = bound.timed.model_dump(mode="json")
        if bound.n_before:  # what makes the tensors that the backward takes of its forward: run once, not timed
            found[f"{direction}_before"] = bound.before.model_dump(mode="json")
    return found


# --- time: on the GPU, with torch


def gradient_place(name: str, results: Sequence[str]) -> int | None:
    """Return the index of the forward's result whose gradient this is; None for any other tensor."""
    names = [f"grad_{result}" for result in results]
    return names.index(name) if name in names else None


def time_all(folders: list[Path], arguments: argparse.Namespace) -> int:
    """Time all tasks. Returns 3 when a text lost the CUDA context or hangs: `--resume` goes on in a new process."""
    started = time.monotonic()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.cuda.set_stream(torch.cuda.Stream())  # a gradient runs on its forward's stream, which is captured
    results = Results(arguments.out, arguments.resume)
    folders = [folder for folder in folders if folder.name not in results.tasks]
    with multiprocessing.get_context("spawn").Pool(N_COMPILERS) as pool:
        compile_ahead(folders, arguments.compile)
        ready = {folder: pool.map_async(compile_one, list(texts_of(folder)), chunksize=1) for folder in folders}
        for folder in folders:
            if time.monotonic() - started > arguments.deadline_s:
                results.add([{"task": folder.name, "subject": "-", "problem": NOT_REACHED}])
                continue
            watchdog = threading.Timer(MAX_TASK_S * (1 + 3 * len(arguments.compile)), results.give_up, [folder.name])
            watchdog.daemon = True
            try:
                ready[folder].wait(120)
                watchdog.start()
                rows = TaskTimer(folder, arguments.compile, arguments.target_s).rows()
            except Exception as problem:  # one task's failure must not cost the others their device time
                traceback.print_exc()
                rows = [{"task": folder.name, "subject": "-", "problem": f"{type(problem).__name__}: {problem}"}]
            watchdog.cancel()
            results.add(rows)
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                results.give_up("")
            torch._dynamo.reset()
            torch.cuda.empty_cache()
    return 0


class Results:
    """The rows so far, written after every task."""

    def __init__(self, out: Path, resume: bool) -> None:
        self.out = out
        known = json.loads(out.read_text(encoding="utf-8"))["rows"] if resume and out.exists() else []
        self.rows: list[dict[str, Any]] = [row for row in known if row.get("problem") != NOT_REACHED]
        self.tasks = {row["task"] for row in self.rows}

    def add(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            print(shown(row), flush=True)
        self.rows += rows
        self.out.parent.mkdir(parents=True, exist_ok=True)
        facts = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": self.rows}
        self.out.write_text(json.dumps(facts, indent=1), encoding="utf-8")

    def give_up(self, hanging: str) -> None:
        """End the process, compilers included: no call into a lost context or behind a hanging kernel returns."""
        if hanging:
            self.add([{"task": hanging, "subject": "-", "problem": "a text hangs"}])
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(3)


def compile_ahead(folders: list[Path], modes: Sequence[str]) -> None:
    """Fill torch.compile's cache by several processes, so that the timing process finds every graph compiled."""
    if not modes:
        return
    with multiprocessing.get_context("spawn").Pool(N_COMPILING_TASKS, maxtasksperchild=4) as pool:
        pool.starmap_async(compile_task, [(folder, modes) for folder in folders], chunksize=1).wait(MAX_COMPILE_S)
        pool.terminate()


def compile_task(folder: Path, modes: Sequence[str]) -> None:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        timer = TaskTimer(folder, modes)
        timer.draw_gradients()
        for mode in modes:
            torch._dynamo.reset()
            fn = torch.compile(timer.model, mode=mode)
            with torch.no_grad():
                fn(*timer.inputs)
            if timer.backward:
                timer._eager_backward(fn)()
        torch.cuda.synchronize()
    except Exception as problem:  # the timing process names the problem
        print(f"{folder.name}: {type(problem).__name__}: {str(problem)[:200]}", flush=True)


def texts_of(folder: Path) -> Iterator[CompileJob]:
    from kernel_lsp.worker.shipped.cuda_runtime import architecture_of

    architecture = architecture_of(0)
    for name, candidate in json.loads((folder / "bound.json").read_text(encoding="utf-8")).items():
        yield f"{folder.name}-{name}", candidate["text"], names_of(candidate), candidate["headers"], architecture


def names_of(candidate: Mapping[str, Any]) -> list[str]:
    """The kernels that a bound candidate launches."""
    operations = [value for key, value in candidate.items() if key.startswith(("forward", "backward"))]
    return sorted({s["kernel"] for o in operations for s in o["steps"] if s["kind"] == "launch"})


CompileJob = tuple[str, str, list[str], dict[str, str], str]
"""A name, a text, its kernels, headers that NVRTC does not have, and the architecture."""


def compile_one(job: CompileJob) -> str:
    """Into the cache, in a process of its own. Returns the compiler's log where it refuses."""
    from kernel_lsp.worker.shipped.cuda_runtime import CudaError, compiled

    name, text, kernels, headers, architecture = job
    try:
        compiled(text, f"{name}.cu", kernels, architecture, headers)
    except CudaError as problem:
        return str(problem)[-2000:]
    return ""


class TaskTimer:
    """Everything about one task on the current GPU."""

    def __init__(self, folder: Path, modes: Sequence[str], target_s: float = TARGET_S) -> None:
        self.folder, self.modes, self.target_s = folder, modes, target_s
        self.backward = (folder / "BACKWARD").exists()
        module = load(folder / "task.py")
        torch.manual_seed(0)
        with torch.device("cuda"):
            self.model = module.Model(*module.get_init_inputs())
            inputs = module.get_inputs()  # on the GPU: a processor draws a billion numbers in ten seconds
        self.inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in inputs]
        self.tensors = {k: v.detach() for k, v in named_tensors(self.model, self.inputs).items()}
        self.stopwatch = CudaStopwatch(torch.cuda.current_device())

    def rows(self) -> list[dict[str, Any]]:
        expected = self._expected()
        found = [self._row("forward", "eager", lambda: self.model(*self.inputs), expected["forward"])]
        if self.backward:
            found.append(self._row("backward", "eager", self._eager_backward(), expected["backward"]))
        found += self._compiled(expected)
        for name, candidate in json.loads((self.folder / "bound.json").read_text(encoding="utf-8")).items():
            for direction in ("forward", "backward"):
                if direction in candidate:
                    found.append(self._candidate(name, candidate, direction, expected[direction]))
        return found + self._peers(expected)  # last: some overwrite their inputs

    def _candidate(self, name: str, candidate: Mapping[str, Any], direction: str, expected: Any) -> dict[str, Any]:
        from kernel_lsp.worker.gpu.run import BoundRun, Candidate, made_by
        from kernel_lsp.worker.shipped.cuda_runtime import KernelLibrary

        try:
            names = names_of(candidate)
            library = KernelLibrary(candidate["text"], f"{self.folder.name}-{name}.cu", names, candidate["headers"])
            functions = {each: library.function(each, 0) for each in names}
            operation = candidate[direction]
            before = candidate.get(f"{direction}_before")
            made = made_by(Candidate(functions, 0), before, self._given(before, candidate)) if before else {}
            given = {**self._given(operation, candidate, made), **made}
            run = BoundRun(Candidate(functions, 0), operation, given)
            run()
            torch.cuda.synchronize()
            overrun = run.overrun()
            outputs = [run.tensors[holder] for holder in operation["returns"].values()]
            row = self._row(direction, name, run, expected, outputs)
            return {**row, "overrun": overrun} if overrun else row
        except Exception as problem:  # any fault of a candidate is its result
            return self._failed(direction, name, problem)

    def _failed(self, direction: str, subject: str, problem: Exception) -> dict[str, Any]:
        """Return the row of what could not be timed, with the end of the message: a compiler's errors come last."""
        message = f"{type(problem).__name__}: {str(problem)[-600:]}"
        return {"task": self.folder.name, "direction": direction, "subject": subject, "problem": message}

    def _given(
        self, operation: Mapping[str, Any], candidate: Mapping[str, Any], made: Mapping[str, Any] | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the inputs of an operation but those that another has `made`."""
        names = [tensor["name"] for tensor in operation["tensors"] if tensor["role"] == "input"]
        return {name: self._tensor(name, candidate["results"]) for name in names if name not in (made or {})}

    def _tensor(self, name: str, results: Sequence[str]) -> torch.Tensor:
        place = gradient_place(name, results)
        return self.tensors[name] if place is None else self.grads_out[place]

    def _row(
        self, direction: str, subject: str, call: Callable[[], Any], expected: Any, outputs: Any = None
    ) -> dict[str, Any]:
        """Time a call; a forward as in inference: with no gradients, a compiler keeps nothing for a backward pass."""
        row: dict[str, Any] = {"task": self.folder.name, "direction": direction, "subject": subject}
        with torch.set_grad_enabled(direction == "backward"):
            out = call()
            torch.cuda.synchronize()
            out = outputs if outputs is not None else out
            values = list(out) if isinstance(out, (tuple, list)) else [out]
            pairs = [(o, e) for o, e in zip(values, expected, strict=False) if e.is_floating_point()]
            row["error"] = max((relative_error(o, e) for o, e in pairs), default=0.0)
            n_written = sum(value.numel() * value.element_size() for value in values if isinstance(value, torch.Tensor))
            flush = functools.partial(self.stopwatch.flush, n_written)
            row["time_us"], row["spread"] = device_time_us(call, flush, self.target_s)
        return row

    def _compiled(self, expected: Any) -> list[dict[str, Any]]:
        found = []
        for mode in self.modes:
            torch._dynamo.reset()
            try:
                fn = torch.compile(self.model, mode=mode)
                name, forward = f"compile {mode}", functools.partial(fn, *self.inputs)
                found.append(self._row("forward", name, forward, expected["forward"]))
                if self.backward:
                    call = self._eager_backward(fn)
                    found.append(self._row("backward", name, call, expected["backward"]))
            except Exception as problem:  # a mode that fails is a result
                found.append(self._failed("forward", f"compile {mode}", problem))
        return found

    def _peers(self, expected: Any) -> list[dict[str, Any]]:
        """Time the functions that `peers.txt` names, one ``FILE::NAME`` a line, with the inputs of the task."""
        listing = self.folder / "peers.txt"
        found = []
        for line in listing.read_text(encoding="utf-8").split() if listing.exists() else ():
            file, _, name = line.partition("::")
            try:
                fn = getattr(load(ROOT / file), name)
                found.append(self._row("forward", name, lambda fn=fn: fn(*self.inputs), expected["forward"]))
                if self.backward:
                    found.append(self._row("backward", name, self._eager_backward(fn), expected["backward"]))
            except Exception as problem:  # a library may be missing or fail in any way: that is a result
                found.append(self._failed("forward", name, problem))
        return found

    def _leaves(self, model: torch.nn.Module, inputs: list[Any]) -> list[torch.Tensor]:
        floats = [x for x in inputs if isinstance(x, torch.Tensor) and x.is_floating_point()]
        return [*(x.requires_grad_() for x in floats), *model.parameters()]

    def _eager_backward(self, fn: Any = None) -> Callable[[], Any]:
        leaves = self._leaves(self.model, self.inputs)
        out = (self.model if fn is None else fn)(*self.inputs)
        results, grads = self._differentiable(listed(out))
        return lambda: torch.autograd.grad(results, leaves, grads, retain_graph=True)

    def _differentiable(self, results: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the results that have a gradient, and the gradients that come in for them."""
        kept = [(r, g.to(r.dtype)) for r, g in zip(results, self.grads_out, strict=True) if r.requires_grad]
        return [r for r, _ in kept], [g for _, g in kept]

    def draw_gradients(self) -> list[torch.Tensor]:
        """Return the forward's results, and keep a gradient that comes in for each."""
        with torch.no_grad():
            out = listed(self.model(*self.inputs))
        self.grads_out = [torch.randn_like(each) if each.is_floating_point() else each for each in out]
        return out

    def _expected(self) -> dict[str, Any]:
        n_bytes = 8 * sum(t.numel() for t in self.tensors.values())
        out = self.draw_gradients()
        in_fp64 = n_bytes <= MAX_FP64_BYTES
        model = copy.deepcopy(self.model).double() if in_fp64 else self.model
        inputs = [as_fp64(x) if in_fp64 else x for x in self.inputs]
        if not self.backward:
            with torch.no_grad():
                try:
                    return {"forward": listed(model(*inputs))}
                except RuntimeError:  # a function of the module holds parameters of the original, which stay f32
                    return {"forward": out}
        inputs = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        leaves = self._leaves(model, inputs)
        out = listed(model(*inputs))
        results, grads_out = self._differentiable(out)
        grads = torch.autograd.grad(results, leaves, grads_out)
        return {"forward": [each.detach() for each in out], "backward": grads}


def device_time_us(call: Callable[[], Any], flush: Callable[[], None], target_s: float) -> tuple[float, float]:
    """Median device time of a call after a flush of L2, and the relative spread of its middle half."""
    for _ in range(2):
        call()
    rough_us = events_us(call, 2)
    n_calls = max(1, min(MAX_CALLS_IN_GRAPH, int(4000 / max(rough_us, 1.0))))

    def captured(with_call: bool) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            for _ in range(n_calls):
                flush()
                if with_call:
                    call()
        return graph

    def queued(with_call: bool) -> None:
        for _ in range(n_calls):
            flush()
            if with_call:
                call()

    try:
        subject, flushes = captured(True).replay, captured(False).replay
    except Exception:  # a call that waits for the GPU cannot be captured: time it from the queue
        subject, flushes = functools.partial(queued, True), functools.partial(queued, False)
    n_rounds = max(5, min(60, int(target_s / (n_calls * (rough_us + 130.0) * 1e-6))))
    differences = []
    for _ in range(n_rounds):
        differences.append((events_us(subject, 1) - events_us(flushes, 1)) / n_calls)
    quarters = statistics.quantiles(differences, n=4)
    median = statistics.median(differences)
    return median, (quarters[2] - quarters[0]) / max(median, 1e-9)


def events_us(call: Callable[[], Any], n: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(n):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / n


# --- both


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"task_{path.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # torch.compile looks it up
    spec.loader.exec_module(module)
    return module


def named_tensors(model: torch.nn.Module, inputs: list[Any]) -> dict[str, torch.Tensor]:
    """Inputs, parameters and buffers by the names that a plan gives them."""
    names = list(inspect.signature(model.forward).parameters)
    found = {name: x for name, x in zip(names, inputs, strict=False) if isinstance(x, torch.Tensor)}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found[name.replace(".", "_")] = tensor
    return found


def as_fp64(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def listed(out: Any) -> list[Any]:
    return list(out) if isinstance(out, (tuple, list)) else [out]


def relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative L2, in slices, so that it needs little memory."""
    if out.shape != expected.shape:
        return float("inf")
    left, right = out.reshape(-1), expected.reshape(-1)
    step, total, norm = 1 << 26, 0.0, 0.0
    for start in range(0, left.numel(), step):
        a, b = left[start : start + step].double(), right[start : start + step].double()
        total, norm = total + float(((a - b) ** 2).sum()), norm + float((b**2).sum())
    return (total / norm) ** 0.5 if norm > 0 else total**0.5


def shown(row: Mapping[str, Any]) -> str:
    where = f"{row['task']:<26} {row.get('direction', ''):<9}{row['subject']:<44}"
    if "problem" in row:
        return f"{where} {row['problem'][:160]}"
    return f"{where} {row['time_us']:10.2f} us  ±{row['spread']:.1%}  error {row['error']:.2e} {row.get('overrun', '')}"


# --- means: of a file of `time`


def print_means(files: list[Path]) -> int:
    """Print the geometric mean, by direction, of the best PyTorch time over that of the default text, in each file."""
    for file in files:
        times: dict[tuple[str, str], dict[str, float]] = {}
        for row in json.loads(file.read_text(encoding="utf-8"))["rows"]:
            if "time_us" in row:
                times.setdefault((row["direction"], row["task"]), {})[row["subject"]] = row["time_us"]
        for direction in ("forward", "backward"):
            ratios = []
            for (along, _), by_subject in times.items():
                best = [us for name, us in by_subject.items() if name == "eager" or name.startswith("compile ")]
                if along == direction and best and "default" in by_subject:
                    ratios.append(min(best) / by_subject["default"])
            if ratios:
                print(f"{file.name}: {direction} {statistics.geometric_mean(ratios):.2f}x ({len(ratios)} tasks)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
