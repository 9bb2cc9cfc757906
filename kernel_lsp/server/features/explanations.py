"""Explain every finding code in prose: rules, compiler, PTX executor, integrity gate, plan; and locate the rule's page
that a diagnostic links to.

A test checks that each producer's codes are complete.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import kernel_lsp
from kernel_lsp.config import default_cache_directory
from kernel_lsp.errors import page
from kernel_lsp.process.atomic_files import write_atomically

EXPLANATIONS = {
    # pragmas of Python targets (docs/targets.md)
    "pragma": """
        The comment above a target states the shapes of its inputs: `# kernel-lsp: x=f32[1024, 4096], eps=1e-6`, and a
        second one what its module is constructed with: `# kernel-lsp: init: dim=4096`. This one cannot be read, so the
        target has no shapes. Without it the first click infers them.""",
    # the PTX executor (docs/ptx-executor.md)
    "out-of-bounds-read": """
        A thread reads outside of its tensor, variable, shared or local memory. On a GPU this reads whatever lies there,
        or ends the whole CUDA context. The message names the tensor and how far outside; block and thread are those of
        the first such access. Compare the index with the size: most often the bound check of the last block is missing
        (`if (i < n)`), or a stride is that of another tensor.""",
    "out-of-bounds-write": """
        A thread writes outside its tensor, variable, shared or local memory, and overwrites other data. Compare the
        index with the size: most often the bounds check of the last block is missing (`if (i < n)`).""",
    "misaligned-access": """
        The address is not a multiple of the access's size. A GPU aborts the kernel at such an access. A `float4` needs
        addresses that are multiples of 16: state in the plan that the row's size divides (`where: D % 4 == 0`), or read
        the remainder element by element.""",
    "null-pointer": "The address is 0 or close to it: the pointer was never set, or an optional tensor was not given.",
    "write-to-input": """
        The kernel stores into a tensor that the plan declares as an input. The caller still owns that tensor, and
        autograd may need its old values. Write to a result or a scratch tensor.""",
    "uninitialized-read": """
        The kernel reads memory that was never written. In results and scratch tensors that is an error: add a `fill:`
        line to the plan, or write first. In shared memory it is a warning, since compilers may load values early and
        then not use them; most often a barrier or the last part of a tile is missing.""",
    "trap": "The kernel executed `__trap()`, which ends it with an error on a GPU.",
    "assert-failed": "An `assert` in the kernel does not hold for these inputs. On a GPU it ends the CUDA context.",
    "barrier-deadlock": """
        Deadlock: no thread of the block can continue. They wait at different barriers, or for inactive lanes of their
        warp. All threads of the block must reach a barrier, all lanes of its mask a warp function. Look for a
        `__syncthreads()` or a shuffle inside a branch or after a `return`.""",
    "divergent-barrier": """
        `__syncthreads()` in divergent control flow: part of a warp waits at one barrier while the rest waits at
        another, or at the same one in another loop iteration. All threads of a warp must reach a barrier together: a
        GPU may hang here, or release some of them too early. Move the barrier out of the branch, or let all threads run
        the same number of iterations and test the condition inside.""",
    "incomplete-warp": """
        A matrix instruction (`wmma`, `mma`, `ldmatrix`, `stmatrix`) is a warp-level operation: all 32 lanes must
        execute it, with the same address and leading dimension for `wmma`. Let whole warps return from a kernel, and
        make the block size a multiple of 32.""",
    "copy-in-flight": """
        Shared memory is read that an asynchronous copy (`cp.async`, `__pipeline_memcpy_async`, `cuda::memcpy_async`)
        may not have filled yet. The thread that issued the copy must commit it and wait for its group first, and
        `__syncthreads()` must follow before other threads read. For a bulk copy (`cp.async.bulk`) threads poll its
        `mbarrier` in a loop, since `try_wait` may return false at any time. Or a thread exits, or
        shared memory is written, while a bulk copy may still read it: its thread must commit its copies and wait for
        them by `cp.async.bulk.wait_group.read 0`, and a barrier must follow before other threads write.""",
    "barrier-object": """
        An `mbarrier` (`cuda::barrier`, `cuda::pipeline`) is used incorrectly: before one thread has initialised it and
        a `__syncthreads()` has made that visible, for more arrivals than it was initialised with, or for more bytes
        than it can count.""",
    "cluster-memory": """
        A thread accesses the shared memory of another block of its cluster while that block is not running. Before its
        start and after its exit that memory does not exist, and on a GPU the access aborts the kernel or reads garbage.
        Call `cluster.sync()` before the first such access, and once more before the kernel ends.""",
    "cluster-barrier": """
        Each thread must arrive at the barrier of the cluster, wait there, and only then arrive again. Arriving twice or
        waiting without having arrived is undefined.""",
    "invalid-launch": """
        A GPU rejects this launch: the block, the grid or the shared memory exceeds its limits, or those of
        `__launch_bounds__`; or clusters do not divide the grid, or have too many blocks. The sizes come from the plan's
        `launch:` line and the captured shapes.""",
    "race": """
        Data race: a thread reads what another one wrote, without synchronization: no barrier or warp operation between
        threads of a block, no fence or further launch between blocks. The value read is nondeterministic. Put
        `__syncthreads()` between the write and the read; between blocks use atomics and a fence, or two kernels.
        Bulk copies and `wgmma` access memory in another proxy than loads and stores: before a barrier that orders them,
        each thread that stored, or loaded what it uses later, must execute `fence.proxy.async`.""",
    "endless-loop": """
        Infinite loop: nothing in the loop changes its condition. The compiler may remove such a loop, and a GPU then
        gives a result that the text does not define. Look for a counter that is not incremented, or a flag that is read
        once and should be `volatile` or atomic.""",
    "idle-loop": """
        The loop's results are unused, and its termination is not provable: the compiler may keep or remove it. Use the
        result, bound the loop with a count, or remove it.""",
    "endless-wait": """
        Livelock: threads spin until memory changes, and no other thread will change it, since all others have ended or
        wait themselves. Check that the thread which sets the flag runs before the wait, and that it writes the address
        being polled, with a fence before it.""",
    "no-end": """
        One thread exceeded the instruction limit; the line is that of the loop which it was in. Either the loop does
        not end for these inputs, or one thread does the work of many: bound the loop, or divide its work over more
        threads.""",
    # the compiler
    "no-such-kernel": """
        The plan's `launch:` line names a kernel, or a template instance, that the text does not define. Check the
        spelling, the namespace and the template arguments.""",
    "compile-error": "NVRTC, the compiler for device code, rejects the text. Nothing runs until it compiles.",
    "compile-warning": "NVRTC, the compiler for device code, warns.",
    "line-directive": """
        `#line` claims other line numbers. It is removed for compilation, so that findings have the lines of the file as
        you see it. Remove it.""",
    "compile-information": "A remark of NVRTC, the compiler for device code.",
    "assemble-error": """
        ptxas, which compiles PTX to machine code, rejects the compiler's output. Most often a launch bound, a register
        limit or an instruction does not fit the target architecture.""",
    "assemble-warning": "ptxas, which compiles PTX to machine code, warns.",
    "too-much-shared-memory": """
        A kernel may declare at most 48 KiB of static shared memory. Larger amounts must be dynamic: `extern
        __shared__`, with the bytes as the third number of the plan's launch and `max_shared=` where needed.""",
    # the integrity gate
    "include-outside-toolkit": """
        A kernel may include headers of the CUDA toolkit only, so that its file is complete for review, and no other
        file of yours is compiled in.""",
    "asks-for-a-file": """
        `__has_include` may test for headers of the CUDA toolkit, by name. With any other file the program may differ
        between the machine that checks it and the machine that runs it.""",
    "depends-on-build-time": """
        `__TIME__`, `__DATE__` and `__TIMESTAMP__` make each build a different program, so that the checked program is
        not the one that will run. Remove them.""",
    "pastes-a-name": """
        `##` could form a forbidden name from words in this text, one that distinguishes builds or tests for files.
        Paste other words, or write the intended name.""",
    "host-assembly": """
        Assembly outside of every function is host code, which a kernel file does not have. NVRTC drops it, nvcc
        compiles it. Write PTX inside a `__device__` or `__global__` function.""",
    "no-own-kernel": """
        A file with its own host code was checked, and none of its kernels computed the result: PyTorch's own operators
        did, for example in an `except:` branch. Its time is PyTorch's.""",
    "threads-kept": """
        Threads started by this code were still running after its calls had returned. A result may still change then,
        and work may be done outside the timed region. Join every thread before the call returns.""",
    "calls-outside": "The kernel calls a function that its text does not define, which cannot be reviewed or checked.",
    "reads-a-clock": """
        A result must not depend on time: a kernel that reads a clock can detect that it is being measured.""",
    "tells-launches-apart": """
        The kernel reads a value that differs between launches. With it a kernel could compute once and return a cached
        result from then on.""",
    "depends-on-place": """
        The kernel reads the multiprocessor, or the slot on it, where a block runs. That differs from run to run, so a
        result must not depend on it. Take a block's work from `blockIdx` or from a counter.""",
    "depends-on-location": """
        `__FILE__`, `__LINE__` and their like make the program depend on where its text lies, so that the checked
        program may not be the one that will run. They are allowed as arguments of `printf` and `assert`.""",
    "depends-on-compiler": """
        A compiler's name or version selects code, so that the checked program may not be the one that another compiler
        builds. Conditions on `__CUDA_ARCH__` are allowed.""",
    "address-as-data": """
        The kernel computes with a tensor's address. Addresses differ from run to run, so a result must not depend on
        them. Tests of alignment and of null, comparisons and differences within one tensor are allowed.""",
    "keeps-state": """
        A variable in device memory is written, so that one launch could leave data for the next one: a cached result
        would look like a speedup. Use a scratch tensor, which the harness allocates and frees.""",
    "sleeps": "The kernel sleeps. That is allowed, but takes time.",
    "prints": "The kernel prints, which takes a buffer and time in each launch. Remove it after debugging.",
    "f64-arithmetic": """
        The machine code computes in double precision though the text does not ask for it: most often a literal without
        `f` or a function such as `exp` in place of `expf`. It is accurate, but many times slower than float.""",
    "reduced-precision-product": """
        A matrix product uses operands of reduced precision (tensor cores). The results were within the tolerances of
        their dtype, but are not in full precision.""",
    # the verdict
    "nan-lost": """
        PyTorch's `relu`, `clamp`, `max` and similar functions propagate NaN, so that a diverged run is visible. This
        kernel drops it, as `fmaxf(x, 0)` and `x > 0 ? x : 0` do. That is common, and not an error; `x < 0 ? 0 : x`
        propagates it.""",
    # the plan and its task
    "plan-task-mismatch": """
        The plan's `op:` does not match the PyTorch code that its `task:` names: another name, dtype, number or order of
        tensors. The message says which.""",
    "plan-not-bound": """
        The plan's expressions have no value for the captured shapes: a dim is unbound, or a size is negative or not an
        integer.""",
    # how a check ended
    "mismatch": """
        The kernel ran, and a result exceeds its tolerance: its difference to an fp64 reference for the same inputs is
        larger than the dtype allows. The message names the output, the input family and the worst element. Inputs come
        from several families (normal, large, tiny, ties, small sizes, other shapes), since a kernel that is correct on
        one may be incorrect on others.""",
    "timed-out": "The kernel did not end within its limit of instructions or of CPU time. Look for a loop that waits.",
    "unsupported": f"""
        The executor met an instruction or feature that it does not support (listed in {page("ptx-instructions.md")}),
        or had too little CPU time for a check, as the message says: the kernel is neither verified nor incorrect. On a
        machine with a GPU *Measure now* may decide.""",
    "crashed": "The process that ran the kernel died. On a GPU the kernel would have destroyed the CUDA context.",
    "rejected": "The kernel was not run, because it contains a forbidden construct. The findings give the lines.",
    "build-failed": "The text does not compile; the findings give the lines.",
}
_COMPILER_CODE = re.compile(r"nvrtc-(?P<number>\d+)(?P<is_discretionary>-D)?")


