"""Check that findings of functions are kept within bounds, however long they are and however often they are edited."""

from __future__ import annotations

from types import ModuleType

import pytest

from kernel_lsp.rules import cuda, pytorch
from kernel_lsp.rules.cached import Kept
from kernel_lsp.rules.cuda import checking as cuda_checking
from kernel_lsp.rules.pytorch import checking as pytorch_checking

MAX_BYTES = 8192
CUDA = "__global__ void f(float* x) {\n" + "    x[threadIdx.x] += 1.0f;\n" * 40 + "    x[%d] *= 0.1;\n}\n"
HEAD = "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x: torch.Tensor):\n"
PYTHON = HEAD + "        x = x @ x\n" * 40 + "        return x.sum().item() + %d\n"


def kept(max_entries: int = 4, max_bytes: int = 100) -> Kept[str, bytes]:
    return Kept(max_entries, max_bytes, lambda _, value: len(value))


def test_the_oldest_goes_when_there_are_too_many() -> None:
    some = kept()
    for name in "abcdef":
        some.keep(name, b"")
    assert [name for name in "abcdef" if some.get(name) is not None] == list("cdef")


def test_the_oldest_go_when_they_take_too_much() -> None:
    some = kept()
    for name, n_bytes in (("a", 30), ("b", 30), ("c", 90)):
        some.keep(name, bytes(n_bytes))
    assert (some.get("a"), some.get("b"), some.n_bytes) == (None, None, 90)


def test_a_value_in_the_place_of_another_is_counted_once() -> None:
    some = kept()
    for _ in range(5):
        some.keep("a", bytes(60))
    assert (len(some), some.n_bytes) == (1, 60)


def test_what_is_too_much_by_itself_is_not_kept() -> None:
    some = kept()
    some.keep("a", bytes(101))
    assert (len(some), some.n_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("checking", "rules", "text"), [(cuda_checking, cuda, CUDA), (pytorch_checking, pytorch, PYTHON)]
)
def test_versions_of_a_long_function_are_kept_up_to_a_bound(
    checking: ModuleType, rules: ModuleType, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded: Kept[tuple, tuple] = Kept(checking.MAX_KEPT_FUNCTIONS, MAX_BYTES, checking._n_bytes_of)
    monkeypatch.setattr(checking, "_kept", bounded)
    found = [rules.check(text % version) for version in range(30)]
    assert all(found)
    assert 0 < len(bounded) < 10
    assert len(text) < bounded.n_bytes <= MAX_BYTES


@pytest.mark.parametrize("checking", [cuda_checking, pytorch_checking])
def test_all_that_is_kept_fits_what_the_analysis_may_take(checking: ModuleType) -> None:
    assert checking._kept._max_bytes == checking.MAX_KEPT_BYTES <= 8 << 20
