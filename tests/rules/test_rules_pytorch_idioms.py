"""Check idioms of repositories: the rules see the fault in it, and are silent where there is none."""

from __future__ import annotations

import textwrap

import pytest

from kernel_lsp.core.finding import Severity
from kernel_lsp.rules import pytorch
from kernel_lsp.rules.finding import RuleFinding

HEADER = "import numpy as np\nimport torch\nfrom torch import Tensor, nn\nfrom torch.nn import functional as F\n\n"


# --- KL107: loops of all kinds


def test_a_recurrence_over_a_dimension_is_told_more_quietly() -> None:
    body = "h = x[:, 0]\nfor t in range(x.shape[1]):\n    h = self.decay * h + x[:, t]\nreturn h"
    (finding,) = in_forward(body)
    assert (finding.code, finding.severity) == ("KL107", Severity.INFORMATION)


def test_a_recurrence_that_goes_backwards_or_sets_several_names_is_one() -> None:
    body = "last = 0\nfor t in reversed(range(x.shape[0])):\n    y[t] = last = x[t] + 0.9 * last\nreturn y"
    (finding,) = in_forward(f"y = torch.zeros_like(x)\n{body}")
    assert (finding.code, finding.severity) == ("KL107", Severity.INFORMATION)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("return torch.stack([torch.softmax(row, -1) for row in x])", ["KL107"]),
        ("return torch.stack([torch.softmax(row, -1) for row in x.unbind(0)])", ["KL107"]),
        ("return torch.cat([row for row in x])", []),
        ("return torch.cat([part * 2 for part in x.chunk(3)])", []),
        ("q, k, v = x.unbind(0)\nreturn q", []),
    ],
)
def test_a_comprehension_is_a_loop(body: str, found: list[str]) -> None:
    assert codes(in_forward(body)) == found


# --- KL113, KL114, KL119, KL121


def test_what_is_expanded_is_broadcast_all_the_same() -> None:
    assert codes(in_forward("return (x.unsqueeze(1).expand(4, 5, 6) * mask.unsqueeze(0)).sum(-1)")) == ["KL113"]
    assert codes(in_forward("return (x.expand(4, 5, 6) * mask.unsqueeze(0)).sum(-1)")) == []


def test_a_model_that_reads_all_tokens_so_far_needs_them_in_one_tensor() -> None:
    loop = "def run(model, ids):\n    for _ in range(9):\n        ids = torch.cat([ids, {}], 1)\n    return ids\n"
    assert codes(findings(loop.format("model(ids)[:, -1:]"))) == []
    assert codes(findings(loop.format("model(9)"))) == ["KL114"]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("return x.to(torch.float16).to(torch.float32)", ["KL119"]),
        ("return x.half().to(torch.float)", ["KL119"]),
        ("return x.to(torch.float16).to(x.device)", []),
        ("return x.to(torch.int32).to(torch.float32)", []),
    ],
)
def test_a_cast_by_any_name_can_be_undone(body: str, found: list[str]) -> None:
    assert codes(in_forward(body)) == found


def test_moving_to_where_another_tensor_is_moves() -> None:
    assert codes(in_forward("return x + torch.eye(4).to(x)")) == ["KL121"]


def test_moving_once_outside_of_a_forward_is_told_more_quietly() -> None:
    (finding,) = findings("device = 'cuda'\nx = torch.zeros(4).to(device)\n")
    assert (finding.code, finding.severity) == ("KL121", Severity.INFORMATION)


# --- KL122 and KL127: what is the same each time


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("return x * torch.tensor([1.0, 2.0], device=x.device)", ["KL122"]),
        ("values = [1.0, 2.0]\nreturn x * torch.tensor(values, device=x.device)", ["KL122"]),
        ("h, w = x.shape[-2:]\nreturn x / torch.tensor([h, w], device=x.device)", ["KL122"]),
        ("return x * torch.tensor([scale], device=x.device)", []),
        ("rows = [r for r in scale]\nreturn x * torch.tensor(rows, device=x.device)", []),
    ],
)
def test_only_what_does_not_change_is_called_a_constant(body: str, found: list[str]) -> None:
    assert codes(in_forward(body, "x: Tensor, scale")) == found


def test_numbers_of_a_shape_are_no_buffer() -> None:
    (finding,) = in_forward("n = x.shape[0]\nreturn x / torch.tensor([n], device=x.device)")
    assert "plain numbers" in finding.message


