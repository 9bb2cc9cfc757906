"""Files whose host code runs, told from their text, and what a Python one may not contain."""

from __future__ import annotations

import pytest

from kernel_lsp.source.extension import ForeignSource, foreign_source, python_findings

EXTENSION = 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward); m.def("backward", &backward); }'
MODEL = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"


def refused(text: str) -> list[str]:
    return [finding.code for finding in python_findings(text)]


def test_a_torch_extension_is_told_by_its_bindings() -> None:
    assert foreign_source("kernel.cu", EXTENSION) == ForeignSource("torch extension", False, True)


def test_one_with_kernels_needs_a_gpu() -> None:
    found = foreign_source("kernel.cu", f"__global__ void f() {{}}\n{EXTENSION}")
    assert found is not None
    assert found.needs_cuda


def test_a_file_with_model_new_is_told_by_its_class() -> None:
    assert foreign_source("solution.py", MODEL) == ForeignSource("ModelNew", False, False)


def test_one_with_triton_needs_a_gpu() -> None:
    found = foreign_source("solution.py", f"import triton\n{MODEL}")
    assert found is not None
    assert found.needs_cuda


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kernel.cu", "// kernel-lsp: 1\n// op: f() -> ()\n// not PYBIND11_MODULE("),
        ("kernel.cu", "__global__ void f() {}"),
        ("model.py", "class Model: pass"),
        ("model.py", "# class ModelNew is elsewhere"),
    ],
)
def test_everything_else_is_not_foreign(name: str, text: str) -> None:
    assert foreign_source(name, text) is None


@pytest.mark.parametrize(
    "text",
    [
        MODEL,
        "import torch.nn.functional as F\nimport math\nfrom torch.utils.cpp_extension import load_inline",
        "import triton\nimport triton.language as tl",
        "import os\nos.environ['TORCH_CUDA_ARCH_LIST'] = '9.0'",
    ],
)
def test_what_computing_needs_is_allowed(text: str) -> None:
    assert refused(text) == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import ctypes", "import-refused"),
        ("from threading import Thread", "import-refused"),
        ("import subprocess", "import-refused"),
        ("from . import other", "import-refused"),
        ("import os\nos.system('x')", "name-refused"),
        ("from os import fork", "name-refused"),
        ("import os\nos.execvp('x', [])", "name-refused"),
        ("import torch\ntorch._C._foo()", "name-refused"),
        ("import torch.multiprocessing", "name-refused"),
        ("import torch\ns = torch.cuda.Stream()", "name-refused"),
        ("import sys\nsys.modules['torch'] = None", "name-refused"),
        ("eval('1')", "call-refused"),
        ("__import__('ctypes')", "call-refused"),
        ("def f(:", "syntax"),
    ],
)
def test_ways_out_are_refused(text: str, code: str) -> None:
    assert code in refused(text)


def test_a_refusal_names_its_line() -> None:
    (finding,) = python_findings("import torch\nimport socket\n")
    assert finding.line == 2