def explanation(code: str) -> str:
    """Explain a finding's code, with an example for a rule. Imports the rules, so call it in a thread."""
    if code in EXPLANATIONS:
        return f"{code}: {' '.join(EXPLANATIONS[code].split())}"
    return _of_compiler(code) or _of_plan(code) or _of_rule(code) or f"There is no rule {code}."


def is_explained(code: str) -> bool:
    """Return True when an explanation exists for a code that is not a rule's."""
    return code in EXPLANATIONS or bool(_of_compiler(code) or _of_plan(code))


def _of_compiler(code: str) -> str:
    match = _COMPILER_CODE.fullmatch(code)
    if match is None:
        return ""
    text = f"{code}: number {match['number']} of NVRTC's messages."
    if match["is_discretionary"] is None:
        return f"{text} Nothing runs until it compiles."
    return f"{text} It can be turned off around a line: `#pragma nv_diag_suppress {match['number']}`."


def _of_plan(code: str) -> str:
    from kernel_lsp.plan.codes import PlanCode

    known = {plan_code.value: plan_code for plan_code in PlanCode}
    return (
        f"{code}: {known[code].next_step}. {page('kernel-format.md')} has the plan's grammar." if code in known else ""
    )


def _of_rule(code: str) -> str:
    from kernel_lsp.rules.registry import RULES

    rule = next((rule for rule in RULES if rule.code == code), None)
    if rule is None:
        return ""
    return f"{rule.code} {rule.name}: {rule.summary}.\n\n{rule.why}\n\nFound:\n{rule.bad}\nNot found:\n{rule.good}"


BESIDE = Path(kernel_lsp.__file__).parent.parent
"""Parent folder of ``docs/rules`` in a checkout."""


@lru_cache(maxsize=8)
def page_file(page: str, beside: Path = BESIDE, cache: Path | None = None) -> Path | None:
    """Return the file of a page such as ``docs/rules/cuda.md``; None if it is missing and cannot be written."""
    path = beside / page
    if path.is_file():
        return path
    folder = (default_cache_directory() if cache is None else cache) / "rules" / kernel_lsp.__version__
    written = folder / path.name
    try:
        _write(written)
    except OSError:
        return None
    return written


def rule_place(code: str) -> tuple[Path, int] | None:
    """Return the page of a rule and the 0-based line of its heading; None for any other code. Imports the rules."""
    from kernel_lsp.rules.registry import RULES

    rule = next((rule for rule in RULES if rule.code == code), None)
    path = page_file(rule.documentation.partition("#")[0]) if rule is not None else None
    if path is None:
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    return path, lines.index(f"## {code}") if f"## {code}" in lines else 0


def _write(path: Path) -> None:
    """Write the page of rules that has this name."""
    from kernel_lsp.rules.registry import render

    write_atomically(path, render("cuda" if path.stem == "cuda" else "pytorch"))
