"""An operator whose kernels are compiled at first use and launched from Python: registration, launches, autograd.

The part below the imports is carried by the shared runtime of operator files, word for word.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .cuda_runtime import NO_HEADERS, POINTER, CudaError, KernelLaunch, KernelLibrary, current_stream, on_device
from .operator_module import ModuleUse
from .operator_plan import LaunchPlan, Plan
from .operator_support import (
    _CALLS,
    _gradients,
    count_kernels,
    fell_back,
    outside,
    transformed,
)
from .operator_use import Operator

# --- Registration, launches, autograd ---------------------------------------------------------------------

NAMESPACE = "kernel_lsp"
VECTOR_BYTES = 32  # of the widest load on sm_100, and of wmma's: torch's own allocations are aligned to 512
MAX_BOUND = 1024  # kinds of inputs whose launches a thread keeps


class CannotLaunch(Exception):
    """A launch cannot be made on this GPU, or not with these numbers."""


class _PerThread(threading.local):
    """The launches that a thread has bound, by the kind of their inputs, or why there are none. A launch holds the
    addresses of its tensors, so threads cannot share it."""

    def __init__(self) -> None:
        self.by_inputs: dict[Any, Run | str] = {}


class Operation:
    """One operation of a launch plan, with the launches that each thread has bound."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.name, self.contract, self.steps = plan, plan.name, plan.contract, plan.run
        self.bound = _PerThread()


class Run:
    """The launches of an operation for one kind of inputs, bound when they are first made."""

    def __init__(self, library: Callable[[], KernelLibrary], device_index: int) -> None:
        self._library, self.device_index = library, device_index
        self._launches: list[KernelLaunch] = []
        self._next = self._stream = 0

    @property
    def n_launches(self) -> int:
        """Count the launches that are bound."""
        return len(self._launches)

    def start(self) -> None:
        """Begin a call, on PyTorch's current stream."""
        self._next, self._stream = 0, current_stream(self.device_index)

    def launch(
        self,
        kernel: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        arguments: Sequence[Any],
        numbers: str = "",
        *,
        shared: int = 0,
        **attributes: int,
    ) -> None:
        """Launch a kernel as ``<<<grid, block, shared>>>``. Arguments are tensors and numbers; `numbers` has the
        numbers' C++ types in order, ``"int, float"``. Attributes are ``cooperative``, ``cluster``, ``max_shared``."""
        if self._next == len(self._launches):
            types = iter(numbers.split(", "))
            typed = [value if isinstance(value, (Tensor, tuple)) else (next(types), value) for value in arguments]
            self._launches.append(self._bind(kernel, grid, block, typed, shared, attributes))
        launch = self._launches[self._next]
        self._next += 1
        launch(self._stream, *[value.data_ptr() for value in arguments if isinstance(value, Tensor)])

    def _bind(
        self,
        kernel: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        arguments: Sequence[Any],
        shared: int,
        attributes: Mapping[str, int],
    ) -> KernelLaunch:
        given = [POINTER if isinstance(value, Tensor) else value for value in arguments]
        try:
            function = self._library().function(kernel, self.device_index)
            return KernelLaunch(function, _three(grid), _three(block), shared, given, attributes)
        except (CudaError, OverflowError, OSError) as error:
            raise CannotLaunch(str(error)) from error