@pytest.mark.parametrize(
    ("made", "is_found"),
    [
        ("torch.triu(torch.ones(self.n, self.n, device=x.device), 1)", True),
        ("torch.arange(0, 2 * self.n, device=x.device)", True),
        ("torch.ones(x.shape[0], self.n, device=x.device)", False),
        ("torch.arange(self.n, device=x.device) * x", True),
        ("torch.ones(self.weight, device=x.device)", False),
        ("torch.zeros(self.n, device=x.device)", False),
        ("torch.rand(self.n, device=x.device)", False),
    ],
)
def test_a_tensor_of_the_module_s_own_numbers_is_the_same_each_time(made: str, is_found: bool) -> None:
    text = (
        "class M(nn.Module):\n    def __init__(self, n):\n        super().__init__()\n        self.n = n\n"
        "        self.weight = nn.Parameter(torch.ones(n))\n\n"
        f"    def forward(self, x: Tensor):\n        made = {made}\n        return x + made\n"
    )
    assert ("KL127" in codes(findings(text))) is is_found


def test_a_tensor_that_is_written_later_is_made_for_that() -> None:
    assert codes(in_forward("y = torch.ones(8, device=x.device)\ny[0] = x.sum()\nreturn y")) == []


# --- KL110: what its figures count


def test_a_chain_counts_tensors_of_which_the_text_does_not_say_that_they_are() -> None:
    body = "v = v * 0.9 + g * g\nstep = v / 0.1\nreturn p - 0.001 * g / (torch.sqrt(step) + 1e-8)"
    (finding,) = in_forward(body, "p, g, v")
    assert "one fused kernel moves 4" in finding.message


# --- KL131 and KL150


def test_floats_of_python_in_an_array_are_doubles() -> None:
    assert codes(findings("x = torch.from_numpy(np.array([0.1, 2]))\n")) == ["KL131"]
    assert codes(findings("x = torch.from_numpy(np.hanning(400))\n")) == ["KL131"]
    assert codes(findings("x = torch.from_numpy(np.array([1, 2]))\n")) == []
    assert codes(findings("x = torch.from_numpy(np.array([0.1], dtype=np.float32))\n")) == []


def test_a_model_that_is_made_in_evaluation_mode_is_in_it() -> None:
    made = "def build(x):\n    model = make().eval().cuda()\n    {}\n"
    assert codes(findings(made.format("return model(x)"))) == ["KL150"]
    assert codes(findings(made.format("with torch.no_grad():\n        return model(x)"))) == []
    assert codes(findings(made.replace(".eval()", "").format("return model(x)"))) == []


def test_the_decorator_of_a_function_is_about_that_one_alone() -> None:
    decorated = "@torch.no_grad()\ndef other(x):\n    return x\n\nmodel = make()\nmodel.eval()\nmodel(3)\n"
    assert codes(findings(decorated)) == ["KL150"]


# --- below: what the tests share


def findings(text: str) -> tuple[RuleFinding, ...]:
    return pytorch.check(HEADER + text)


def in_forward(body: str, parameters: str = "x: Tensor, mask: Tensor") -> tuple[RuleFinding, ...]:
    head = f"class M(nn.Module):\n    def forward(self, {parameters}):\n"
    return findings(head + textwrap.indent(body, " " * 8) + "\n")


def codes(found: tuple[RuleFinding, ...]) -> list[str]:
    return [finding.code for finding in found]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            """
def exists(value):
    return value is not None

class M(nn.Module):
    def __init__(self, n, scale=None, share=0.1):
        super().__init__()
        self.scale, self.share = scale, share

    def forward(self, x: Tensor):
        if exists(self.scale) and not is_chosen(self.share):
            x = x * self.scale
        return x + torch.zeros(x.shape, device=x.device)

def is_chosen(share):
    return random.random() < share
""",
            "KL127",
        ),
        (
            """
def f(x: Tensor):
    dtype = x.dtype if not torch.is_autocast_enabled() else torch.get_autocast_gpu_dtype()
    return x.to(dtype) if dtype == torch.float16 else x.to(torch.bfloat16)
""",
            "KL102",
        ),
        (
            """
def f(x: Tensor, latents):
    if not torch.is_tensor(latents):
        latents = torch.tensor(latents, device=x.device)
    scale = x if isinstance(x, Tensor) else torch.tensor(x)
    return x + latents.unsqueeze(0) * scale
""",
            "KL124",
        ),
    ],
)
def test_questions_of_language_models_code_are_no_tensors(text: str, code: str) -> None:
    """x-transformers asks `exists(value)` in every forward: six findings in one file."""
    assert code not in codes(findings("import random\n" + text.lstrip()))
