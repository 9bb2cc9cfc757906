"""Compile PTX text to machine code: parse, inline, emit LLVM IR, optimise, run LLVM's JIT."""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from weakref import WeakValueDictionary

import llvmlite.binding as llvm

from kernel_lsp.ptx.analysis.endless import EndlessLoop, endless_among
from kernel_lsp.ptx.checks import access_checks, access_faults
from kernel_lsp.ptx.compile import (
    bulk_copies,
    clusters,
    conversion,
    cooperation,
    floating,
    fragments,
    integer,
    matrices,
    memory,
    warpgroups,
)
from kernel_lsp.ptx.compile.emitter import EmittedKernel, emit_kernel
from kernel_lsp.ptx.compile.native import declared, functions_of, translate
from kernel_lsp.ptx.compile.prelude import prelude_for
from kernel_lsp.ptx.races import clusters as race_clusters
from kernel_lsp.ptx.races import order, proxies, rules, signals, watch
from kernel_lsp.ptx.run import (
    async_copies,
    barrier_objects,
    block_barriers,
    cluster_scheduler,
    scheduler,
    warp_operations,
)
from kernel_lsp.ptx.run.layout import FIRST_BUFFER_WINDOW, window_base
from kernel_lsp.ptx.text.inline import inline_calls
from kernel_lsp.ptx.text.parser import parse
from kernel_lsp.ptx.text.syntax import (
    Address,
    Function,
    Instruction,
    Module,
    Symbol,
    UnsupportedPtxError,
    Variable,
    Vector,
)

HANDLERS = {
    **integer.HANDLERS,
    **floating.HANDLERS,
    **conversion.HANDLERS,
    **memory.HANDLERS,
    **bulk_copies.HANDLERS,
    **cooperation.HANDLERS,
    **matrices.HANDLERS,
    **warpgroups.HANDLERS,
    **clusters.HANDLERS,
}
"""Instruction handlers by opcode."""
NATIVE_FUNCTIONS = (
    *functions_of(scheduler, warp_operations, block_barriers, access_checks, cluster_scheduler),
    fragments.perform_matrix,
    *functions_of(barrier_objects, async_copies),
)
"""Native functions on the hot path of every run."""
RARE_FUNCTIONS = functions_of(access_faults, watch, rules, order, signals, proxies, race_clusters)
"""Native functions that only small runs call, about the same amount of code.
They compile in a quarter of the time and run half as long again."""
LIBM_FUNCTIONS = (
    *("exp2f", "log2f", "sinf", "cosf", "tanhf", "fma", "fmaf"),
    *("floor", "floorf", "ceil", "ceilf", "trunc", "truncf", "roundeven", "roundevenf"),
)
"""C library functions that LLVM may call for operations that the CPU lacks."""
SLOW_CHECKS = ("check", "check_shared", "check_shared_written", "check_cluster_step")
CALLED_BY_KERNELS = (
    *(barrier_objects.barrier_init, barrier_objects.barrier_arrive, barrier_objects.barrier_test),
    *(async_copies.copy_started, async_copies.copies_waited, async_copies.bulk_started),
    *(async_copies.bulk_store_started, async_copies.bulk_stores_committed, async_copies.bulk_stores_waited),
    async_copies.check_stores_ended,
)
SCHEDULER_PASSES = ("sroa", "instruction_combine", "simplify_cfg")
KERNEL_PASSES = (
    "always_inliner",
    "sroa",
    "instruction_combine",
    "simplify_cfg",
    "new_gvn",
    "dead_store_elimination",
    "simplify_cfg",
)
"""LLVM passes for kernels.
LLVM's own levels 1 and 2 take three to eight times as long, for code that is not faster here."""
QUICK_PASSES = ("always_inliner", "sroa", "instruction_combine", "simplify_cfg")
"""LLVM passes for kernels of small runs. What the others remove costs such runs less than they take: 3.3 of 8.8 seconds
for the longest kernel of the tests, 0.1 of 0.5 for attention."""
LONG_PASSES = ("always_inliner",)
"""LLVM passes for a long kernel of small runs. ResNet101's first 40 kernels compile in 7 s of a core, in 23 s with the
quick passes, of which `sroa` takes 10 (2026-11-29)."""
CODE_GENERATION_LEVEL = 1
RARE_GENERATION_LEVEL = 0
LONG_TEXT = 1000000
"""Characters of LLVM IR above which kernels compile at the lowest level: compiling takes longer than their runs. They
are then compiled one by one: LLVM's time grows faster than the length of a module."""
_NAME = re.compile(r"[\w$]+")
MODULE_FLAGS = """
!0 = !{!"branch_weights", i32 2000, i32 1}
!1 = !{!"branch_weights", i32 1, i32 2000}
attributes #1 = { nounwind }
"""