class CudaOperator(Operator):
    """A PyTorch operator whose kernels are in the `.cu` file of its `plan`. The results of a backward are gradients of
    the arguments in their names; other gradients, and second derivatives, are the reference's under autograd. What it
    takes before the forward's arguments are the gradients of the results, and then what it is given of all that the
    forward returns. `headers` are those that the kernels include and NVRTC does not have. Without a plan, PyTorch
    computes, and a warning says why."""

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        reference: Callable[..., Any],
        is_differentiable: bool = True,
        captured: Mapping[str, Any] | None = None,
        constants: Mapping[str, Any] | None = None,
        structures: Mapping[str, str] | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        module: ModuleUse | None = None,
        returns: Callable[..., Any] | None = None,
        no_grad: bool = False,
        code: str = "",
    ) -> None:
        name, module_name, backward = plan.function.__name__, plan.function.__module__, plan.backward
        self.plan = plan
        self.same_gradients = backward.same_gradients() if backward is not None else {}
        self._integers = [place for place, type_ in enumerate(plan.arguments.values()) if type_ == "int"]
        self._not_kept: set[Any] = set()  # kinds of inputs that a forward was asked for and could not launch with
        self._headers = headers
        self._library: KernelLibrary | None = None
        self._registry = torch.library.Library(NAMESPACE, "FRAGMENT")
        self.registered = _free_name(name)
        self.backward = Operation(backward) if backward is not None else None
        call = reference
        if plan.forward is not None:
            self.forward = Operation(plan.forward)
            call = self._register(self.forward, self.registered, self.forward_by_pytorch, self.fake_forward)
        super().__init__(
            *(name, module_name, call, plan.function if plan.forward is None else plan.forward.contract, reference),
            backward_contract=backward.contract if backward is not None else None,
            gradients=[backward.argument_of(each) for each in backward.results] if backward is not None else (),
            given=backward.given() if backward is not None else (),
            n_kept=len(plan.forward.kept) if plan.forward is not None else 0,
            captured=captured,
            constants=constants,
            structures=structures,
            module=module,
            returns=returns,
            no_grad=no_grad,
            code=code,
        )
        if self.backward is not None:
            of_backward = f"{self.registered}_backward"
            by_pytorch, fake = self.backward_by_pytorch, self.fake_backward
            self._backward_call = self._register(self.backward, of_backward, by_pytorch, fake)
        if is_differentiable and plan.forward is not None:
            torch.library.register_autograd(
                f"{NAMESPACE}::{self.registered}", self._backpropagate, setup_context=self._save, lib=self._registry
            )

    def calls(self) -> dict[str, dict[str, int]]:
        """Count the calls so far: ``kernels`` by operation, ``fallback`` by reason. Compiled code counts a fallback
        once per compilation, and a replay of a CUDA graph counts nothing."""
        return {"kernels": dict(_CALLS[self.key].kernels), **super().calls()}

    def library(self) -> KernelLibrary:
        """Return the kernels, read when a GPU first needs them."""
        if self._library is None:
            path, operations = self.plan.path, (self.plan.forward, self.plan.backward)
            names = [kernel for operation in operations if operation is not None for kernel in operation.kernels]
            self._library = KernelLibrary(path.read_text(encoding="utf-8"), str(path), names, self._headers)
        return self._library

    def outside(self, arguments: Sequence[Any]) -> str:
        """Explain why the kernels cannot take the arguments; empty when they can. Answers of earlier calls are kept."""
        if reason := self.plan.problem or transformed():
            return reason
        known = None
        is_cast = any(type(arguments[place]) is float for place in self._integers)  # 2.0 has the hash of 2
        if not torch.compiler.is_compiling() and not is_cast:
            with contextlib.suppress(TypeError):  # an argument that cannot be hashed is outside the contract
                known = self.forward.bound.by_inputs.get(_kind_of(arguments))
        if known is None:
            return super().outside(arguments)
        return known if isinstance(known, str) else ""

    def on_gpu(self, operation: Operation, *arguments: Any) -> Any:
        """Compute on a GPU: by the kernels, or by PyTorch where no launch can be made."""
        kind = _kind_of(arguments)
        run = operation.bound.by_inputs.get(kind)
        if run is None:
            run = self._prepare(operation, kind, arguments)
        if self._not_kept and operation is self.backward and self._kind_of_forward(arguments) in self._not_kept:
            run = "the forward was computed by PyTorch"
        if not isinstance(run, str):
            try:
                return self._launch(operation, run, arguments)
            except CannotLaunch as error:
                run = operation.bound.by_inputs[kind] = str(error)
                if operation is self.forward and self.given:
                    self._not_kept.add(kind)
        fell_back(self.key, run)
        by_pytorch = self.forward_by_pytorch if operation is self.forward else self.backward_by_pytorch
        return by_pytorch(*arguments)

    # registration

    def _register(self, operation: Operation, name: str, by_pytorch: Any, fake: Any) -> Any:
        def cuda(*arguments: Any) -> Any:
            return self.on_gpu(operation, *arguments)

        def without_gpu(*arguments: Any) -> Any:
            fell_back(self.key, outside(operation.contract(*arguments)) or "this device has no kernels")
            return by_pytorch(*arguments)

        self._registry.define(name + operation.plan.schema(), tags=(torch.Tag.pt2_compliant_tag,))
        self._registry.impl(name, cuda, "CUDA")
        self._registry.impl(name, without_gpu, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=self._registry)
        return getattr(getattr(torch.ops, NAMESPACE), name).default

    # launches

    def _prepare(self, operation: Operation, kind: Any, arguments: Sequence[Any]) -> Run | str:
        """Return the launches for these inputs, or why there are none; kept for the next inputs of the same kind."""
        reason = outside(operation.contract(*arguments))
        if operation is self.backward and self.given:
            reason = reason or outside(self.forward.contract(*arguments[-len(self.argument_names) :]))
        tensor = next(value for value in arguments if isinstance(value, Tensor))
        found = reason or Run(self.library, tensor.device.index)
        if len(operation.bound.by_inputs) >= MAX_BOUND:
            operation.bound.by_inputs.clear()
        operation.bound.by_inputs[kind] = found
        return found

    def _kind_of_forward(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Return the kind of the forward's arguments among those of the backward."""
        return _kind_of(arguments[-len(self.argument_names) :])

    def _launch(self, operation: Operation, run: Run, arguments: Sequence[Any]) -> Any:
        with on_device(run.device_index):
            run.start()
            ready = [_ready(value) if isinstance(value, Tensor) else value for value in arguments]
            results = operation.steps(run, *ready)
        count_kernels(self.key, operation.name)
        return results

    # autograd

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save what the gradients need of a forward: every argument, and what the backward is given of its results and
        of what it keeps; tensors leave None among the numbers."""
        outputs = (output,) if isinstance(output, Tensor) else output
        tensors = [value for value in inputs if isinstance(value, Tensor)]
        ctx.save_for_backward(*tensors, *[outputs[place] for place in self.given])
        ctx.numbers = tuple([None if isinstance(value, Tensor) else value for value in inputs])
        results = outputs[: len(outputs) - self.n_kept]
        ctx.floating = tuple([value.is_floating_point() for value in results])
        if self.n_kept:
            ctx.mark_non_differentiable(*outputs[len(results) :])
            ctx.set_materialize_grads(False)  # else every backward fills zeros for what is kept
            ctx.results = [(value.shape, value.dtype, value.device) for value in results]

    def _backpropagate(self, ctx: Any, *result_gradients: Any) -> tuple[Any, ...]:
        """Return the gradient for each argument, None for those that need none: by the backward's kernels, or by the
        reference where a second derivative is asked for, or a gradient that no kernel makes."""
        tensors = iter(ctx.saved_tensors)
        arguments = tuple([next(tensors) if value is None else value for value in ctx.numbers])
        if self.n_kept:
            result_gradients = tuple(map(_gradient_or_zeros, result_gradients, ctx.results))
        gradients = [g for g, is_floating in zip(result_gradients, ctx.floating) if is_floating]
        needs = zip(self.argument_names, ctx.needs_input_grad)
        made = {*self.gradients, *self.same_gradients}
        is_missing = any(is_needed and name not in made for name, is_needed in needs)
        if self.backward is None or is_missing or torch.is_grad_enabled():
            return _gradients(self.reference, arguments, ctx.needs_input_grad, gradients)
        found = self._backward_call(*gradients, *tensors, *arguments)
        found = (found,) if isinstance(found, Tensor) else found
        by_name = dict(zip(self.gradients, found))
        for name, held in self.same_gradients.items():
            by_name[name] = gradients[held] if isinstance(held, int) else by_name[held]
        return tuple([by_name.get(name) for name in self.argument_names])


def _gradient_or_zeros(gradient: Tensor | None, result: tuple[Any, ...]) -> Tensor:
    shape, dtype, device = result
    return torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient


def _kind_of(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return all that decides the launches for these arguments."""
    return tuple([(v.device, v.dtype, v.shape) if isinstance(v, Tensor) else v for v in arguments])


def _free_name(name: str) -> str:
    """Return a name that no operator of this process has: two files may hold operators of one name, and one file may
    be imported under two names."""
    number, taken = 1, getattr(torch.ops, NAMESPACE)
    found = name
    while hasattr(taken, found) or hasattr(taken, f"{found}_backward"):
        number += 1
        found = f"{name}_{number}"
    return found


def _three(size: int | Sequence[int]) -> tuple[int, ...]:
    given = (size,) if isinstance(size, int) else tuple(size)
    return given + (1,) * (3 - len(given))


def _ready(tensor: Tensor) -> Tensor:
    """Return the tensor as kernels read it: contiguous, and aligned for their widest load."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % VECTOR_BYTES else tensor
