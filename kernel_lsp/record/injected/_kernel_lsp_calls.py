"""Keep what the recorder learns of a program's calls: targets, configurations, and the times of a step.

Runs inside the user's interpreter: Python 3.9 or newer, standard library only.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import sys
import time
import types

from _kernel_lsp_literals import MAX_PARTS, SCALARS, SEQUENCES, literal, of_parts

N_FIRST_SAMPLES = 4
SAMPLE_PERIODS = ((16, 4), (128, 16), (1024, 64), (8192, 256), (1 << 62, 1024))
"""The first steps are timed; then one in 4, from 16 on one in 16, later one in 64 and in 256, which stands for all."""
MAX_SHARE = 0.03
"""Maximum share of the program's time that timed steps may cost; a step is not timed while they have cost more."""
MAX_SPANS = 4_000
"""Maximum timed calls of one step."""
N_ALIKE = 32
"""Calls in a row of one configuration after which not each one's signature is taken."""
N_UNCHECKED, MAX_UNCHECKED = 6, 30
"""Calls after each signature then that are compared by the first argument's shape, autograd and mode alone; after each
further `N_ALIKE` signatures as many more, up to the maximum. One signature in 7, 13, 19, 25 or 31 calls comes to every
call of a cycle, such as a network's layers; one in 8 or 32 came to the same ones of 64 again and again."""
N_LONG, LONG_UNCHECKED = 1024, 126
"""Signatures in a row, of some 30,000 calls, after which one in 127 is enough: 0.4 % of the calls before them."""
N_RANGES = 4
"""Calls of one configuration whose integer tensors are read for their range."""
MAX_CONFIGURATIONS = 16
"""Maximum configurations kept per target; calls of further ones are counted together."""
MAX_SIGNATURES = 128
"""Maximum signatures kept per target: several may be of one configuration, with arguments by place and by name."""
NAMED_KINDS = frozenset((*SCALARS, str))
"""Kinds of arguments whose value is part of a signature; of others it is the kind."""
TENSOR = "{}[{}]"
DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "bool",
}
"""torch's names to those of pragmas, as in `kernel_lsp.core.dtype`."""


class Target:
    """A function or module class of the workspace, its calls and their configurations."""

    def __init__(self, key, function, is_module):
        self.key, self.is_module = key, is_module
        parameters = list(inspect.signature(function).parameters.values())[1 if is_module else 0 :]
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.names = tuple(p.name for p in parameters if p.kind in positional)
        self.defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self.n_misses = 0
        self.others, self.configurations = Others(), {}
        self.seen = {}
        """The configuration of each signature; calls with one of these are counted without a description."""
        self.is_active, self.is_outermost, self.rests, self.run = False, False, False, Run()
        self.last, self.n_alike = None, 0
        """The configuration of the last outermost call whose signature was taken, and how many in a row had it."""

    def note(self, found):
        self.n_alike = self.n_alike + 1 if found is self.last else 0
        self.last = found

    def counted(self):
        return (*self.configurations.values(), self.others)

    @property
    def n_calls(self):
        return self.others.n_calls + sum(configuration.n_calls for configuration in self.configurations.values())

    def has_room(self):
        return len(self.configurations) < MAX_CONFIGURATIONS and len(self.seen) < MAX_SIGNATURES

    def as_json(self, totals, is_last):
        forward_s, backward_s = totals.targets.get(self.key, (0.0, 0.0))
        per_step = 1.0 / max(totals.n_steps, 1)
        found = sorted((c for c in self.configurations.values() if c.n_calls > 0), key=lambda c: -c.n_calls)
        return {
            "is_module": self.is_module,
            "n_calls": self.n_calls,
            "n_calls_of_others": self.others.n_calls,
            "forward_s": forward_s * per_step,
            "backward_s": backward_s * per_step,
            "configurations": [configuration.as_json(is_last) for configuration in found],
        }


class Others:
    """Calls beyond the configurations that are kept."""

    def __init__(self):
        self.n_calls = 0


