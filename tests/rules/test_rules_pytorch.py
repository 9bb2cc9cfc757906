"""Tricky cases of the PyTorch rules: where they must speak, and where they must not."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from kernel_lsp.rules import pytorch
from kernel_lsp.rules.finding import RuleFinding, apply_fix

ROOT = Path(__file__).parent.parent.parent
HEADER = "import numpy as np\nimport torch\nfrom torch import Tensor, nn\nfrom torch.nn import functional as F\n"
JUDGED_RIGHT = {
    ("rms_norm.py", "KL110"),
    ("transformer_block.py", "KL110"),
    ("sgd_momentum.py", "KL110"),
    ("func_backward.py", "KL110"),
}
"""Chains of four and more pointwise operations: each launches a kernel in eager mode, and fusing them is what we do."""


# --- where nothing may be said


def test_a_file_without_torch_is_left_alone() -> None:
    assert found("def f(x):\n    return x.item()\n", header="") == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/**/*.py")), ids=lambda path: path.name)
def test_the_examples_have_no_finding_but_those_judged_right(path: Path) -> None:
    check = pytorch.check(path.read_text())
    assert {(path.name, finding.code) for finding in check} <= JUDGED_RIGHT


@pytest.mark.parametrize(
    "body",
    [
        "if mask is not None:\n    x = x * mask\nreturn x",
        "if mask:\n    x = x * mask\nreturn x",
        "return x * torch.tensor(3.0)",
        "return nn.CrossEntropyLoss()(x, mask)",
        "return [torch.as_tensor(i) for i in self.matches]",
        "packed = nn.utils.rnn.pack_padded_sequence(x, mask.cpu())\nreturn packed",
        "h = x[:, 0]\nfor t in range(x.shape[1]):\n    h = torch.tanh(self.cell(x[:, t]) + self.state(h))\nreturn h",
        "d = x[:, :, None] - x[:, None, :]\nd[:, 0] += 1\nreturn d.sum(-1)",
        "if x.shape[0] > 1:\n    x = x * 2\nreturn x",
        "if x.dim() == 2 and x.dtype == torch.float64:\n    x = x * 2\nreturn x",
        "if self.training:\n    x = x * 2\nreturn x",
        "n = int(x.size(0))\nreturn x / float(n)",
        "for layer in self.layers:\n    x = layer(x)\nreturn x",
        "for i in range(3):\n    x = x * i\nreturn x",
        "b, t, c = x.shape\nreturn x.view(b, t * c)",
        "x[x > 0] = 0.0\nreturn x",
        "return x * torch.zeros(3, device=x.device)",
        "return x.new_zeros(3) + x",
        "return x.to(torch.float32)",
        "return torch.exp(x - x.max()) / torch.exp(x - x.max()).sum()",
        "return torch.log(2 + x)",
        "return x.repeat(1, 8, 1, 1)",
        "return (x[:, None] - mask[:, None]).sum()",
        "return x[:, None] * mask[None]",
        "names = ['a']\nreturn x if 'a' in names else mask",
        "if mask:\n    mask = x > -1\n    return x * mask\nreturn x",
        "if torch.are_deterministic_algorithms_enabled() and x.is_cuda:\n    x = x * 2\nreturn x",
        "if not isinstance(mask, torch.Tensor):\n    mask = torch.tensor(mask)\nreturn x * mask.sum()",
        "value = self.scale.get('x').item()\nreturn x",
    ],
)
def test_a_forward_without_fault_is_silent(body: str) -> None:
    assert in_forward(body) == []


@pytest.mark.parametrize(
    "text",
    [
        "def main():\n    x = torch.ones(3)\n    print(x.mean().item())\n",
        "def step(x: Tensor) -> Tensor:\n    loss = x.mean()\n    loss.backward()\n    print(loss)\n    return loss\n",
        "def get_inputs():\n    return [torch.randn(3, 4)]\n",
        "def load(path: str) -> Tensor:\n    return torch.tensor([1.0, 2.0])\n",
        "class Data:\n    def __getitem__(self, i):\n        return torch.tensor(self.items[i])\n",
        "def report(x: Tensor) -> str:\n    return f'{x.mean().item():.3f}'\n",
    ],
)
def test_code_outside_of_a_model_may_synchronize_and_allocate(text: str) -> None:
    assert found(text) == []


def test_an_array_of_numpy_is_no_tensor() -> None:
    assert found("def mean(x: np.ndarray) -> float:\n    for row in x:\n        print(row.sum().item())\n") == []


def test_a_list_of_tensors_may_be_looped_over() -> None:
    assert found("def total(xs: list[Tensor]) -> Tensor:\n    for x in xs:\n        y = x\n    return y\n") == []


def test_chunks_may_be_looped_over() -> None:
    assert in_forward("out = []\nfor part in x.chunk(4):\n    out.append(part)\nreturn torch.cat(out)") == []


def test_a_parameter_that_was_assigned_is_a_tensor() -> None:
    assert in_forward("mask = x.sum() > 0\nif mask:\n    return x\nreturn -x") == ["KL102"]
    assert in_forward("for _ in range(3):\n    if mask:\n        x = -x\n    mask = x.sum() > 0\nreturn x") == ["KL102"]


LOGARITHM = """
class Actor(nn.Module):
    def sample(self, x):
        y = torch.tanh(x)
        return torch.log(1 - y.pow(2) + 1e-6).sum(1)

