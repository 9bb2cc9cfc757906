"""Boolean masks as indices are selections between whole tensors, where their elements stay under the mask."""

from __future__ import annotations

import pytest

from kernel_lsp.errors import TargetError
from tests.worker.capturing import capture_text, tensor
from tests.worker.test_capture_graph import ops

X, Y = tensor("x", 6, 8), tensor("y", 6, 8)
CAPTURED = {
    "written under the mask": "m = x > 0.3\n    y = y.clone()\n    y[m] = x[m]\n    return y",
    "updated under the mask": "m = x > 0.3\n    y = y * 1\n    y[m] += 2.0 * x[m]\n    return y",
    "changed in place": "v = x[x > 0.3]\n    s = v.sum()\n    v.mul_(2.0).clamp_(max=3.0)\n    return s + v.sum()",
    "a number": "y = y.clone()\n    y[x > 0.3] = 0.0\n    return y",
    "a size": "y = y.clone()\n    y[x > 0.3] = x.shape[1]\n    return y",
    "a number at a later axis": "y = y.clone()\n    y[:, x[0] > 0.3] = -1.0\n    return y",
    "rows": "m = x[:, 0] > 0\n    y = y.clone()\n    y[m] = torch.exp(x[m])\n    return y",
    "the sum of rows": "return y[x[:, 0] > 0].sum()",
    "a mean": "m = x > 0.3\n    return ((x[m] - y[m]) ** 2 / 2).mean()",
    "a mean of 16 bits": "x = x.half() * 300\n    return x[y > 0].mean()",
    "a copy before a change": "m, z, w = x > 0, y * 2, x * 1\n    v = z[m]\n    z[m] = 0.0\n    w[m] = v\n    return w",
}
REFUSED = {
    "a result": "return x[x > 0]",
    "another mask": "m, n = x > 0, y > 0\n    y = y.clone()\n    y[n] = x[m]\n    return y",
    "an infinite derivative at 0": "m = x > 0\n    y = y.clone()\n    y[m] = torch.sqrt(x[m])\n    return y",
    "a mask that changes": "m = x > 0\n    v = x[m]\n    m[0] = False\n    y = y.clone()\n    y[m] = v\n    return y",
    "a copy that changes later": "m = x > 0\n    v = x[m]\n    w = v.view(-1)\n    v += 1\n    return w.sum()",
    "a mean of rows": "return x[x[:, 0] > 0].mean()",
}


@pytest.mark.parametrize("name", CAPTURED)
def test_what_stays_under_its_mask_is_captured(name: str) -> None:
    """The capture compares the graph with the code."""
    task = capture_text(f"def f(x, y):\n    {CAPTURED[name]}", "f", inputs=[X, Y])
    assert not {"index.Tensor", "index_put.default"} & set(ops(task.forward))
    assert not [note for note in task.notes if "could not be compared" in note]


@pytest.mark.parametrize("name", REFUSED)
def test_other_uses_of_masked_elements_are_refused(name: str) -> None:
    with pytest.raises(TargetError, match=r"depends? on values|course depends"):
        capture_text(f"def f(x, y):\n    {REFUSED[name]}", "f", inputs=[X, Y])


def test_gradients_are_0_outside_of_the_mask() -> None:
    text = "def f(x, y):\n    m = x > 0.3\n    return ((x[m] - y[m]) ** 2).mean()"
    task = capture_text(text, "f", inputs=[X, Y], backward=True)
    assert task.backward is not None
    assert "where.self" in ops(task.backward)
