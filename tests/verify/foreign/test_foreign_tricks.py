"""Tricks of Python that change no value: clocks that lie, kernels that are not called."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.core.verdict import CaseResult
from kernel_lsp.verify.foreign.process import ForeignAsker, ForeignProcess
from kernel_lsp.verify.gpu.slot import Lost

from .harness import Bench, model, started

pytest.importorskip("torch")
RIGHT = "return x * 2 + eps"
SLOW = "SLEEP(0.0005)\n" + RIGHT
HONEST = "import time\nSLEEP = time.sleep"
LYING = """
import time
SLEEP = time.sleep
real, real_ns = time.perf_counter, time.perf_counter_ns
time.perf_counter = lambda: real() / 1000
time.perf_counter_ns = lambda: real_ns() // 1000
torch.cuda.synchronize = lambda *a, **k: None
torch.cuda.Event = type("Event", (), {"elapsed_time": lambda *a: 0.0})
"""
EXTENSION = """
#include <Python.h>
static PyObject* run(PyObject* self, PyObject* x) {
    if (FAILS) { PyErr_SetString(PyExc_RuntimeError, "no"); return NULL; }
    Py_INCREF(x);
    return x;
}
static PyMethodDef methods[] = {{"run", run, METH_O, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "kernel_lsp_extension", NULL, -1, methods};
PyMODINIT_FUNC PyInit_kernel_lsp_extension(void) { return PyModule_Create(&module); }
"""
INLINE = "from torch.utils.cpp_extension import load_inline\nbuilt = load_inline('e', 'int run();', functions=['run'])"


async def timed(folder: Path, text: str) -> tuple[dict[str, Any] | Lost, float]:
    """Return how its timing ends, and the time in microseconds that its process says it takes."""
    async with started(folder) as process:
        await Bench(folder, process).open(text)
        case = folder / "x.bin"
        case.write_bytes(b"\0\0\x80\x3f" * 64)
        inputs = [{"name": "x", "path": str(case), "dtype": "f32", "shape": [64]}]
        asker = ForeignAsker(process, "forward", inputs)
        named, unreadable = {"subject": "s"}, [{**inputs[0], "path": "/nowhere/x.bin"}]
        request = {**named, "inputs": unreadable, "operation": "scale"}  # the timer's own, which it may not see
        await asker.ask("prepare_candidate", request, deadline_s=90.0)
        block = {**named, "n_samples": 3, "n_warm_samples": 3, "n_operator_calls": 5}
        answer = await asker.ask("time_block", block, deadline_s=90.0)
        assert isinstance(answer, dict), answer
        return await asker.ask("end_timing", named, deadline_s=90.0), answer["operator_us"][0]


async def test_an_honest_clock_is_believed(tmp_path: Path) -> None:
    ended, said_us = await timed(tmp_path, model(SLOW, HONEST))
    assert isinstance(ended, dict), ended
    assert said_us > 500


@pytest.mark.parametrize("load", [0.0, 1e6])
async def test_patched_timers_do_not_deceive_the_clock_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: float
) -> None:
    """Time a file whose process claims to be a thousand times faster; the message names a load that may cause it."""
    monkeypatch.setattr("kernel_lsp.verify.foreign.process.os.getloadavg", lambda: (load, load, load))
    ended, said_us = await timed(tmp_path, model(SLOW, LYING))
    assert said_us < 100
    assert isinstance(ended, Lost)
    assert "a clock outside of it says" in ended.message
    assert ("check again when it is lower" in ended.message) == (load > 0)


async def n_own_calls(folder: Path, text: str, *, fails: int) -> int:
    """Return the outcome of a correct file whose extension was built."""
    library = folder / "built.so"
    (folder / "built.c").write_text(EXTENSION)
    include = sysconfig.get_paths()["include"]
    command = ["gcc", "-shared", "-fPIC", f"-DFAILS={fails}", f"-I{include}", folder / "built.c", "-o", library]
    subprocess.run(command, check=True, timeout=60)
    async with started(folder) as process:
        return await _n_calls(process, Bench(folder, process), text, library)


async def _n_calls(process: ForeignProcess, bench: Bench, text: str, library: Path) -> int:
    asked = await bench.open(text)
    assert isinstance(asked, dict)
    opened = await bench.open(text, {asked["key"]: str(library)})
    assert isinstance(opened, dict)
    assert opened["status"] == "opened", opened
    assert isinstance(await bench.run(), CaseResult)
    looked = await process.ask("look_again", {}, deadline_s=30.0)
    assert isinstance(looked, dict)
    return int(looked["n_own_calls"])


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
async def test_calls_of_its_own_extension_are_counted(tmp_path: Path) -> None:
    assert await n_own_calls(tmp_path, model("return built.run(x * 2 + eps)", INLINE), fails=0) == 2


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
async def test_an_extension_that_nothing_calls_is_no_kernel(tmp_path: Path) -> None:
    """It is built, and left aside: what is returned is PyTorch's."""
    body = "if x.dim() > 9:\n    return built.run(x)\nreturn x * 2 + eps"
    assert await n_own_calls(tmp_path, model(body, INLINE), fails=0) == 0


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
async def test_a_fallback_to_pytorch_is_no_kernel(tmp_path: Path) -> None:
    """Its own kernel always fails, and PyTorch computes what is returned: calls that raised do not count."""
    body = "try:\n    return built.run(x)\nexcept RuntimeError:\n    return x * 2 + eps"
    assert await n_own_calls(tmp_path, model(body, INLINE), fails=1) == 0
