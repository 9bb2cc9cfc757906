"""The printed reference runs on its own and gives what the user's code gives, at other sizes and dtypes too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp.core.task import Task
from tests.worker.capturing import PRELUDE, capture_text, scalar, tensor
from tests.worker.test_capture_graph import RMS_NORM

torch = pytest.importorskip("torch")

X = tensor("x", 4, 6, 8)


def reference(task: Task) -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(PRELUDE + task.reference_source, namespace)
    return namespace[f"{task.name}_reference"]


def original(text: str, symbol: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(PRELUDE + text, namespace)
    return namespace[symbol]


def check(text: str, *shapes: tuple[int, ...], dtype: str = "float32") -> str:
    """Capture `f` of a text at 4, 6, 8, compare at other shapes, return the printed text."""
    names = list("xyz")[: len(shapes)]
    inputs = [tensor(name, *(4, 6, 8)[: len(shape)]) for name, shape in zip(names, shapes, strict=True)]
    task = capture_text(text, "f", inputs=inputs)
    values = [torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes]
    found, expected = reference(task)(*values), original(text, "f")(*values)
    for a, b in zip(_flat(found), _flat(expected), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b)
    return task.reference_source


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


def test_pointwise_code_reads_as_people_write_it() -> None:
    text = check("def f(x):\n    h = (x - 1) / (x * x + 2)\n    return -h * 3", (3, 5, 7))
    assert "h = (x - 1) / (x * x + 2)" in text


def test_reductions_keep_their_keywords() -> None:
    text = check("def f(x):\n    m = x.mean(-1, keepdim=True)\n    return x - m, x.sum((0, 1))", (3, 5, 7))
    assert "m = x.mean(-1, keepdim=True)" in text


def test_slices_and_indexing() -> None:
    assert "x[:, :-1]" in check("def f(x):\n    return x[:, :-1] + x[:, 1:], x[:, 0]", (3, 5, 7))


def test_an_index_is_an_expression() -> None:
    """The printed text ended behind its first comma, and the capture with an error of ours."""
    text = check("def f(x):\n    return x[torch.arange(3).clamp(0, 1)]", (3, 5, 7))
    assert ", 1)]" in text


def test_sizes_are_read_from_the_arguments() -> None:
    text = check("def f(x):\n    B, T, D = x.shape\n    return x.reshape(B * T, D) / D", (3, 5, 7))
    assert "D = x.shape[2]" in text


def test_a_view_holds_in_any_memory_order() -> None:
    """An attention's result has another memory order on GPUs."""
    task = capture_text("def f(x):\n    return x.view(x.shape[0], -1)", "f", inputs=[X])
    x = torch.randn(8, 6, 4).permute(2, 1, 0)
    assert torch.equal(reference(task)(x), x.reshape(4, -1))


def test_a_reshape_in_code_that_is_traced_again_runs() -> None:
    """Its copy was left out and its view was not printed as a reshape: Swin Transformer V2's reference raised, and a
    GPU had nothing to time kernels against."""
    code = "def f(x):\n    y = x.clamp(max=torch.log(torch.tensor(100.0)))\n    return y.transpose(1, 2).reshape(4, -1)"
    text = check(code, (4, 5, 7))
    assert "torch.full([], 100.0" in text, "a CUDA graph captures no copy from the host"


def test_a_reference_that_raises_is_named_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernel_lsp.worker.capture import task

    def tried(captured: Any, wanted: Any, reference: Callable[..., Any]) -> bool:
        with contextlib.suppress(Exception):
            reference(x=1)
        return False

    text = "def f_reference(x):\n    raise ValueError('no such view')"
    monkeypatch.setattr(task, "_print_reference", lambda *_: text)
    monkeypatch.setattr(task, "agrees_at", tried)
    captured: Any = SimpleNamespace(notes=[])
    task.reference_source(captured, "f")
    assert captured.notes[0].endswith("PyTorch's time will be missing: ValueError: no such view")


def test_cat_split_softmax_and_where() -> None:
    code = "def f(x, y):\n    a = torch.cat([x, y], -1)\n    return torch.where(a > 0, a.softmax(-1), a.exp())"
    check(code, (3, 5, 7), (3, 5, 7))


def test_functional_layers() -> None:
    check("def f(x, y):\n    return F.gelu(F.layer_norm(x * F.silu(y), (8,)))", (2, 6, 8), (2, 6, 8))


def test_new_tensors_and_in_place_writes() -> None:
    code = "def f(x):\n    out = torch.zeros_like(x)\n    out[:, 1:] = x[:, :-1]\n    out.relu_()\n    return out"
    check(code, (3, 5, 7))


def test_a_cast_to_the_inputs_dtype_follows_the_input() -> None:
    code = "def f(x):\n    d = x.dtype\n    h = x.float().softmax(-1)\n    return h.to(d)"
    assert "to(x.dtype)" in check(code, (3, 5, 7), dtype="bfloat16")


def test_a_cast_to_a_named_dtype_stays() -> None:
    assert "torch.float16" in check("def f(x):\n    return x.to(torch.float16) * 2", (3, 5, 7), dtype="bfloat16")


def test_a_module_takes_its_parameters_as_arguments() -> None:
    task = capture_text(RMS_NORM, "RMSNorm", inputs=[tensor("x", 4, 6, 64)])
    x, weight = torch.randn(3, 64), torch.randn(64)
    expected = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
    torch.testing.assert_close(reference(task)(x, weight, 1e-6), expected)


def test_scalars_keep_their_place_in_the_signature() -> None:
    inputs = [X, scalar("eps", 0.5), tensor("w", 8)]
    task = capture_text("def f(x, eps, w):\n    return x * w + eps", "f", inputs=inputs)
    assert task.reference_source.startswith("def f_reference(x, eps, w):")


def test_convolution_batch_norm_and_pooling() -> None:
    text = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
            self.bn = nn.BatchNorm2d(8)

        def forward(self, x):
            return F.max_pool2d(F.relu(self.bn(self.conv(x))), 2).flatten(1)
    """
    task = capture_text(text, "Net", inputs=[tensor("x", 4, 3, 8, 8)])
    x, w, g, b = torch.randn(2, 3, 12, 10), torch.randn(8, 3, 3, 3), torch.randn(8), torch.randn(8)
    mean, variance = torch.randn(8), torch.rand(8) + 0.5
    h = torch.nn.functional.batch_norm(torch.conv2d(x, w, padding=1), mean, variance, g, b)
    torch.testing.assert_close(reference(task)(x, w, g, b, mean, variance), torch.max_pool2d(h.relu(), 2).flatten(1))
