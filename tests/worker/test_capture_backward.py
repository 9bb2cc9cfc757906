"""The captured backward: same symbols, the right inputs and outputs."""

from __future__ import annotations

import pytest

from kernel_lsp.core.task import Graph, Task
from kernel_lsp.errors import TargetError
from tests.worker.capturing import capture_text, tensor
from tests.worker.test_capture_graph import RMS_NORM, check_expressions_parse, ops, shape_of

X = tensor("x", 4, 6, 8)


def backward_of(task: Task) -> Graph:
    assert task.backward is not None
    return task.backward


def test_it_takes_gradients_first_and_gives_one_per_floating_argument() -> None:
    task = capture_text(RMS_NORM, "RMSNorm", inputs=[tensor("x", 4, 6, 64)], backward=True)
    backward = backward_of(task)
    assert backward.inputs == ("grad_out", "x", "weight")
    assert [output.name for output in backward.outputs] == ["grad_x", "grad_weight"]
    assert backward.input_types[0].shape == ("B", "T", "64")
    check_expressions_parse(task)


def test_its_nodes_carry_the_line_that_they_differentiate() -> None:
    task = capture_text(RMS_NORM, "RMSNorm", inputs=[tensor("x", 4, 6, 64)], backward=True)
    assert all(node.source is not None for node in backward_of(task).nodes)


def test_a_loss_gives_a_gradient_for_its_logits_only() -> None:
    text = "def f(logits, target):\n    return F.cross_entropy(logits, target)"
    inputs = [tensor("logits", 16, 10), tensor("target", 16, dtype="i64")]
    backward = backward_of(capture_text(text, "f", inputs=inputs, backward=True))
    assert backward.inputs == ("grad_out", "logits", "target")
    assert [output.name for output in backward.outputs] == ["grad_logits"]


def test_an_input_that_nothing_differentiable_reads_has_no_gradient() -> None:
    text = "def f(x, y):\n    return x * (y > 0)"
    outputs = backward_of(capture_text(text, "f", inputs=[X, tensor("y", 8)], backward=True)).outputs
    assert [(output.name, output.node is None) for output in outputs] == [("grad_x", False), ("grad_y", True)]


def test_detach_stops_the_gradient() -> None:
    text = "def f(x):\n    y = x.detach() * x\n    y += 1\n    return y"
    assert ops(backward_of(capture_text(text, "f", inputs=[X], backward=True))) == ["mul.Tensor"]


MASKED_DATA = "def f(x):\n    y = x * 2\n    y.data.masked_fill_(x > 1, 0.0)\n    return y.softmax(-1)"


def test_data_that_is_changed_in_place_is_captured_without_its_backward() -> None:
    """Autograd does not see the change: the gradient goes through masked elements, too."""
    task = capture_text(MASKED_DATA, "f", inputs=[X])
    assert "where.self" in ops(task.forward)
    assert task.has_no_grad_region
    with pytest.raises(TargetError, match=r"changes tensor\.data"):
        capture_text(MASKED_DATA, "f", inputs=[X], backward=True)


def test_data_that_is_only_read_stops_the_gradient() -> None:
    text = "def f(x):\n    return x.data * x"
    task = capture_text(text, "f", inputs=[X], backward=True)
    assert ops(backward_of(task)) == ["mul.Tensor"]
    assert not task.has_no_grad_region


def test_the_gradient_of_a_padding_is_a_cut_of_the_outputs_gradient() -> None:
    """The trace asked for the storage offset of a symbolic tensor, which has no number."""
    task = capture_text("def f(x):\n    return F.pad(x, (1, 2))", "f", inputs=[X], backward=True)
    assert ops(backward_of(task)) == ["constant_pad_nd.default"]


def test_only_floating_outputs_have_a_gradient_input() -> None:
    text = "def f(x):\n    values, indices = x.max(-1)\n    return values, indices"
    assert backward_of(capture_text(text, "f", inputs=[X], backward=True)).inputs == ("grad_values", "x")


def test_a_size_that_only_the_backward_needs_is_fixed() -> None:
    task = capture_text("def f(x):\n    return x.cumprod(1)", "f", inputs=[tensor("x", 4, 16)], backward=True)
    assert shape_of(task, "x") == ("B", "16")


def test_a_target_without_floating_results_has_none() -> None:
    with pytest.raises(TargetError, match="no backward") as caught:
        capture_text("def f(x):\n    return x.argmax(-1)", "f", inputs=[X], backward=True)
    assert "--backward" in caught.value.next_step


def test_no_grad_inside_is_refused() -> None:
    text = "def f(x):\n    with torch.no_grad():\n        s = x.sum()\n    return s * x"
    with pytest.raises(TargetError, match="no_grad"):
        capture_text(text, "f", inputs=[X], backward=True)
    assert capture_text(text, "f", inputs=[X]).backward is None
