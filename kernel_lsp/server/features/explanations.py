"""Explain every finding code in prose: rules, compiler, PTX executor, integrity gate, plan.

A test checks that each producer's codes are complete.
"""

from __future__ import annotations

import re

EXPLANATIONS = {
    # the PTX executor (docs/ptx-executor.md)
    "out-of-bounds-read": """
        A thread reads outside of its tensor, variable, shared or local memory. On a GPU this reads whatever lies there,
        or ends the whole CUDA context. The message names the tensor and how far outside; block and thread are those of
        the first such access. Compare the index with the size: most often the bound check of the last block is missing
        (`if (i < n)`), or a stride is that of another tensor.""",
    "out-of-bounds-write": """
        A thread writes outside of its tensor, variable, shared or local memory, over what belongs to others. Compare
        the index with the size: most often the bound check of the last block is missing (`if (i < n)`).""",
    "misaligned-access": """
        The address is no multiple of the access's size. A GPU ends the kernel at such an access. A `float4` needs
        addresses that are multiples of 16: say in the plan that the row's size divides (`where: D % 4 == 0`), or read
        the odd rest one by one.""",
    "null-pointer": """
        The address is 0 or close to it: the pointer was never set, or an optional tensor was not given.""",
    "write-to-input": """
        The kernel stores into a tensor that the plan calls an input. PyTorch's caller still has that tensor, and
        autograd may need its old values. Write into a result or a scratch tensor.""",
    "uninitialized-read": """
        Something is read that nothing has written. In results and scratch tensors that is an error: add a `fill:` line
        to the plan, or write first. In shared memory it is a warning, since compilers may load early what they then do
        not use; most often a barrier or the last part of a tile is missing.""",
    "trap": "The kernel executed `__trap()`, which ends it with an error on a GPU.",
    "assert-failed": "An `assert` in the kernel does not hold for these inputs. On a GPU it ends the CUDA context.",
    "barrier-deadlock": """
        No thread of the block can go on: they wait at different barriers, or for lanes of their warp that never come.
        A barrier must be reached by all threads of the block, a warp function by all lanes of its mask. Look for a
        `__syncthreads()` or a shuffle inside of a branch or behind a `return`.""",
    "divergent-barrier": """
        A part of a warp waits at one `__syncthreads()` while the rest of it waits at another, or at the same one in
        another turn of a loop. All threads of a warp must come to a barrier together: a GPU may hang here, or let some
        of them through too early. Move the barrier out of the branch, or let all threads take as many turns of the loop
        and look inside of it whether there is something to do.""",
    "incomplete-warp": """
        A matrix instruction (`wmma`, `mma`, `ldmatrix`, `stmatrix`) is one of the whole warp: all 32 lanes must execute
        it, with the same address and leading dimension for `wmma`. Return from a kernel by whole warps, and make blocks
        of a multiple of 32 threads.""",
    "copy-in-flight": """
        Shared memory is read that an asynchronous copy (`cp.async`, `__pipeline_memcpy_async`, `cuda::memcpy_async`)
        may not have filled yet. The thread that asked for the copy must commit it and wait for its group first, and
        `__syncthreads()` must follow before other threads read. For a bulk copy (`cp.async.bulk`) threads look at its
        `mbarrier` in a loop, since `try_wait` may say no at any time. Or a thread ends while its bulk copy may still
        read shared memory: it must commit its copies and wait for them by `cp.async.bulk.wait_group.read 0`.""",
    "barrier-object": """
        An `mbarrier` (`cuda::barrier`, `cuda::pipeline`) is used in a way that has no meaning: before one thread has
        initialised it and a `__syncthreads()` has told the others, for more arrivals than it was initialised with, or
        for more bytes than it can count.""",
    "cluster-memory": """
        A thread uses the shared memory of another block of its cluster while that block does not run. Before it has
        started or after it has exited its shared memory does not exist, and on a GPU this ends the kernel or reads
        garbage. Call `cluster.sync()` before the first such access, and once more before the kernel ends.""",
    "cluster-barrier": """
        Each thread must arrive at the barrier of the cluster, wait there, and only then arrive again. Arriving twice or
        waiting without having arrived is undefined.""",
    "invalid-launch": """
        A GPU refuses this launch: the block, the grid or the shared memory is larger than it allows, or larger than
        `__launch_bounds__` says; or clusters do not divide the grid, or have too many blocks. The sizes come from the
        plan's `launch:` line and the captured shapes.""",
    "race": """
        A thread reads what another one wrote with nothing that orders the two: no barrier or warp operation between
        threads of a block, no fence or further launch between blocks. Which value it gets is chance. Put
        `__syncthreads()` between the write and the read; between blocks use atomics and a fence, or two kernels.""",
    "endless-loop": """
        Nothing in the loop changes what its condition asks for, so it never ends. The compiler may leave such a loop
        out, and a GPU then gives an answer that the text does not have. Look for a counter that is not counted, or a
        flag that is read once and should be `volatile` or atomic.""",
    "idle-loop": """
        Nothing uses what the loop computes, and nothing says that it ends: the compiler may keep it or leave it out.
        Use the result, bound the loop with a count, or remove it.""",
    "endless-wait": """
        Threads spin until memory changes, and no other thread will change it: those that could have ended, or wait
        themselves. Check that the thread which sets the flag runs before the wait, and that it writes the address that
        is watched, with a fence before it.""",
    "no-end": """
        One thread has run as many instructions as one may, and the line is that of the loop which it was in. Either the
        loop does not end for these inputs, or one thread does the work of many: bound the loop, or divide its work over
        more threads.""",
    # the compiler
    "no-such-kernel": """
        The plan's `launch:` line names a kernel, or an instance of a template, that the text does not have. Check the
        spelling, the namespace and the template arguments.""",
    "compile-error": "NVRTC, the compiler for device code, refuses the text. Nothing runs until it compiles.",
    "compile-warning": "NVRTC, the compiler for device code, warns.",
    "line-directive": """
        `#line` says that the text stands elsewhere. It is left out when the kernel is compiled, so that findings name
        the lines of the file as you see it. Remove it.""",
    "compile-information": "A remark of NVRTC, the compiler for device code.",
    "assemble-error": """
        ptxas, which makes machine code of PTX, refuses what the compiler made. Most often a launch bound, a register
        limit or an instruction does not fit the architecture that the code is compiled for.""",
    "assemble-warning": "ptxas, which makes machine code of PTX, warns.",
    "too-much-shared-memory": """
        A kernel may declare 48 KiB of shared memory. Beyond, it must be dynamic: `extern __shared__`, with the bytes as
        the third number of the plan's launch and `max_shared=` where it needs it.""",
    # the integrity gate
    "include-outside-toolkit": """
        A kernel may include headers of the CUDA toolkit only, so that one file is all there is to read, and no other
        file of yours gets compiled in.""",
    "asks-for-a-file": """
        `__has_include` may ask for headers of the CUDA toolkit, by name. What asks for another file is one program on
        the machine that checks it, and maybe another on the machine that runs it.""",
    "depends-on-build-time": """
        `__TIME__`, `__DATE__` and `__TIMESTAMP__` make each build another program, so that what was checked is not what
        will run. Leave them out.""",
    "pastes-a-name": """
        `##` can make the name out of words that this text has, and the name is one that a kernel may not ask for: it
        tells one build from another, or looks for files. Paste other words, or write the name that you mean.""",
    "false-lines": """
        `#line` changes what `__LINE__` and `__FILE__` are, so that leaving it out, as we do, makes another program.
        Remove the directive, or what asks for the line.""",
    "host-assembly": """
        Assembly outside of every function belongs to the host's part, which a kernel file does not have. NVRTC drops
        it, nvcc takes it in. Write PTX inside a `__device__` or `__global__` function.""",
    "no-own-kernel": """
        A file with code of its own was checked, and none of that code computed the result: PyTorch's own operators did,
        for example in an `except:` branch. Its time is PyTorch's.""",
    "threads-kept": """
        Threads that this code started stayed after its calls had returned. A result may still change then, and work may
        be done outside of what is timed. End every thread before the call returns.""",
    "calls-outside": "The kernel calls a function that is not in its text: nobody can read or check what it does.",
    "reads-a-clock": "A result must not depend on time: a kernel that knows the time can tell when it is measured.",
    "tells-launches-apart": """
        The kernel reads something that is another one in each launch. With it a kernel could do the work once and hand
        out the same result from then on.""",
    "depends-on-place": """
        The kernel reads on which multiprocessor, or in which slot of one, a block runs. That differs from run to run,
        so a result may not depend on it; a schedule may.""",
    "keeps-state": """
        A variable in device memory is written, so that one launch could leave something for the next one: a cached
        result would look like speed. Use a scratch tensor, which the harness gives and takes.""",
    "sleeps": "The kernel sleeps. That is allowed, and costs time.",
    "prints": "The kernel prints, which takes a buffer and time in each launch. Remove it when you have seen enough.",
    "f64-arithmetic": """
        The machine code computes in double precision though the text does not say so: most often a literal without `f`
        or a function such as `exp` in place of `expf`. It is exact, and many times slower than float.""",
    "reduced-precision-product": """
        A matrix product takes operands of reduced precision (tensor cores). The results were within the budgets of
        their dtype; that is said here so that nobody takes it for full precision.""",
    # the verdict
    "nan-lost": """
        PyTorch's `relu`, `clamp`, `max` and their likes let NaN through, so that a run that has diverged shows it. This
        kernel leaves it out, as `fmaxf(x, 0)` and `x > 0 ? x : 0` do. That is usual, and no error; `x < 0 ? 0 : x`
        keeps it.""",
    # the plan and its task
    "plan-task-mismatch": """
        The plan's `op:` does not fit the PyTorch code that its `task:` names: another name, dtype, number or order of
        tensors. The message says which.""",
    "plan-not-bound": """
        The plan's expressions have no value for the captured shapes: a dim is not bound, or a size is negative or not a
        whole number.""",
    # how a check ended
    "mismatch": """
        The kernel ran, and a result is outside of its budget: the difference to an fp64 reference that the same inputs
        give, beyond what the dtype allows. The message names the output, the input family and the worst element. Inputs
        come from several families (normal, large, tiny, ties, small sizes, other shapes), since a kernel that is right
        on one may be wrong on others.""",
    "timed-out": "The kernel did not end within its budget of instructions or seconds. Look for a loop that waits.",
    "unsupported": """
        The executor met something that it does not know (docs/ptx-executor.md lists what), so nothing is said of this
        kernel: neither that it is right nor that it is wrong. On a machine with a GPU *Measure now* can tell more.""",
    "crashed": "The process that ran the kernel ended. On a GPU the kernel would have ended the CUDA context.",
    "rejected": "The kernel was not run: it does something that a candidate may not do. The findings say what.",
    "build-failed": "The text does not compile; the findings say where.",
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


# --- below


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
    return f"{code}: {known[code].next_step}. docs/kernel-format.md has the plan's grammar." if code in known else ""


def _of_rule(code: str) -> str:
    from kernel_lsp.rules.registry import RULES

    rule = next((rule for rule in RULES if rule.code == code), None)
    if rule is None:
        return ""
    return f"{rule.code} {rule.name}: {rule.summary}.\n\n{rule.why}\n\nFound:\n{rule.bad}\nNot found:\n{rule.good}"
