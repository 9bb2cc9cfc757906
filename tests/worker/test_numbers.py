"""Numbers of the caller in a captured graph: which are arguments of the operator, and which stay constants."""

from __future__ import annotations

import pytest

from kernel_lsp.core.task import Task
from tests.worker.capturing import capture_text, scalar, tensor

X = tensor("x", 16, 32)
MODULE = """
class Net(nn.Module):
    def __init__(self, a=0.25, b=0.25):
        super().__init__()
        self.a, self.b, self.std = a, b, 0.02
        self.norm = nn.LayerNorm(32, eps=1e-3)

    def forward(self, x):
        return BODY
"""


def captured(body: str, **how: bool) -> Task:
    return capture_text(MODULE.replace("BODY", body), "Net", inputs=[X], **how)


def numbers(task: Task) -> set[str]:
    """The numbers in the graphs, as texts."""
    graphs = [task.forward] if task.backward is None else [task.forward, task.backward]
    return {text for graph in graphs for node in graph.nodes for text in node.scalars.values()}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("x * self.a + self.b", {"a", "b"}),
        ("F.leaky_relu(x, self.a) * (1 - self.a / 2)", {"a", "(1 - (a / 2))"}),
        ("self.norm(x) + torch.tensor(self.a)", {"norm_eps", "a"}),
        ("x * self.a if self.b > 0.1 else x + self.b", {"a"}),
        ("x * self.a + int(self.b * 100)", {"a"}),
        ("x * self.a ** 2 + self.b", {"b"}),
        ("x * 0.25", set()),
    ],
    ids=["alike", "computed", "of a submodule", "one decides", "one is rounded", "a power", "none"],
)
def test_a_float_of_a_module_is_an_argument_where_the_graph_has_it(body: str, expected: set[str]) -> None:
    assert numbers(captured(body)) == expected


def test_a_number_that_is_an_argument_is_no_setting() -> None:
    task = captured("x * self.a if self.b > 0.1 else x + self.b")
    assert [(s.name, s.qualified_name, s.value) for s in task.scalars] == [("a", "a", 0.25)]
    assert task.module_settings == {"b": 0.25}
    assert "x, a)" in task.reference_source
    assert "x * a" in task.reference_source


def test_numbers_of_a_deep_module_stay_settings() -> None:
    deep = "nn.Sequential(*(nn.Identity() for _ in range(40)))"
    text = MODULE.replace("nn.LayerNorm(32, eps=1e-3)", deep).replace("BODY", "self.norm(x) * self.a")
    task = capture_text(text, "Net", inputs=[X])
    assert numbers(task) == set()
    assert task.module_settings["a"] == 0.25


def test_a_momentum_that_inference_does_not_read_stays_a_setting() -> None:
    text = MODULE.replace("nn.LayerNorm(32, eps=1e-3)", "nn.BatchNorm1d(32)").replace("BODY", "self.norm(x) * self.a")
    task = capture_text(text, "Net", inputs=[X])
    assert "norm.momentum" in task.module_settings
    assert "a" in numbers(task)


def test_a_backward_has_the_numbers_of_its_own() -> None:
    task = captured("F.leaky_relu(self.norm(x), self.a) + self.b", backward=True)
    assert task.backward is not None
    assert (task.forward.numbers, task.backward.numbers) == ({"a", "b", "norm_eps"}, {"a", "norm_eps"})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("(x + eps) * n", {"eps", "n"}),
        ("(x + eps).sum(n, keepdim=True)", {"eps"}),
        ("x[:, :n] + eps", {"eps"}),
        ("x ** eps", {"eps"}),
    ],
    ids=["both", "a dim", "a size", "an exponent"],
)
def test_numbers_of_a_function_are_found(body: str, expected: set[str]) -> None:
    task = capture_text(f"def f(x, eps, n): return {body}", "f", inputs=[X, scalar("eps", 1e-5), scalar("n", 1)])
    assert numbers(task) == expected