class Configuration:
    """Calls with the same shapes, dtypes, layouts, scalars, mode and constructor arguments."""

    def __init__(self, target, init, training, grad, entries):
        self.init, self.grad, self.n_calls = init, grad, 0
        self.mode = "" if training is None else ("training" if training else "eval")
        self.items, self.opaque, self.layouts, self.ranges = {}, [], {}, {}
        for entry in entries:
            self._add(target, *entry)

    def _add(self, target, name, kind, value, stride=None):
        is_default = name in target.defaults and type(target.defaults[name]) is kind
        is_default = is_default and literal(target.defaults[name]) == value
        if kind == "tensor":
            dtype, shape = value
            self.items[name] = TENSOR.format(DTYPES[dtype], ", ".join(map(str, shape)))
            if stride is not None:
                self.layouts[name] = "strides ({})".format(", ".join(map(str, stride)))
        elif is_default and kind not in SCALARS:
            pass
        elif value is not None and self._spelled(name, value, False) is not None:
            self.items[name] = value
        else:
            self.opaque.append(name)

    def as_json(self, is_last):
        items = [f"{name}={self._spelled(name, value, is_last)}" for name, value in self.items.items()]
        return {
            "inputs": ", ".join(items),
            "init": self.init[0] if self.init else None,
            "opaque": self.opaque + (self.init[1] if self.init else []),
            "layouts": self.layouts,
            "mode": self.mode,
            "grad": self.grad,
            "n_calls": self.n_calls,
        }

    def _spelled(self, name, value, is_last):
        """Return an argument in the spelling of a pragma; None for a sequence with parts that have none."""
        if type(value) is str:
            return value + self._range(name, is_last)
        kind, entries = value
        return of_parts(kind, [self._part(entry, is_last) for entry in entries])

    def _part(self, entry, is_last):
        name, kind, value = entry[:3]
        text = TENSOR.format(DTYPES[value[0]], ", ".join(map(str, value[1]))) if kind == "tensor" else value
        return None if text is None else self._spelled(name, text, is_last)

    def _range(self, name, is_last):
        """Return ``in [low, high)`` of an integer tensor's seen values; a GPU's are read at the end, which waits."""
        seen = [pair for pair in self.ranges.get(name, ()) if is_last or not pair[0].is_cuda]
        if not seen:
            return ""
        low, high = min(int(pair[0]) for pair in seen), max(int(pair[1]) for pair in seen)
        return f" in [{low}, {high + 1})"


class Totals:
    """Seconds of timed steps, and of each target in them, forward and backward."""

    def __init__(self):
        self.n_steps, self.seconds, self.targets = 0, 0.0, {}


class Sample:
    """One timed step, for `weight` steps: spans of calls between two marks, seconds on a CPU and events on a GPU."""

    def __init__(self, torch, on_cuda, weight):
        self.torch, self.on_cuda, self.weight = torch, on_cuda, weight
        self.spans, self.handles, self.end, self.own_s = [], [], None, 0.0
        self.stream, self.raw_stream = None, None
        self.begin = self.last = self.mark()

    def mark(self):
        if not self.on_cuda:
            return time.perf_counter()
        if self.torch.cuda.is_current_stream_capturing():
            return None
        event = self.torch.cuda.Event(enable_timing=True)
        event.record(self._current_stream())
        return event

    def _current_stream(self):
        """Return the current stream; torch makes an object of it at each call, which takes longer than the event."""
        raw_stream = (device := self.torch._C._cuda_getDevice(), self.torch._C._cuda_getCurrentRawStream(device))
        if raw_stream != self.raw_stream:
            self.stream, self.raw_stream = self.torch.cuda.current_stream(), raw_stream
        return self.stream

    def span(self, target, is_backward=False):
        """Begin a span, ``[target, is_backward, begin, end]``."""
        span = [target, is_backward, self.mark(), None]
        if len(self.spans) < MAX_SPANS:
            self.spans.append(span)
        return span

    def close(self, span):
        if span is None:
            return
        span[3] = self.last = self.mark()

    def follow_backward(self, target, inputs, output):
        """Time the backward of a call: from the gradient of its output to those of its inputs, by tensor hooks."""
        span, wanted = [target, True, None, None], [tensor for tensor in inputs if tensor.requires_grad]
        queue = self.torch.autograd.Variable._execution_engine.queue_callback

        def begins(_gradient):
            began = time.perf_counter()
            if span[2] is None:
                span[2] = self.mark()
                if not wanted:
                    queue(lambda: self.close(span))
            self.own_s += time.perf_counter() - began

        def ends(_gradient):
            began = time.perf_counter()
            self.close(span)
            self.own_s += time.perf_counter() - began

        self.handles.append(output.register_hook(begins))
        self.handles += [tensor.register_hook(ends) for tensor in wanted]
        self.spans.append(span)

    def finish(self, end):
        self.end = end
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def is_ready(self):
        return not self.on_cuda or self.end is None or self.end.query()

    def has_more_than(self, totals):
        """Return True where a target was called that the totals have no time of."""
        return any(span[0].key not in totals.targets for span in self.spans)

    def add_to(self, totals):
        duration = self._seconds(self.begin, self.end)
        if not duration:
            return
        totals.n_steps += self.weight
        totals.seconds += self.weight * duration
        for target, is_backward, begin, end in self.spans:
            totals.targets.setdefault(target.key, [0.0, 0.0])[is_backward] += self.weight * self._seconds(begin, end)

    def _seconds(self, begin, end):
        if begin is None or end is None:
            return 0.0
        return max(0.0, begin.elapsed_time(end) * 1e-3 if self.on_cuda else end - begin)


