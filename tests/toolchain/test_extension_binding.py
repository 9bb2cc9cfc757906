"""The binding in place of pybind11's: compiled for real, it passes tensors and numbers as pybind11 does."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernel_lsp.toolchain.extension.binding import PYTHON_VARIABLE, WRAPS, light_binding
from kernel_lsp.toolchain.extension.build import ExtensionBuilder
from kernel_lsp.toolchain.extension.facts import ExtensionBuilt, ExtensionFacts
from kernel_lsp.toolchain.extension.tools import find_extension_tools
from kernel_lsp.worker.describe import extension_facts

TEXT = """#include <torch/extension.h>
#include <vector>
torch::Tensor forward(torch::Tensor x, const torch::Tensor& w, float by, int64_t n, bool flag,
                      std::optional<at::Tensor> b) {
    TORCH_CHECK(x.is_contiguous(), "contiguous tensors alone");
    auto out = torch::empty_like(x);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "forward", ([&] {
        auto* from = x.data_ptr<scalar_t>();
        auto* to = out.data_ptr<scalar_t>();
        for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] * by + n + (flag ? 10 : 0) + (b.has_value() ? 100 : 0);
    }));
    return out;
}
std::vector<at::Tensor> ends(std::vector<at::Tensor> given) { return {given[0], given.back()}; }
std::tuple<at::Tensor, double> with_number(at::Tensor x) { return {x, 2.5}; }
void fill(at::Tensor& x) { x.fill_(3); }
at::Tensor none() { return at::Tensor(); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.doc() = "words";
    m.def("forward", &forward, "forward");
    m.def("ends", ends);
    m.def("with_number", &with_number);
    m.def("fill", &fill);
    m.def("none", &none);
    m.def("twice", [](double x) { return 2 * x; });
    m.def("said", [](std::string text) { return text + "!"; });
}
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler here")
    folder = tmp_path_factory.mktemp("binding")

    async def build() -> object:
        facts = ExtensionFacts(**extension_facts({}))
        tools = await find_extension_tools()
        builder = ExtensionBuilder(facts, tools, folder, python=Path(sys.executable))
        found = await builder.build(TEXT, "kernel.cpp")
        assert builder._precompiling is not None  # no test waits for it
        builder._precompiling.cancel()
        return found

    built = asyncio.run(build())
    assert isinstance(built, ExtensionBuilt), built
    assert built.notes == ()
    assert not [name for name in built.undefined_symbols if "pybind11" in name]
    spec = importlib.util.spec_from_file_location(built.module_name, built.path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_tensors_numbers_and_what_may_be_missing(module: ModuleType) -> None:
    x = torch.arange(3.0)
    assert module.forward(x, x, 2, 1, False, None).tolist() == [1, 3, 5]
    assert module.forward(x.double(), x, 0.5, -1, True, x).tolist() == [109, 109.5, 110]


def test_lists_and_tuples_of_the_same_tensors(module: ModuleType) -> None:
    x, y = torch.ones(2), torch.zeros(3, requires_grad=True)
    first, last = module.ends([x, x, y])
    assert first is x
    assert last is y
    assert module.with_number(x) == (x, 2.5)


def test_what_is_changed_in_place_nothing_and_text(module: ModuleType) -> None:
    x = torch.zeros(2)
    assert module.fill(x) is None
    assert x.tolist() == [3, 3]
    assert (module.none(), module.twice(4), module.said("ä")) == (None, 8.0, "ä!")


def test_references_are_given_back(module: ModuleType) -> None:
    x = torch.zeros(2)
    before = sys.getrefcount(x)
    for _ in range(50):
        module.fill(x)
        module.ends((x, x))
    assert sys.getrefcount(x) == before


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (torch.ones(2),),
        (None, torch.ones(2), 1.0, 1, True, None),
        (torch.ones(2), torch.ones(2), "1", 1, True, None),
        (torch.ones(2), torch.ones(2), 1.0, 1.5, True, None),
        (torch.ones(2), torch.ones(2), 1.0, 1 << 70, True, None),
    ],
)
def test_arguments_that_do_not_fit_are_a_type_error(module: ModuleType, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        module.forward(*arguments)


def test_what_it_throws_is_a_runtime_error(module: ModuleType) -> None:
    x = torch.ones(2, 2)
    with pytest.raises(RuntimeError, match="contiguous tensors alone"):
        module.forward(x.t(), x, 1.0, 1, True, None)
    with pytest.raises(RuntimeError, match="not implemented for 'Int'"):
        module.forward(x.int(), x, 1.0, 1, True, None)


@pytest.mark.parametrize(
    "more",
    ['m.def("f", &f, py::arg("x"));', "namespace py = pybind11;", "pybind11::gil_scoped_release r;"],
)
def test_what_names_parts_of_pybind11_gets_it(more: str, tmp_path: Path) -> None:
    (tmp_path / PYTHON_VARIABLE).parent.mkdir(parents=True)
    (tmp_path / PYTHON_VARIABLE).write_text(WRAPS[1])
    assert WRAPS[1] in light_binding("PYBIND11_MODULE(x, m) {}", [tmp_path])
    assert light_binding(more, [tmp_path]) == ""


def test_a_pytorch_that_wraps_otherwise_gets_pybind11(tmp_path: Path) -> None:
    assert light_binding("PYBIND11_MODULE(x, m) {}", [tmp_path]) == ""
