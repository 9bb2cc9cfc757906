"""Check loops of training and inference: planted defects that are found, and good code that is not."""

from __future__ import annotations

import textwrap

import pytest

from kernel_lsp.rules import cuda, pytorch
from kernel_lsp.rules.finding import apply_fix

HEADER = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\n\n"


def codes(body: str, head: str = "def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask, model):") -> set[str]:
    text = f"{HEADER}{head}\n{textwrap.indent(body, '    ')}\n"
    return {found.code for found in pytorch.check(text) if found.code >= "KL160" or found.code == "KL105"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("s = torch.matmul(q, k.transpose(-2, -1)) / 8\nreturn torch.matmul(F.softmax(s, -1), v)", "KL160"),
        ("s = (q @ k.mT).masked_fill(mask, -1e9)\nw = F.dropout(s.softmax(-1), 0.1)\nreturn w @ v", "KL160"),
        ("w = (q @ k.mT) * 0.1\nw = w.masked_fill(mask, -1e9)\nw = torch.softmax(w, -1)\nreturn w @ v", "KL160"),
        ("w = torch.einsum('id,jd->ij', q, k).softmax(-1)\nreturn torch.einsum('ij,jd->id', w, v)", "KL160"),
        ("return F.cross_entropy(q.view(-1, 50257), k)", "KL161"),
        ("return F.cross_entropy(model.lm_head(q).float(), k)", "KL161"),
        ("for p in model.parameters():\n    p.data.add_(p.grad, alpha=-0.1)", "KL162"),
        (
            "class Net(nn.Module):\n    a, b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)\nreturn Net().cuda().half()",
            "KL163",
        ),
        ("with torch.autocast('cuda'):\n    return model(q.to(torch.bfloat16))", "KL164"),
        ("for x in q:\n    if torch.isnan(x).any():\n        x.zero_()", "KL105"),
        ("return torch.optim.Adam(model.parameters(), foreach=False)", "KL162"),
        ("net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))\nreturn net.to('cuda', torch.float16)", "KL163"),
        ("with torch.autocast('cuda'):\n    return F.linear(q.half(), k)", "KL164"),
        ("total = 0\nfor x in q:\n    _, loss = model(x)\n    total += loss.item()", "KL105"),
        ("total = 0\nfor p in model.parameters():\n    total += p.grad.norm().item()", "KL105"),
        ("device = torch.device('cuda')\nfor x in q:\n    print(model(x.to(device)).mean().item())", "KL105"),
        ("t = torch.zeros(3, device='cuda')\nfor i in range(3):\n    print(t[i].item())", "KL105"),
    ],
)
def test_a_planted_defect_is_found(body: str, code: str) -> None:
    assert code in codes(body)


MODEL = """
class Model(nn.Module):
    def __init__(self, dim, vocab=SIZE):
        super().__init__()
        self.up = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, vocab)

    DECORATOR
    def forward(self, x, labels):
        logits = self.head(x)
        h = self.up(x.to(torch.bfloat16))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1)), h, self.pool(x)

    def pool(self, x):
        parts = []
        for t in range(x.shape[1]):
            parts.append(x[:, : t + 1].mean(1))
        for t in range(0, x.shape[1], 64):
            parts.append(x[:, t : t + 64].mean(1))
        n = x.norm()
        if n > 1.0:
            x = x / n
        return x, parts
"""


def model_findings(size: int, decorator: str) -> dict[str, int]:
    text = HEADER + MODEL.replace("SIZE", str(size)).replace("DECORATOR", decorator)
    return {found.code: found.range.start_line for found in pytorch.check(text)}


def test_a_module_is_read_with_its_constructor_and_its_decorators() -> None:
    lines = (HEADER + MODEL).splitlines()
    found = model_findings(50257, '@torch.autocast("cuda", dtype=torch.bfloat16)')
    assert "cross_entropy" in lines[found["KL161"]]
    assert "bfloat16" in lines[found["KL164"]]
    assert "range(x.shape[1])" in lines[found["KL107"]]
    assert "n > 1.0" in lines[found["KL102"]]


def test_a_small_vocabulary_and_no_autocast_have_no_finding() -> None:
    assert not {"KL161", "KL164"} & set(model_findings(512, ""))
    assert "KL164" not in model_findings(512, '@torch.autocast("cuda", enabled=False)')


def test_a_net_of_torchvision_under_autocast_wants_channels_last() -> None:
    text = HEADER + "import torchvision\n\nnet = torchvision.models.resnet50().cuda()\n"
    text += "with torch.autocast('cuda'):\n    net(torch.rand(1, 3, 8, 8))\n"
    assert "KL163" in {found.code for found in pytorch.check(text)}
    moved = text.replace(".cuda()", ".to('cuda', memory_format=torch.channels_last)")
    assert "KL163" not in {found.code for found in pytorch.check(moved)}


@pytest.mark.parametrize(
    "body",
    [
        "return F.scaled_dot_product_attention(q, k, v)",
        "return torch.softmax(q, -1) @ v",
        "return torch.softmax(q @ k, -1) @ v",
        "return F.cross_entropy(q.view(-1, 1000), k)",
        "for part in q.chunk(8):\n    F.cross_entropy(part.view(-1, 50257), k)",
        "return torch.optim.Adam(model.parameters(), fused=True)",
        "return torch.optim.SGD(model.parameters(), foreach=True)",
        "return nn.Conv2d(3, 8, 3).to('cuda', torch.float16)",
        "with torch.autocast('cuda', enabled=False):\n    return F.linear(q.half(), k)",
        "return F.linear(q.half(), k)",
        "with torch.autocast('cuda'):\n    return model(q.to('cuda'))",
        "return F.cross_entropy(model.lm_head(q), k)",
        "for p in model.parameters():\n    p.grad.mul_(0.5)",
        "for i, x in enumerate(q):\n    _, loss = model(x)\n    if i % 10 == 0:\n        print(loss.item())",
        "t = torch.zeros(3, device='cpu')\nfor i in range(3):\n    print(t[i].item())",
        "for i in range(3):\n    print(torch.empty((), dtype=torch.int64).random_().item())",
        "on_cpu = model.to('cpu')\nfor x in q:\n    print(on_cpu(x).mean().item())",
        "device = torch.device('cpu')\nfor x in q:\n    x = x.to(device)\n    print(model(x).mean().item())",
    ],
)
def test_good_code_has_no_finding(body: str) -> None:
    assert codes(body) == set()


KERNEL = """__global__ void k{n}(const float* x, float* out, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i];
}}
"""


def test_findings_of_one_code_on_many_lines_are_one_with_related_places() -> None:
    text = "".join(KERNEL.format(n=n) for n in range(4))
    (found,) = [each for each in cuda.check(text) if each.code == "KL240"]
    assert [place.start_line for place in found.related] == [4, 8, 12]
    assert "3 more places" in found.message
    assert [each.code for each in cuda.check(apply_fix(text, found.fixes[0]))] == []


def test_two_findings_of_one_code_stay_two() -> None:
    text = "".join(KERNEL.format(n=n) for n in range(2))
    assert [each.code for each in cuda.check(text)] == ["KL240", "KL240"]
