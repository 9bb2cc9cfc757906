"""Record what a program calls the functions and modules of a workspace with, and their share of a step.

Runs inside the user's interpreter, from `sitecustomize`: Python 3.9 or newer, standard library and the user's torch.
It waits for the import of torch, wraps the workspace's functions and the calls of its modules, and takes all of that
away at the end. Each process of the program writes a part, a JSON file; `kernel_lsp.record.run` reads them.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import threading
import time
from typing import Any

from _kernel_lsp_calls import (
    DTYPES,
    MAX_SPANS,
    N_RANGES,
    Budget,
    Configuration,
    Granted,
    Run,
    Sample,
    Target,
    Totals,
    flattened,
    has_compiled,
    is_own_function,
    signature,
    untimed_after,
    wrapped,
    wrapped_module,
)
from _kernel_lsp_imports import Files, Finder
from _kernel_lsp_literals import all_parts, literal, parts_without_literal
from _kernel_lsp_main import hide_interrupt, register_end, watch_main
from _kernel_lsp_rests import MAX_UNCHECKED, Rests, of_class
from _kernel_lsp_spelling import init_of

VARIABLE = "_KERNEL_LSP_RECORD"
"""Environment variable with the request: a JSON object of `root`, `parts` and `steps`."""
UNLIMITED = 1 << 60
MAX_MISSES = 100
"""Calls without a tensor after which a function that never had one is left alone."""
N_FIRST = 2
"""Steps that are timed whatever it costs: the first may be a warm-up."""
MAX_PENDING = 64
"""Maximum timed steps whose CUDA events are yet to be read."""
FLUSH_S = 2.0
"""Seconds between writes of the part, so that a killed program keeps what was recorded."""


def start():
    """Wait for the import of torch in this process. Does nothing without a request in the environment."""
    request = os.environ.get(VARIABLE)
    if request:
        fields = json.loads(request)
        if fields.pop("is_limited"):
            hide_interrupt()
        recorder = Recorder(**fields)
        sys.meta_path.insert(0, Finder(recorder))
        register_end(recorder.finish)
        os.register_at_fork(after_in_child=recorder.abandon)


class Recorder:
    """The recording of one process."""

    def __init__(self, root, parts, steps):
        self.steps, self.has_torch, self.symbol_file = steps, None, Files(root).symbol
        self.torch: Any = None
        self.part = os.path.join(parts, f"{os.getpid()}.json")
        self.targets: dict[str, Any] = {}
        self.inits, self.classes, self.wrapped, self.undo = {}, {}, [], []
        self.rests = Rests(self.targets)
        self.streaks = {}
        """A streak of calls for each module of a class, by their ids; see `wrapped_module`."""
        self.is_on, self.has_optimizer, self.has_nested, self.depth, self.n_steps = True, False, False, 0, 0
        self.gate, self.granted, self.n_granted = [0], Granted(), 0
        """The calls that may pass without a description, shared with the wrappers, and those granted as steps."""
        self.sample, self.pending, self.totals, self.warm, self.budget = None, [], Totals(), Totals(), Budget()
        self.on_cuda, self.device, self.error, self.thread, self.n_main = False, "cpu", "", None, 0
        self.started = self.flushed = time.perf_counter()

    def after(self, name, origin):
        """Return what to call with a module once it has run; None for one that does not concern the recording."""
        if name == "torch":
            return self.install
        return self.wrap_functions if self.is_on and self.symbol_file(origin) else None

    def install(self, torch):
        """Begin, since torch is there now."""
        if not self.is_on or not hasattr(torch, "nn"):
            return
        self.torch, self.has_torch, self.thread = torch, True, threading.get_ident()
        compiler = getattr(torch, "compiler", None)
        self.compiling = getattr(compiler, "is_compiling", None) or (lambda: False)
        self.traced = getattr(compiler, "is_dynamo_compiling", None) or self.compiling  # a third of its time
        self.grad_enabled = torch.is_grad_enabled
        functorch = getattr(torch._C, "_functorch", None)
        self.in_transform = getattr(functorch, "peek_interpreter_stack", None) or (lambda: None)
        self.tensor_types = frozenset((torch.Tensor, torch.nn.Parameter))
        self.dtypes = {getattr(torch, name): name for name in DTYPES}
        self._watch_modules(torch.nn.Module)
        register = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook", None)
        if register is not None:
            self.undo.append(register(self._optimizer_stepped).remove)
        for module in self._own_modules():
            if not getattr(module.__spec__, "_initializing", False):
                self.wrap_functions(module)
        self.guarded(self.write, False)
        register_end(self.finish)  # before what torch itself does at the end
        watch_main(self)

    def _watch_modules(self, base):
        original, recorder, compiling = base.__init__, self, self.compiling

        @functools.wraps(original)
        def __init__(self, *args, **kwargs):
            original(self, *args, **kwargs)
            if not compiling() and recorder.is_on:
                recorder.guarded(recorder.notice, self, sys._getframe(1))

        base.__init__ = __init__

        def restore():
            if base.__init__ is __init__:
                base.__init__ = original

        self.undo.append(restore)

    def notice(self, module, frame):
        """Learn a module of the workspace: wrap its class's call, and keep its constructor's arguments."""
        kind = type(module)
        if kind not in self.classes:
            self.classes[kind] = self._wrap_class(kind)
        self.scan_main()
        if self.classes[kind] is None:
            return
        outermost = None
        while frame is not None and frame.f_code.co_name == "__init__" and frame.f_code.co_argcount:
            if frame.f_locals.get(frame.f_code.co_varnames[0]) is not module:
                break
            outermost, frame = frame, frame.f_back
        self.streaks[kind].pop(id(module), None)
        self.inits[id(module)] = ("", []) if outermost is None else init_of(module, outermost)

    def _wrap_class(self, kind):
        base = self.torch.nn.Module
        file = self.symbol_file(getattr(sys.modules.get(kind.__module__), "__file__", None))
        is_named = all(map(str.isidentifier, kind.__qualname__.split(".")))  # of a function's own: "make.<locals>.Net"
        if not file or not is_named or kind.__call__ is not base.__call__:
            return None
        target = self.target(file, kind.__qualname__, kind.forward, True)

        __call__ = wrapped_module(kind, target, self)
        kind.__call__ = __call__
        self.rests.wrappers.append((target, *of_class(kind, __call__)))
        return target

    def wrap_functions(self, module):
        """Wrap the module's own functions, wherever modules of the workspace hold them by name."""
        if not self.torch or not self.is_on:
            return
        file = self.symbol_file(getattr(module, "__file__", None))
        self._end_rest()
        for name, value in list(vars(module).items()) if file else ():
            if is_own_function(value, module) and value.__name__ == name:
                self.guarded(self._wrap_function, file, name, value)

    def _wrap_function(self, file, name, function):
        target = self.target(file, name, function, False)
        wrapper = wrapped(function, target, self)
        for holder in self._own_modules():
            for key in [key for key, value in list(vars(holder).items()) if value is function]:
                vars(holder)[key] = wrapper
                self.wrapped.append((vars(holder), key, wrapper, function))

    def target(self, file, symbol, function, is_module):
        key = f"{file}::{symbol}"
        if key not in self.targets:
            self.targets[key] = Target(key, function, is_module)
        return self.targets[key]

    def _own_modules(self):
        """List the loaded modules of the workspace."""
        return [m for m in list(sys.modules.values()) if self.symbol_file(getattr(m, "__file__", None))]

    def scan_main(self):
        """Wrap the functions that the main script has defined since it was last looked at."""
        main = sys.modules.get("__main__")
        if main is not None and len(vars(main)) != self.n_main:
            self.wrap_functions(main)
            self.n_main = len(vars(main))

    def guarded(self, function, *args):
        """Call a function of the recorder; its error ends the recording, never the program."""
        try:
            return function(*args)
        except Exception as error:  # whatever goes wrong here is not the program's concern
            self.error = f"{type(error).__name__}: {error}"
            self.is_on = False
            return None

    def _open_gate(self):
        """Let calls like the last ones pass, up to the next timed step. Without an optimizer each one is a step, unless
        it is inside of another."""
        self._close_gate()
        if self.sample is not None or not self.is_on or self.rests.is_on:
            return
        if self.depth if self.has_nested else self.has_optimizer:
            self.gate[0] = UNLIMITED
        elif not (self.depth or self.has_nested or self.steps):
            self.gate[0] = self.n_granted = untimed_after(self.n_steps)

    def _close_gate(self):
        self.granted.settle(self.gate)
        if self.n_granted:
            self.n_steps += self.n_granted - self.gate[0]
        self.gate[0] = self.n_granted = 0

    def call(self, target, owner, run, args, kwargs):
        """Run one call of a target."""
        if not self.is_on or target.n_misses > MAX_MISSES or threading.get_ident() != self.thread:
            return run(*args, **kwargs)
        if self.rests.is_on:
            if self.depth:
                return run(*args, **kwargs)
            if self.guarded(self._passes, target, owner, args, kwargs):
                self.depth = 1
                try:
                    return run(*args, **kwargs)
                finally:
                    self.depth = 0
            self._end_rest()
        return self._observe(target, owner, run, args, kwargs)

    def _passes(self, target, owner, args, kwargs):
        """Return True for an outermost call that nothing needs to be observed of; see `Rests`."""
        self.rests.settle(target.run)
        self._count_steps()
        n_left = MAX_UNCHECKED
        if not self.has_optimizer:
            n_left = min(n_left, self.budget.n_passed - self.n_steps - 1)
            if n_left < 0 or time.perf_counter() - self.flushed > FLUSH_S:
                return False
        mode = self.mode(owner)
        found = target.seen.get(signature(self.tensor_types, mode, args, kwargs))
        run = Run(owner, args, mode[0] if owner is None else (owner.training, mode[0]), n_left)
        return self.rests.passes(target, found, run)

    def _count_steps(self):
        """Count the outermost calls that passed in a rest; without an optimizer each one is a step."""
        n_passed, self.rests.n_steps = self.rests.n_steps, 0
        self.n_steps += 0 if self.has_optimizer else n_passed

    def _end_rest(self):
        self.rests.end()
        self._count_steps()

    def _observe(self, target, owner, run, args, kwargs):
        """Run one call, counted, described and, in a timed step, timed."""
        if not self.depth and not self.has_optimizer:
            self._close_gate()
        began = time.perf_counter()
        found = self.guarded(self._enter, target, owner, args, kwargs)
        if found is None:
            return run(*args, **kwargs)
        counted, tensors = found
        sample = self.sample
        self.depth += 1
        begun = None
        if self.depth == 1:
            self.granted.settle(self.gate)
            begun = self.guarded(self.rests.begin_call)
            self._open_gate()
        try:
            if sample is None or target.is_active:
                return run(*args, **kwargs)
            target.is_active = True
            span = self.guarded(sample.span, target)
            sample.own_s += time.perf_counter() - began
            try:
                output = run(*args, **kwargs)
            finally:
                began = time.perf_counter()
                target.is_active = False
                self.guarded(sample.close, span)
            self.guarded(self._follow, sample, target, tensors, output)
            sample.own_s += time.perf_counter() - began
            return output
        except Exception:
            counted.n_calls -= 1  # its inputs may be none that the target can be called with
            raise
        finally:
            self.depth -= 1
            if not self.depth:
                self.granted.settle(self.gate)
                if begun is not None and self.sample is None and self.is_on and not self.steps:
                    self.guarded(self.rests.end_call, target, counted, begun)
                self._open_gate()

    def mode(self, owner):
        """Return what a signature holds beside arguments: whether autograd records, a module's mode and `init`."""
        if owner is None:
            return (self.grad_enabled(),)
        init = self.inits.get(id(owner))
        return self.grad_enabled(), owner.training, None if init is None else init[0]

    def _enter(self, target, owner, args, kwargs):
        """Count a call; return what counts it, and its tensors. None for a call that is not recorded."""
        tensors = [value for value in flattened(args, kwargs) if self._is_tensor(value)]
        if not tensors:
            target.n_misses += not target.n_calls
            return None
        if self.torch.jit.is_tracing() or self.in_transform() is not None:
            return None
        key = signature(self.tensor_types, self.mode(owner), args, kwargs)
        found = target.seen.get(key)
        if found is None:
            if target.has_room():
                self.rests.note_new()
            found = self._describe(target, owner, args, kwargs) if target.has_room() else target.others
            if key is not None and target.has_room():
                target.seen[key] = found
        if found is not target.others and found.n_calls < N_RANGES:
            for name, value in all_parts(itertools.chain(zip(target.names, args), kwargs.items())):
                self._read_range(found, name, value)
        if tensors[0].is_cuda != self.on_cuda:
            self.on_cuda = not self.on_cuda
            self.device = self.torch.cuda.get_device_name() if self.on_cuda else "cpu"
        self.has_nested = self.has_nested or self.depth > 0
        target.is_outermost = target.is_outermost or not self.depth
        if self.depth == 0 and not self.has_optimizer:
            self._boundary(is_new=found.n_calls < 2 and target.n_calls < 2)
            if not self.is_on:
                return None
        found.n_calls += 1
        return found, tensors

    def _describe(self, target, owner, args, kwargs):
        """Return the configuration of a call, which other signatures may have, too."""
        entries = [self._entry(*pair) for pair in itertools.chain(zip(target.names, args), kwargs.items())]
        entries += [("*", "varargs", None)] if len(args) > len(target.names) else []
        init = self.inits.get(id(owner)) if owner is not None else None
        training = owner.training if owner is not None else None
        grad = self.grad_enabled()
        if grad:
            grad = any(getattr(value, "requires_grad", False) for value in flattened(args, kwargs)) or (
                owner is not None and any(parameter.requires_grad for parameter in owner.parameters())
            )
        key = (None if init is None else init[0], training, grad, tuple(entries))
        found = target.configurations.get(key)
        if found is None:
            found = target.configurations[key] = Configuration(target, init, training, grad, entries)
        return found

    def _is_tensor(self, value):
        """Return True for a tensor that a pragma can state."""
        is_dense = type(value) in self.tensor_types and value.layout is self.torch.strided and not value.is_nested
        return is_dense and value.dtype in self.dtypes

    def _entry(self, name, value):
        kind = type(value)
        if self._is_tensor(value):
            stride = None if value.is_contiguous() else tuple(value.stride())
            return (name, "tensor", (self.dtypes[value.dtype], tuple(value.shape)), stride)
        parts = parts_without_literal(name, value)
        return (name, kind, literal(value) if parts is None else (kind, tuple([self._entry(*pair) for pair in parts])))

    def _read_range(self, configuration, name, value):
        if not self._is_tensor(value) or value.is_floating_point() or value.dtype is self.torch.bool:
            return
        if not value.numel() or (value.is_cuda and self.torch.cuda.is_current_stream_capturing()):
            return
        configuration.ranges.setdefault(name, []).append(tuple(self.torch.aminmax(value.detach())))

    def _follow(self, sample, target, tensors, output):
        while isinstance(output, (tuple, list)) and output:
            output = output[0]
        if type(output) is self.torch.Tensor and output.grad_fn is not None and len(sample.spans) < MAX_SPANS:
            sample.follow_backward(target, tensors, output)

    def _optimizer_stepped(self, *_):
        if self.is_on and not self.compiling() and threading.get_ident() == self.thread:
            self.guarded(self._boundary_of_optimizer)

    def _boundary_of_optimizer(self):
        if not self.has_optimizer:
            self.has_optimizer = True
            self._close_sample()
            self.warm, self.totals, self.pending, self.n_steps = self._best(), Totals(), [], 0
            self.budget.n_counted = self.budget.n_passed = 0
        self._close_gate()
        self._boundary()
        self._open_gate()
        if self.steps and self.n_steps >= self.steps:
            self.finish()

    def _boundary(self, is_new=False):
        """End a step and begin the next: after an optimizer's step, or before an outermost call where there is none."""
        self._close_sample()
        if self.steps and self.n_steps >= self.steps:
            return self.finish()
        self.n_steps += 1
        self.scan_main()
        is_needed = not self.totals.n_steps and len(self.pending) < N_FIRST
        weight = self.budget.weight_of(self.n_steps, is_needed, is_new)
        if weight:
            self._end_rest()
            self.sample = Sample(self.torch, self.on_cuda, weight)
        if time.perf_counter() - self.flushed > FLUSH_S:
            self.flushed = time.perf_counter()
            self.write(is_last=False)
        return None

    def _close_sample(self):
        if self.sample is None and not self.pending:
            return
        began = time.perf_counter()
        if self.sample is not None:
            self.sample.finish(self.sample.mark())
            self.budget.own_s += self.sample.own_s
            self.pending.append(self.sample)
            self.sample = None
        pending, self.pending = self.pending[-MAX_PENDING:], []
        for sample in pending:
            (self._fold if sample.is_ready() else self.pending.append)(sample)
        self.budget.own_s += time.perf_counter() - began

    def _fold(self, sample):
        """Add a timed step; the first is kept apart, as a warm-up."""
        is_first = not self.warm.n_steps and not self.has_optimizer
        sample.add_to(self.warm if is_first else self.totals)

    def _best(self):
        return self.totals if self.totals.n_steps else self.warm

    def finish(self):
        """End the recording: take everything away and write the part."""
        was_on, self.is_on = self.is_on, False
        self._close_gate()
        self.guarded(self._end_rest)
        while self.undo:
            self.undo.pop()()
        for _, take, _ in self.rests.wrappers:
            take()
        self.rests.wrappers = []
        for namespace, name, wrapper, function in self.wrapped:
            if namespace.get(name) is wrapper:
                namespace[name] = function
        self.wrapped = []
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]
        if was_on or self.error:
            self.guarded(self._end_last_sample)
            self.guarded(self.write, True)

    def abandon(self):
        """Leave the recording to the parent: this process is a fork of it."""
        self.is_on, self.error = False, ""

    def _end_last_sample(self):
        """Count the last step, which nothing ended, where a target was called in no other."""
        last, self.sample = self.sample, None
        if last is not None:
            last.finish(last.last)
        if self.on_cuda:
            self.torch.cuda.synchronize()
        for sample in self.pending:
            self._fold(sample)
        if last is not None and not self.has_optimizer and last.has_more_than(self._best()):
            last.add_to(self._best())

    def write(self, is_last):
        """Write the part, whole or not at all. Before the end, values that lie on a GPU are not read."""
        totals = self._best()
        self.rests.account()
        self._count_steps()
        part = {
            "is_last": is_last,
            "ended": is_last and bool(self.steps) and self.n_steps >= self.steps,
            "has_torch": self.has_torch,
            "torch": getattr(self.torch, "__version__", ""),
            "compiled": has_compiled(),
            "python": sys.executable,
            "device": self.device,
            "error": self.error,
            "seconds": time.perf_counter() - self.started,
            "n_steps": self.n_steps,
            "step_s": totals.seconds / totals.n_steps if totals.n_steps else 0.0,
            "targets": {t.key: t.as_json(totals, is_last) for t in self.targets.values() if t.n_calls},
        }
        with open(self.part + ".new", "w", encoding="utf-8") as stream:
            json.dump(part, stream)
        os.replace(self.part + ".new", self.part)