class LoadBudget:
    """The CPU time that a load leaves of its limit, in seconds, for code that is compiled later: a run's limit is for
    the run."""

    def __init__(self) -> None:
        self._left_s = signal.getitimer(signal.ITIMER_PROF)[0]

    @contextmanager
    def spent(self) -> Iterator[None]:
        """Replace the limit of the running request. Zero is no limit."""
        run_s = signal.setitimer(signal.ITIMER_PROF, self._left_s)[0]
        try:
            yield
        finally:
            self._left_s = signal.setitimer(signal.ITIMER_PROF, run_s)[0]


class CompiledKernel:
    """Hold a kernel and its machine code, which `compile_it` makes when it is first asked for."""

    def __init__(self, emitted: EmittedKernel, compile_it: Callable[[], llvm.ExecutionEngine]) -> None:
        self.emitted, self._compile_it = emitted, compile_it

    @cached_property
    def engine(self) -> llvm.ExecutionEngine:
        """Return the owner of the machine code. Raises UnsupportedPtxError."""
        try:
            return self._compile_it()
        except RuntimeError as error:
            # llvmlite raises RuntimeError for invalid IR: the PTX uses something in an unforeseen way.
            raise UnsupportedPtxError(f"how to translate this PTX: LLVM refuses the result ({error})") from None

    def compile(self) -> None:
        """Make the machine code now. Raises UnsupportedPtxError."""
        assert self.address, "machine code has an address"

    @cached_property
    def address(self) -> int:
        """Return the address of the machine code."""
        return int(self.engine.get_function_address(self.emitted.name))


@dataclass(frozen=True)
class LoadedModule:
    """Hold the kernels of a PTX file. `windows` are the address windows of its global and constant variables."""

    module: Module
    kernels: dict[str, CompiledKernel]
    windows: dict[str, int]
    endless: tuple[EndlessLoop, ...]


_SCHEDULERS: list[llvm.ExecutionEngine] = []
"""Execution engines, kept alive because LLVM's symbols are process-wide and may refer to their machine code."""