actor = Actor()
for step in range(9):
    loss = actor.sample(torch.randn(4, 4)).mean()
    loss.backward()
"""


def test_a_logarithm_logs_nothing() -> None:
    assert found(LOGARITHM) == []
    assert "KL105" in found(
        LOGARITHM.replace("return torch.log(", "logger.log(y.mean()); return (").replace("+ 1e-6", "")
    )


def test_a_value_read_to_the_host_is_no_tensor_any_more() -> None:
    assert in_forward("n = x.sum().item()\nif n > 0:\n    return x\nreturn -x") == ["KL101"]


def test_noqa_silences_its_line() -> None:
    assert in_forward("return x / x.max().item()  # noqa: KL101") == []
    assert in_forward("return x / x.max().item()  # noqa") == []
    assert in_forward("return x / x.max().item()  # noqa: KL102") == ["KL101"]


def test_a_compiled_function_has_its_chains_fused() -> None:
    chain = "def f(x: Tensor) -> Tensor:\n    return torch.exp(x + 1) * x - 2 * torch.tanh(x * x) / (x + 3)\n"
    assert found(chain) == ["KL110"]
    assert found(f"@torch.compile\n{chain}") == []


def test_a_value_read_once_in_an_epoch_is_no_wait_in_each_round() -> None:
    step = "        loss = F.mse_loss(model(x), x)\n        loss.backward()\n"
    epoch = f"def train(model, batches):\n  for epoch in range(9):\n    for x in batches:\n{step}"
    assert found(f"{epoch}    print(loss.item())\n") == []
    assert found(f"{epoch}        print(loss.item())\n") == ["KL105"]


def test_a_tensor_that_grows_and_is_needed_in_each_round_has_to_be_whole() -> None:
    step = "    y = torch.relu(model({}))\n    x = torch.cat((x, y), 1)\n"
    grow = f"def write(model, x):\n  for _ in range(9):\n{step}  return x\n"
    assert found(grow.format("x")) == []
    assert found(grow.format("1")) == ["KL114"]


# --- where something must be said


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("return x.detach().cpu().numpy()", "KL101"),
        ("return x.to('cpu')", "KL101"),
        ("if (x > 0).any():\n    return x\nreturn -x", "KL102"),
        ("assert not torch.isnan(x).any()\nreturn x", "KL102"),
        ("ok = x.sum() > 0\nreturn x if ok else -x", "KL102"),
        ("while x.norm() > 1:\n    x = x / 2\nreturn x", "KL102"),
        ("return x * int(x.max())", "KL103"),
        ("print(f'{x}')\nreturn x", "KL104"),
        ("return torch.nonzero(x)", "KL106"),
        ("return x.unique()", "KL106"),
        ("keep = x > 0\nreturn x[keep]", "KL106"),
        ("h = x[:, 0]\nfor t in range(x.shape[1]):\n    h = h + x[:, t] * 2\nreturn h", "KL107"),
        ("h = x[:, 0]\nfor t in range(x.shape[1]):\n    y = x[:, t]\n    y = y * 2\n    h += y\nreturn h", "KL107"),
        ("return torch.as_tensor(self.mean) + x", "KL122"),
        ("out = []\nfor row in x:\n    out.append(row)\nreturn torch.stack(out)", "KL107"),
        ("n = x.size(1)\nfor t in range(n):\n    self.state = x[:, t]\nreturn x", "KL107"),
        ("torch.cuda.synchronize()\nreturn x", "KL108"),
        ("d = x[:, None] - mask[None]\nreturn d.pow(2).sum(-1)", "KL113"),
        ("d = x.unsqueeze(1) - mask.unsqueeze(0)\nreturn torch.norm(d, dim=-1)", "KL113"),
        ("return x + torch.zeros(x.shape)", "KL120"),
        ("return x + torch.arange(4).cuda()", "KL121"),
        ("return x * torch.tensor(3.0, device=x.device)", "KL122"),
        ("return nn.ReLU()(x)", "KL123"),
        ("y = x.expand(4, 4)\ny[0] = 1\nreturn y", "KL125"),
        ("y = x.expand(4, 4)\ny.add_(1)\nreturn y", "KL125"),
        ("return x.cuda()", "KL126"),
        ("return x.to(torch.float64)", "KL130"),
        ("p = F.softmax(x, dim=-1)\nreturn torch.log(p)", "KL132"),
        ("return x.softmax(-1).log()", "KL132"),
        ("return torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)", "KL133"),
        ("return (1 + x).log()", "KL134"),
        ("return torch.log(1 + torch.exp(x))", "KL134"),
        ("return x.exp() - 1", "KL135"),
        ("return F.logsigmoid(x) + torch.sigmoid(x).log()", "KL137"),
        ("return torch.log(torch.sum(torch.exp(x), dim=1))", "KL138"),
        ("return x != float('nan')", "KL139"),
        ("return F.binary_cross_entropy(torch.sigmoid(x), mask)", "KL140"),
        ("p = torch.softmax(x, -1)\nreturn F.cross_entropy(p, mask)", "KL140"),
        ("return x.pow(2).mean() - x.mean().square()", "KL141"),
    ],
)
def test_a_fault_in_a_forward_is_found(body: str, code: str) -> None:
    assert code in in_forward(body)


def test_a_method_that_forward_calls_is_part_of_it() -> None:
    text = (
        "class M(nn.Module):\n    def forward(self, x):\n        return self.scale(x)\n\n"
        "    def scale(self, x):\n        return x / x.max().item()\n\n"
        "    def describe(self, x):\n        return x.unsqueeze(0).max().item()\n"
    )
    assert [finding.range.start_line for finding in findings(text)] == [9]


def test_a_module_class_is_seen_through_a_base_of_the_file() -> None:
    text = (
        "class Base(nn.Module):\n    pass\n\n"
        "class M(Base):\n    def forward(self, x):\n        return x / x.sum().item()\n"
    )
    assert found(text) == ["KL101"]


def test_a_function_under_a_pragma_counts_as_a_forward() -> None:
    text = "# kernel-lsp: x=f32[4]\ndef f(x):\n    return x.unsqueeze(0).max().item()\n"
    assert found(text) == ["KL101"]


def test_imports_by_other_names_are_understood() -> None:
    text = (
        "import torch as th\nfrom torch import softmax, log\n\ndef f(x: th.Tensor):\n    return log(softmax(x, -1))\n"
    )
    assert found(text, header="") == ["KL132"]


@pytest.mark.parametrize("annotation", ["Tensor", "torch.Tensor", '"Tensor"', "Tensor | None", 'Float[Tensor, "n d"]'])
def test_tensors_are_known_by_annotation(annotation: str) -> None:
    assert "KL101" in found(f"def f(x: {annotation}) -> Tensor:\n    return x / x.max().item()\n")


def test_the_gain_of_a_chain_counts_tensors_moved() -> None:
    function = "# kernel-lsp: x=f32[4], y=f32[4]\ndef f(x: Tensor, y: Tensor) -> Tensor:\n"
    finding = findings(f"{function}    return torch.exp(x * y + 1) - y\n")[0]
    # x*y reads 2 and writes 1, +1 reads 1 and writes 1, exp the same, -y reads 2 and writes 1; fused: x, y, result
    assert "4 pointwise operations" in finding.message
    assert "about 10 tensors" in finding.message
    assert "moves 3: up to 3.3x" in finding.message


# --- places and fixes


def test_columns_count_code_points() -> None:
    line = "    s = 'äöü𝄞'; return x / x.max().item()\n"
    finding = findings(f"def f(x: Tensor) -> Tensor:\n{line}")[0]
    assert line[finding.range.start_column : finding.range.end_column] == "x.max().item()"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_any_line_end_gives_the_same_place(end: str) -> None:
    text = (HEADER + "def f(x: Tensor) -> Tensor:\n    return x / x.max().item()\n").replace("\n", end)
    (finding,) = pytorch.check(text)
    assert (finding.range.start_line, finding.range.start_column, finding.range.end_column) == (5, 15, 29)


def test_a_byte_order_mark_shifts_only_the_first_line() -> None:
    text = "\ufeffimport torch; w = torch.log(1 + torch.ones(3))\nv = torch.log(1 + torch.ones(3))\n"
    places = [(f.range.start_line, f.range.start_column) for f in pytorch.check(text)]
    assert places == [(0, 19), (1, 4)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return torch.log(F.softmax(x, dim=1))", "return F.log_softmax(x, dim=1)"),
        ("return torch.log(torch.sigmoid(x))", "return F.logsigmoid(x)"),
        ("return torch.log(1 + torch.exp(x))", "return F.softplus(x)"),
        ("return torch.log(torch.exp(x).sum(1, keepdim=True))", "return torch.logsumexp(x, 1, keepdim=True)"),
        ("return x.exp() / x.exp().sum(-1, keepdim=True)", "return torch.softmax(x, dim=-1)"),
        ("return x + torch.zeros(4,).to(x.device)", "return x + torch.zeros(4, device=x.device)"),
        (
            "return x + torch.zeros(4, dtype=x.dtype).to(x.device)",
            "return x + torch.zeros(4, dtype=x.dtype, device=x.device)",
        ),
        ("return x.unsqueeze(1).repeat(1, n, 1)", "return x.unsqueeze(1).expand(-1, n, -1)"),
    ],
)
def test_a_fix_writes_what_is_meant(before: str, after: str) -> None:
    text = HEADER + f"def f(x: Tensor, n: int) -> Tensor:\n    {before}\n"
    fix = next(fix for finding in pytorch.check(text) for fix in finding.fixes)
    assert apply_fix(text, fix).splitlines()[-1].strip() == after


def test_a_softmax_is_not_rewritten_when_its_input_has_changed_since() -> None:
    text = "def f(x: Tensor) -> Tensor:\n    e = torch.exp(x)\n    x = x + 1\n    return e / e.sum(-1, keepdim=True)\n"
    (finding,) = findings(text)
    assert (finding.code, finding.fixes) == ("KL133", ())


def test_random_numbers_are_not_moved_to_another_device_by_a_fix() -> None:
    (finding,) = findings("def f(x: Tensor) -> Tensor:\n    return x + torch.randn(4).to(x.device)\n")
    assert (finding.code, finding.fixes) == ("KL121", ())


# --- text under edit


@pytest.mark.parametrize(
    "broken",
    ["def g(:\n    pass\n", "y = (1,\n", "class C(nn.Module):\n    def forward(self, x):\n        x.\n", "if x\n"],
)
def test_a_fault_elsewhere_does_not_hide_a_finding(broken: str) -> None:
    good = "def f(x: Tensor) -> Tensor:\n    return x / x.max().item()\n"
    assert "KL101" in found(f"{good}\n{broken}")
    assert "KL101" in found(f"{broken}\n{good}")


def test_a_line_under_edit_costs_only_itself() -> None:
    text = "class M(nn.Module):\n    def forward(self, x):\n        y = x.\n        return x / x.max().item()\n"
    (finding,) = findings(text)
    assert (finding.code, finding.range.start_line) == ("KL101", 7)


def test_a_parse_is_reused_only_for_its_own_text() -> None:
    tree = pytorch.parse("import torch\n")
    text = HEADER + "v = torch.log(1 + torch.ones(3))\n"
    assert pytorch.check(text, tree=tree) == pytorch.check(text, tree=pytorch.parse(text)) != ()


def test_moving_a_function_moves_its_findings() -> None:
    text = HEADER + "def f(x: Tensor) -> Tensor:\n    return torch.log(1 + x)\n"
    before, after = pytorch.check(text), pytorch.check("\n\n" + text)
    assert [finding.range.start_line for finding in after] == [finding.range.start_line + 2 for finding in before]
    assert apply_fix("\n\n" + text, after[0].fixes[0]) == "\n\n" + apply_fix(text, before[0].fixes[0])


def test_what_is_kept_of_a_method_depends_on_its_class() -> None:
    method = "    def forward(self, x):\n        return self.scale(x)\n"
    plain = f"class M(nn.Module):\n    def scale(self, x):\n        return x.unsqueeze(0).max().item()\n\n{method}"
    assert found(plain) == ["KL101"]
    assert found(plain.replace("return self.scale(x)", "return x")) == []


# --- below: what the tests share


def findings(text: str, header: str = HEADER) -> tuple[RuleFinding, ...]:
    return pytorch.check(header + text)


def found(text: str, header: str = HEADER) -> list[str]:
    return [finding.code for finding in findings(text, header)]


def in_forward(body: str) -> list[str]:
    text = "class M(nn.Module):\n    def forward(self, x: Tensor, mask: Tensor):\n" + textwrap.indent(body, " " * 8)
    return found(text + "\n")


# --- what a parameter without an annotation is


@pytest.mark.parametrize(
    "text",
    [
        "def mask(n, where):\n    m = torch.ones(n, n, device=where)\n    if n > 3:\n        m *= 2\n    return m\n",
        "def table(length, dim):\n    if dim % 2:\n        raise ValueError\n    return torch.zeros(length, dim)\n",
        "def rate(value):\n    t = torch.tensor(value)\n    return t if value > 3 else -t\n",
        "def joined(parts):\n    for part in parts:\n        check(part)\n    return torch.cat(parts)\n",
        "def contracted(rule, x):\n    y = torch.einsum(rule, x)\n    return y if rule else x\n",
        "def scaled(config, x):\n    return torch.exp(config.scale) * x if config else x\n",
    ],
)
def test_a_size_a_number_or_a_list_is_not_taken_for_a_tensor(text: str) -> None:
    assert found(text) == []


def test_a_parameter_inside_of_arithmetic_is_a_tensor_where_a_function_takes_only_those() -> None:
    text = "def gelu(x):\n    return 0.5 * x * (1.0 + torch.tanh(0.79 * (x + 0.04 * x * x * x)))\n"
    assert found(text) == ["KL110"]
    assert found("def spread(x):\n    return torch.sqrt((x ** 2).mean(0) - x.mean(0) ** 2)\n") == ["KL141"]


def test_an_item_of_a_list_that_is_put_together_is_a_tensor() -> None:
    loop = "    for part in parts:\n        total += part.item()\n"
    text = f"def total(parts):\n    total = 0.0\n{loop}    print(torch.cat(parts))\n"
    assert found(text) == ["KL105"]


def test_a_list_of_losses_keeps_their_graphs() -> None:
    loop = "def run(model, batches, losses):\n    for x, y in batches:\n        loss = F.mse_loss(model(x), y)\n"
    kept = f"{loop}        loss.backward()\n        losses.append(loss)\n"
    (finding,) = pytorch.check(HEADER + kept)
    assert finding.code == "KL157"
    fixed = apply_fix(HEADER + kept, finding.fixes[0])
    assert "losses.append(loss.detach())" in fixed
    assert pytorch.check(fixed) == ()


def test_what_a_sampler_hands_out_at_its_end_may_be_on_the_cpu() -> None:
    body = "def sample(x: Tensor) -> Tensor:\n    y = x.clamp(-1, 1)\n    return y.cpu()\n"
    assert found(f"@torch.no_grad()\n{body}") == []
    assert found(body) == ["KL101"]
