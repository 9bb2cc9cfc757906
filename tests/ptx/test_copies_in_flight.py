"""Check that what `cp.async` brings may be read after its thread has waited for it, and not before."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_lsp.ptx.executor_process import Session
from tests.ptx.harness import Executor

SOURCE = """
.version 8.8
.target sm_90
.address_size 64
.visible .entry {name}(.param .u64 X, .param .u64 Y) {{
.reg .b32 %t, %s, %a, %b, %v, %w;
.reg .b64 %x, %y, %o;
.shared .align 16 .b8 s_{name}[1024];
mov.u32 %t, %tid.x;
ld.param.u64 %x, [X];
ld.param.u64 %y, [Y];
mul.wide.u32 %o, %t, 4;
add.u64 %x, %x, %o;
add.u64 %y, %y, %o;
mov.u32 %s, s_{name};
mad.lo.u32 %a, %t, 4, %s;
add.u32 %b, %a, 512;
{body}
st.global.b32 [%y], %v;
st.global.b32 [%y+512], %w;
ret;
}}"""
FIRST, SECOND = "cp.async.ca.shared.global [%a], [%x], 4;", "cp.async.ca.shared.global [%b], [%x+512], 4;"
COMMIT, READ_FIRST, READ_SECOND = "cp.async.commit_group;", "ld.shared.b32 %v, [%a];", "ld.shared.b32 %w, [%b];"
TWO_GROUPS = (FIRST, COMMIT, SECOND, COMMIT)
BODIES = {
    "all": (*TWO_GROUPS, "cp.async.wait_group 0;", READ_FIRST, READ_SECOND),
    "one_after_the_other": (*TWO_GROUPS, "cp.async.wait_group 1;", READ_FIRST, "cp.async.wait_group 0;", READ_SECOND),
    "without_groups": (FIRST, SECOND, "cp.async.wait_all;", READ_FIRST, READ_SECOND),
    "zeros": ("cp.async.ca.shared.global [%a], [%x], 4, 0;", "cp.async.wait_all;", READ_FIRST, "mov.b32 %w, %v;"),
    "stored_instead": (*TWO_GROUPS, "st.shared.b32 [%b], %t;", READ_SECOND, "cp.async.wait_all;", READ_FIRST),
    "no_wait": (*TWO_GROUPS, READ_FIRST, READ_SECOND),
    "too_early": (*TWO_GROUPS, "cp.async.wait_group 1;", READ_FIRST, READ_SECOND),
    "not_committed": (FIRST, COMMIT, SECOND, "cp.async.wait_group 0;", READ_FIRST, READ_SECOND),
    "barrier_only": (*TWO_GROUPS, "bar.sync 0;", READ_FIRST, READ_SECOND),
    "many": ("cp.async.ca.shared.global [%a], [%x], 4;\n" * 70, *TWO_GROUPS, "cp.async.wait_group 1;", READ_SECOND),
}
X = np.arange(1, 257, dtype="i4")


@pytest.fixture(scope="module")
def executor(session, tmp_path_factory) -> Executor:
    kernels = [SOURCE.format(name=name, body="\n".join(body)) for name, body in BODIES.items()]
    head = kernels[0].split(".visible")[0]
    text = head + "\n".join(kernel[len(head) :] for kernel in kernels)
    return Executor(Session(session.compiler), text, tmp_path_factory.mktemp("copies"), {})


def run(executor, kernel):
    return executor.run(kernel, block=128, inputs={"x": X}, outputs={"y": np.zeros(256, "i4")})


@pytest.mark.parametrize("kernel", ["all", "one_after_the_other", "without_groups"])
def test_a_copy_that_was_waited_for_is_there(executor, kernel):
    ran = run(executor, kernel)
    assert ran.findings == []
    assert (ran.arrays["y"] == X).all()


@pytest.mark.parametrize("kernel", ["zeros", "stored_instead"])
def test_zeros_and_later_stores_may_be_read(executor, kernel):
    assert run(executor, kernel).findings == []


@pytest.mark.parametrize("kernel", ["no_wait", "too_early", "not_committed", "barrier_only", "many"])
def test_a_copy_that_was_not_waited_for_may_not_be_read(executor, kernel):
    assert run(executor, kernel).finding()["code"] == "copy-in-flight"