class Compiler:
    """Own LLVM's target machine and the compiled scheduler. One per process is enough."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        _add_library_symbols()
        self._long = WeakValueDictionary[tuple[bytes, bool], llvm.ExecutionEngine]()
        self._rare = self._compile(translate(RARE_FUNCTIONS), SCHEDULER_PASSES, RARE_GENERATION_LEVEL)
        for function in RARE_FUNCTIONS:
            llvm.add_symbol(function.__name__, self._rare.get_function_address(function.__name__))
        self._scheduler = self._compile(translate(NATIVE_FUNCTIONS, RARE_FUNCTIONS), SCHEDULER_PASSES)
        _SCHEDULERS.extend((self._rare, self._scheduler))
        self.run_queue = self._scheduler.get_function_address("run_queue")
        self.run_cluster_queue = self._scheduler.get_function_address("run_cluster_queue")
        self.run_cluster = self._scheduler.get_function_address("run_cluster")
        self.number_threads = self._scheduler.get_function_address("number_threads")
        self.run_block = self._scheduler.get_function_address("run_block")
        for name in (*SLOW_CHECKS, *(function.__name__ for function in CALLED_BY_KERNELS)):
            llvm.add_symbol(name, self._scheduler.get_function_address(name))

    def load(self, text: str, *, is_quick: bool = False) -> LoadedModule:
        """Translate every kernel of a PTX text. `is_quick` takes a third of the time, for slower code. Raises
        UnsupportedPtxError."""
        module = parse(text)
        windows = {name: FIRST_BUFFER_WINDOW + index for index, name in enumerate(_used_variables(module, text))}
        symbols = {name: window_base(window) for name, window in windows.items()}
        try:
            emitted = [_emit(function, module, symbols) for function in module.functions.values() if function.is_entry]
        except UnsupportedPtxError as error:
            error.module = module
            raise
        kernels = {one.name: kernel for one, kernel in zip(emitted, self._kernels(emitted, is_quick), strict=True)}
        endless = tuple(loop for one in emitted for loop in endless_among(one.name, one.blocks))
        return LoadedModule(module, kernels, windows, endless)

    def _kernels(self, emitted: list[EmittedKernel], is_quick: bool) -> list[CompiledKernel]:
        """Return the kernels, compiled together, or where they are long one by one. Long ones of small runs are
        compiled when they are first launched: most such runs end by their instructions in a network's first kernels."""
        passes = QUICK_PASSES if is_quick else KERNEL_PASSES
        if sum(len(one.text) for one in emitted) <= LONG_TEXT and len(body := _module_text(emitted)) <= LONG_TEXT:
            level = RARE_GENERATION_LEVEL if is_quick else CODE_GENERATION_LEVEL
            together = cache(partial(self._compile, body, passes, level))
            kernels = [CompiledKernel(one, together) for one in emitted]
        elif is_quick:
            budget = LoadBudget()
            return [CompiledKernel(one, partial(self._long_later, one, budget)) for one in emitted]
        else:
            kernels = [CompiledKernel(one, partial(self._long_one, one, passes, is_quick)) for one in emitted]
        for kernel in kernels:
            kernel.compile()
        return kernels

    def _long_later(self, one: EmittedKernel, budget: LoadBudget) -> llvm.ExecutionEngine:
        with budget.spent():
            return self._long_one(one, QUICK_PASSES, True)

    def _long_one(self, one: EmittedKernel, passes: Sequence[str], is_quick: bool) -> llvm.ExecutionEngine:
        """Return the machine code of a long kernel. An equal one of another module has the same: most of a network's
        candidates differ in few kernels."""
        text = _module_text([one])
        key = (hashlib.sha256(text.encode()).digest(), is_quick)
        if (engine := self._long.get(key)) is None:
            is_long = is_quick and len(text) > LONG_TEXT
            engine = self._compile(text, LONG_PASSES if is_long else passes, RARE_GENERATION_LEVEL)
            self._long[key] = engine
        return engine

    def _compile(self, text: str, passes: Sequence[str], level: int = CODE_GENERATION_LEVEL) -> llvm.ExecutionEngine:
        target = llvm.Target.from_default_triple()
        machine = target.create_target_machine(
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=level,
            jit=True,
        )
        parsed = llvm.parse_assembly(text)
        manager = llvm.create_new_module_pass_manager()
        for name in passes:
            getattr(manager, f"add_{name}_pass")()
        manager.run(parsed, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
        engine = llvm.create_mcjit_compiler(parsed, machine)
        engine.finalize_object()
        return engine


def _emit(function: Function, module: Module, symbols: dict[str, int]) -> EmittedKernel:
    kernel = inline_calls(function, module)
    mentioned = _mentioned_symbols(kernel)
    shared: list[Variable] = [v for v in module.variables if v.space == "shared" and v.name in mentioned]
    return emit_kernel(kernel, symbols, shared, HANDLERS)


def _mentioned_symbols(kernel: Function) -> set[str]:
    names = set()
    for statement in kernel.statements:
        if isinstance(statement, Instruction):
            for operand in statement.operands:
                for part in operand.elements if isinstance(operand, Vector) else (operand,):
                    base = part.base if isinstance(part, Address) else part
                    if isinstance(base, Symbol):
                        names.add(base.name)
    return names


def _module_text(kernels: list[EmittedKernel]) -> str:
    warp_functions = {name: text for kernel in kernels for name, text in kernel.warp_functions.items()}
    body = "\n".join([*(kernel.text for kernel in kernels), *warp_functions.values()])
    declarations = (
        "declare i64 @check(i64, i64, i64, i64)\n"
        "declare i64 @check_shared(i64, i64, i64, i64)\n"
        "declare i64 @check_shared_written(i64, i64, i64, i64)\n"
        "declare i64 @watch_fence(i64, i64, i64, i64)\n"
        "declare i64 @watch_proxy_fence(i64, i64, i64, i64)\n"
        "declare i64 @watch_cluster_arrival(i64, i64, i64, i64)\n"
        "declare i64 @check_cluster_step(i64, i64, i64, i64)\n"
        "declare i64 @fault(i64, i64, i64, i64, i64)\n"
    )
    declarations += declared(CALLED_BY_KERNELS)
    return declarations + prelude_for(body) + body + MODULE_FLAGS


def _used_variables(module: Module, text: str) -> list[str]:
    """Return the variables that are referenced. Headers declare thousands that nothing uses."""
    n_mentions = Counter(_NAME.findall(text))
    variables = (variable.name for variable in module.variables if variable.space in ("global", "const"))
    return [name for name in variables if n_mentions[name] > 1]


def _add_library_symbols() -> None:
    # Avoid `find_library`: it starts processes, which the sandbox may forbid.
    library = ctypes.CDLL("libm.so.6" if sys.platform == "linux" else ctypes.util.find_library("m"))
    for name in LIBM_FUNCTIONS:
        function = getattr(library, name, None)
        if function is not None:
            llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