class Budget:
    """The steps to time: the scheduled ones, while timing has cost at most `MAX_SHARE` of the time since the first."""

    def __init__(self):
        self.own_s, self.since, self.n_counted, self.n_passed = 0.0, 0.0, 0, 0
        """`n_counted` are the steps that those timed stand for, `n_passed` those before the next scheduled one."""

    def weight_of(self, step, is_needed, is_new):
        """Return how many steps the timing of this one stands for: those since the last; 0 for one that is not timed.
        One that `is_needed` may cost what it does. A step that `is_new` is unlike others, and stands for itself."""
        if is_new:
            self.since = self.since or time.perf_counter()
            self.n_counted += 1
            return 1
        if step <= self.n_passed:
            return 0
        now = time.perf_counter()
        self.since, self.n_passed = self.since or now, step - 1 + untimed_after(step - 1)
        if step <= self.n_passed or not (is_needed or self.own_s <= MAX_SHARE * (now - self.since)):
            return 0
        weight, self.n_counted = step - self.n_counted, step
        return weight


def is_own_function(value, module):
    """Return True for a plain function that the module's own file defines, decorated or not, and that takes inputs."""
    if not isinstance(value, types.FunctionType) or value.__module__ != module.__name__ or is_wrapper(value):
        return False
    inner = inspect.unwrap(value)
    code = getattr(inner, "__code__", None)
    if code is None or inspect.iscoroutinefunction(inner) or inspect.isgeneratorfunction(inner):
        return False
    n_parameters = code.co_argcount + code.co_kwonlyargcount
    return n_parameters > 0 and os.path.realpath(code.co_filename) == os.path.realpath(module.__file__ or "")


def is_wrapper(function):
    return function.__code__.co_filename == __file__


def flattened(args, kwargs):
    """Return the arguments, with the parts of tuples and lists in their place."""
    for value in itertools.chain(args, kwargs.values()):
        yield from value if type(value) in SEQUENCES and len(value) <= MAX_PARTS else (value,)


def signature(tensor_types, mode, args, kwargs):
    """Return what a configuration depends on, as a key that takes about a microsecond; None for a sparse tensor."""
    parts = [*mode]
    try:
        for value in args if not kwargs else itertools.chain(args, kwargs, kwargs.values()):
            kind = type(value)
            if kind in tensor_types:
                parts += (value.shape, value.dtype, value.is_contiguous() or value.stride())
                if mode[0]:
                    parts.append(value.requires_grad)
            else:
                parts.append(kind)
                if kind in NAMED_KINDS:
                    parts.append(value)
                elif isinstance(value, SEQUENCES):
                    text = literal(value)
                    if text is None and len(value) <= MAX_PARTS:  # of tensors
                        text = signature(tensor_types, mode[:1], value, None)
                    parts.append(text)
    except RuntimeError:
        return None
    return tuple(parts)


class Streak:
    """Calls in a row of one configuration, of a function or of one module; `n_left` may pass without a signature.
    The first argument's class comes before its shape: to compare sizes of a fake tensor makes them constants of a
    capture."""

    __slots__ = ("found", "kind", "mode", "n_alike", "n_left", "shape")

    def __init__(self):
        self.n_left, self.n_alike = 0, 0
        self.kind, self.shape, self.mode, self.found = None, None, None, Others()

    def add(self, found, args, mode):
        """Note a call whose signature was taken."""
        shape = getattr(args[0], "shape", None) if args else None
        kind = type(args[0]) if args else None
        is_alike = shape is not None and found is self.found and kind is self.kind and mode == self.mode
        is_alike = is_alike and shape == self.shape
        self.n_alike = self.n_alike + 1 if is_alike else 0
        self.n_left = min(self.n_alike // N_ALIKE * N_UNCHECKED, MAX_UNCHECKED)
        if self.n_alike >= N_LONG:
            self.n_left = LONG_UNCHECKED
        self.kind, self.shape, self.mode, self.found = kind, shape, mode, found

    def grant(self, gate):
        """Count the calls that may pass without a signature in advance; return how many they are."""
        self.n_left = n = min(self.n_left, gate[0])
        gate[0] -= n
        self.found.n_calls += n
        return n

    def settle(self, gate):
        """Take back those that did not pass."""
        gate[0] += self.n_left
        self.found.n_calls -= self.n_left
        self.n_left = 0

    def goes_on(self, args, mode):
        """Count a call that passes without a signature; return False for one that needs it."""
        try:
            if not args or type(args[0]) is not self.kind or args[0].shape != self.shape or mode != self.mode:
                return False
        except Exception:  # user code: `shape` may be a property that raises anything, or compare to no truth value
            return False
        self.n_left -= 1
        self.found.n_calls += 1
        return True


class Granted(set):
    """The streaks whose calls are counted in advance."""

    def settle(self, gate):
        """Take back the calls that have not passed."""
        while self:  # other threads may add some
            self.pop().settle(gate)


class Run:
    """Outermost calls of one configuration in a rest: `n_left` of the granted ones may pass; see `Rests`."""

    __slots__ = ("found", "mode", "n_granted", "n_left", "owner", "shape")

    def __init__(self, owner=None, args=(), mode=None, n_left=0):
        self.owner, self.mode, self.n_left, self.n_granted = id(owner), mode, n_left, 0
        self.shape, self.found = getattr(args[0], "shape", None) if args else None, None

    def goes_on(self, owner, args, mode):
        """Pass a call that is like the last one whose signature was taken; return False for one that needs it."""
        try:
            if not args or args[0].shape != self.shape or mode != self.mode or id(owner) != self.owner:
                return False
        except Exception:  # properties and comparisons of the user's objects may raise anything
            return False
        self.n_left -= 1
        return True


def wrapped(function, target, recorder):
    """Return a function that calls through the recorder. Its globals are the original's, for `torch.jit.script`.

    While the gate is open, a call of a known signature is counted alone, and of those alike most are counted in
    advance: functions take 14 us on a CPU, and this wrapper 0.4.
    """
    call, gate, granted, seen = recorder.call, recorder.gate, recorder.granted, target.seen
    types_, signature_, grad, streak = recorder.tensor_types, signature, recorder.torch.is_grad_enabled, Streak()
    compiling, traced = recorder.compiling, recorder.traced

    def wrapper(*args, **kwargs):
        if traced():
            return function(*args, **kwargs)
        if streak.n_left > 0:
            try:
                is_alike = type(args[0]) is streak.kind and args[0].shape == streak.shape and grad() is streak.mode
            except Exception:  # no argument, or user code: `shape` may be a property that raises anything
                is_alike = False
            if is_alike:
                streak.n_left -= 1
                return function(*args, **kwargs)
            streak.settle(gate)
        if compiling() or target.rests:
            return function(*args, **kwargs)
        if gate[0] > 0:
            found = seen.get(signature_(types_, (grad(),), args, kwargs))
            if found is not None:
                gate[0] -= 1
                found.n_calls += 1
                streak.add(found, args, grad())
                if streak.n_left and streak.grant(gate):
                    granted.add(streak)
                return function(*args, **kwargs)
        elif target.run.n_left > 0 and target.run.goes_on(None, args, grad()):
            return function(*args, **kwargs)
        return call(target, None, function, args, kwargs)

    name, closure = function.__name__, wrapper.__closure__
    made = types.FunctionType(wrapper.__code__, function.__globals__, name, None, closure)
    return functools.update_wrapper(made, function)


def wrapped_module(kind, target, recorder):
    """Return the `__call__` of a module class that calls through the recorder, with a streak for each module."""
    base = recorder.torch.nn.Module
    call, gate, compiling, seen = recorder.call, recorder.gate, recorder.compiling, target.seen
    types_, signature_, mode = recorder.tensor_types, signature, recorder.mode
    streaks, grad = recorder.streaks.setdefault(kind, {}), recorder.torch.is_grad_enabled

    def __call__(self, *args, **kwargs):
        if compiling() or type(self) is not kind:
            return base.__call__(self, *args, **kwargs)
        if gate[0] > 0:
            streak = streaks.get(id(self))
            if streak is not None and streak.n_left > 0 and streak.goes_on(args, (self.training, grad())):
                gate[0] -= 1
                return base.__call__(self, *args, **kwargs)
            found = seen.get(signature_(types_, mode(self), args, kwargs))
            if found is not None:
                gate[0] -= 1
                found.n_calls += 1
                if streak is None:
                    streak = streaks[id(self)] = Streak()
                streak.add(found, args, (self.training, grad()))
                return base.__call__(self, *args, **kwargs)
        elif target.run.n_left > 0 and target.run.goes_on(self, args, (self.training, grad())):
            return base.__call__(self, *args, **kwargs)
        return call(target, self, functools.partial(base.__call__, self), args, kwargs)

    return __call__


def untimed_after(step):
    """Return how many steps that are not timed follow this one, at least."""
    period = 1 if step < N_FIRST_SAMPLES else next(period for limit, period in SAMPLE_PERIODS if step < limit)
    return period - 1 - step % period


def has_compiled():
    """Return True when torch.compile has compiled something in this process."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters and counters["stats"]["unique_graphs"])
