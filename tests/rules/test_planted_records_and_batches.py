"""Planted defects in PyTorch code of several functions: records of results, named masks, batches that a loop takes
apart, and the number of classes behind a name, each beside correct code of the same form."""

from __future__ import annotations

import pytest

from tests.rules.found_codes import pytorch_codes as codes

RECORDS = """
import torch
from dataclasses import dataclass
from typing import NamedTuple

HEAD
    risk: torch.Tensor
    norm: torch.Tensor


def evaluate(model, batch) -> Report:
    out = model(batch)
    risk = torch.nn.functional.mse_loss(out, batch)
    return Report(risk, norm=out.norm())


def fit(model, batches, optimizer):
    seen = {}
    for batch in batches:
        report = evaluate(model, batch)
        report.risk.backward()
        optimizer.step()
        BODY
    return seen
"""
TUPLE, DATA = "class Report(NamedTuple):", "@dataclass\nclass Report:"


@pytest.mark.parametrize(
    ("head", "body", "is_found"),
    [
        (TUPLE, "seen['risk'] = report.risk.item()", True),
        (DATA, "seen['norm'] = report.norm.item()", True),
        (TUPLE, "for name, value in report._asdict().items(): seen[name] = value.item()", True),
        (DATA, "for value in {'risk': report.risk}.values(): seen['risk'] = float(value)", True),
        (TUPLE, "for name, value in report._asdict().items(): seen[name] = value.detach()", False),
        (DATA, "seen['risk'] = report.risk.detach()", False),
    ],
)
def test_fields_of_records_are_followed(head: str, body: str, is_found: bool) -> None:
    assert ("KL105" in codes(RECORDS.replace("HEAD", head).replace("BODY", body))) is is_found


MASKED = """
import torch.nn.functional as F


def depth_loss(predicted, depth, INDEX):
    return F.l1_loss(predicted[INDEX], depth[INDEX])
"""


@pytest.mark.parametrize(
    ("index", "is_found"),
    [("visible", True), ("is_valid", True), ("kept_points", True), ("order", False), ("first", False)],
)
def test_a_parameter_that_is_named_a_mask_is_one(index: str, is_found: bool) -> None:
    assert ("KL106" in codes(MASKED.replace("INDEX", index))) is is_found


def test_a_list_of_outputs_that_a_number_indexes_is_no_tensor() -> None:
    assert "KL106" not in codes(
        "import torch.nn.functional as F\n\n\ndef last_loss(outputs, label, keep: int):\n"
        "    return F.l1_loss(outputs[keep], label)\n"
    )


PAIRS = """
import torch


def compare(left, right, weights):
    found = []
    for COUNTED:
        found.append(VALUE)
    return torch.RESULT(found)
"""


@pytest.mark.parametrize(
    ("counted", "value", "result", "is_found"),
    [
        ("a, b in zip(left, right)", "a @ b.T", "stack", True),
        ("a, b in zip(left, right)", "torch.matmul(a, b.t()) * 0.5", "stack", True),
        ("a, b in zip(left, right)", "a @ b.T", "cat", False),
        ("a, b in zip(left, right)", "a @ weights", "stack", False),
        ("a, b in zip(left, right)", "a.sum()", "stack", False),
    ],
)
def test_products_per_element_of_a_batch_are_one(counted: str, value: str, result: str, is_found: bool) -> None:
    text = PAIRS.replace("COUNTED", counted).replace("VALUE", value).replace("RESULT", result)
    assert ("KL107" in codes(text)) is is_found


def test_a_comprehension_of_products_is_one() -> None:
    text = "import torch\n\n\ndef compare(left, right):\n    return torch.stack([ROW for a, b in zip(left, right)])\n"
    assert "KL107" in codes(text.replace("ROW", "a @ b.T"))
    assert "KL107" not in codes(text.replace("ROW", "a + b"))


@pytest.mark.parametrize(("size", "is_found"), [("151_936", True), ("64", False)])
@pytest.mark.parametrize("name", ["N_TOKENS", "Config.n_tokens"])
def test_a_name_says_how_many_classes_a_loss_has(name: str, size: str, is_found: bool) -> None:
    text = (
        f"import torch.nn.functional as F\n\nN_TOKENS = {size}\n\n\nclass Config:\n    n_tokens = {size}\n\n\n"
        f"def loss_of(model, ids, label):\n    scores = model(ids)\n"
        f"    return F.cross_entropy(scores.view(-1, {name}), label.view(-1))\n"
    )
    assert ("KL161" in codes(text)) is is_found


PICKED = """
import torch
from transformers import AutoModelForKIND


def chosen(head, body, ids, index):
    hidden = body(ids)
    BODY
    return picked.squeeze(-1)


class Reward(torch.nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.rank_head = base, torch.nn.Linear(64, 8)

    def forward(self, ids, index):
        return chosen(self.base.GIVEN, self.base.model, ids, index)
"""


@pytest.mark.parametrize(
    ("kind", "given", "body", "is_found"),
    [
        ("CausalLM", "lm_head", "picked = head(hidden).log_softmax(-1).gather(-1, index)", True),
        (
            "CausalLM",
            "lm_head",
            "x = head(hidden[:, :-1]).float() / 0.7\n    p = x.log_softmax(-1)\n    picked = p.gather(-1, index)",
            True,
        ),
        ("CausalLM", "norm", "p = torch.log_softmax(head(hidden).logits, -1)\n    picked = p.gather(-1, index)", True),
        ("CausalLM", "rank_head", "picked = head(hidden).log_softmax(-1).gather(-1, index)", False),
        (
            "TokenClassification",
            "norm",
            "p = torch.log_softmax(head(hidden).logits, -1)\n    picked = p.gather(-1, index)",
            False,
        ),
        ("CausalLM", "lm_head", "x = head(hidden)\n    picked = x.gather(-1, index) - x.logsumexp(-1, True)", False),
    ],
)
def test_one_log_probability_of_a_vocabulary_is_read(kind: str, given: str, body: str, is_found: bool) -> None:
    text = PICKED.replace("KIND", kind).replace("GIVEN", given).replace("BODY", body)
    assert ("KL161" in codes(text)) is is_found


WAIT = """
import torch


@torch.inference_mode()
def upscale(model, frames):
    model = model.cuda().eval()
    out = torch.empty(4, 3, pin_memory=True)
    for i in range(4):
        y = model(frames[i].cuda(non_blocking=True))
        COPY
    torch.cuda.synchronize()
    return out
"""


@pytest.mark.parametrize(
    ("copy", "is_found"),
    [
        ("out[i].copy_(y, non_blocking=True)", False),
        ("out = y.to('cpu', non_blocking=True)", False),
        ("out[i].copy_(y.clamp(0, 1))", True),
    ],
)
def test_a_wait_completes_copies_to_the_host(copy: str, is_found: bool) -> None:
    assert ("KL108" in codes(WAIT.replace("COPY", copy))) is is_found


SCORES = """
import torch


@torch.no_grad()
def score(model, loader):
    found, total = [], 0
    for x, y in loader:
        rank = model(x.cuda()).argsort(-1, descending=True)
        hit = rank[:, :3].eq(y.cuda()[:, None])
        BODY
    return found, total
"""


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("total += hit.sum().cpu().numpy()", True),
        ("n = hit.any(-1).float().sum()\n        total += int(n.cpu())", True),
        ("found.append(hit.float().mean().tolist())", True),
        ("found.append(rank.cpu().numpy())", False),
        ("found.append(hit.any(-1).sum(0).cpu())", False),
        ("found += rank[:, 0].tolist()", False),
    ],
)
def test_totals_of_a_batch_are_no_output(body: str, is_found: bool) -> None:
    assert ("KL105" in codes(SCORES.replace("BODY", body))) is is_found


TERMS = """
import torch
from torch.nn import functional as F


def improve(policy, optimizer, data, schedule, weight=0.5):
    seen = 0.0
    for step, part in enumerate(data):
        rate = schedule(step)
        gain = (policy.logp(part) * part.gain).mean()
        miss = -0.5 * (policy.worth(part) - part.back).pow(2).mean()
        near = F.mse_loss(policy.worth(part), part.back)
        LOSS
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        BODY
    return seen
"""


@pytest.mark.parametrize(
    ("loss", "body", "is_found"),
    [
        ("total = weight * near - gain", "seen += float(gain)", True),
        ("total = -(miss + rate * near)", "seen += near.item()", True),
        ("total = gain - weight * miss", "seen = {'miss': float(miss)}", True),
        ("total = rate * near - gain", "seen += float(rate)", False),
        ("total = rate * near - gain", "seen += float(weight)", False),
        ("total = rate * near - gain", "seen += gain.detach()", False),
        ("total = rate * near - gain", "if step % 50 == 0: seen += float(gain)", False),
    ],
)
def test_terms_of_a_loss_are_on_the_device(loss: str, body: str, is_found: bool) -> None:
    assert ("KL105" in codes(TERMS.replace("LOSS", loss).replace("BODY", body))) is is_found


@pytest.mark.parametrize(("made", "is_found"), [(")", False), (", device='cuda')", True), (").cuda()", True)])
def test_numbers_drawn_on_the_cpu_need_no_wait(made: str, is_found: bool) -> None:
    text = """
import torch


def fit(model, texts, optimizer):
    for _ in range(100):
        places = torch.randint(9, (4,)MADE.tolist()
        model(texts[places]).mean().backward()
        optimizer.step()
"""
    assert ("KL105" in codes(text.replace("MADE", made))) is is_found


SHARED = """
import torch
from torch import nn
N_WORDS = 200_000


class Out(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.rows = TABLE

    def forward(self, x):
        return COMPUTED


class Loss(nn.Module):
    def forward(self, scores, target):
        return -torch.log_softmax(scores, -1).gather(-1, target).mean()


class Task(nn.Module):
    def __init__(self, n_tags):
        super().__init__()
        self.words, self.tags = nn.Embedding(N_WORDS, 64), nn.Linear(64, n_tags)
        self.out = Out(self.GIVEN)
        self.loss = Loss()

    def forward(self, x, target):
        return self.loss(self.out(x), target)
"""


@pytest.mark.parametrize(
    ("table", "computed", "given", "is_found"),
    [
        ("table.weight", "nn.functional.linear(x, self.rows)", "words", True),
        ("table.weight", "x @ self.rows.T", "words", True),
        ("table", "torch.matmul(x, self.rows.weight.t())", "words", True),
        ("table.weight", "nn.functional.linear(x, self.rows)", "tags", False),
        ("table", "self.rows(x)", "tags", False),
    ],
)
def test_a_module_is_given_logits_of_a_shared_table(table: str, computed: str, given: str, is_found: bool) -> None:
    text = SHARED.replace("TABLE", table).replace("COMPUTED", computed).replace("GIVEN", given)
    assert ("KL161" in codes(text)) is is_found


@pytest.mark.parametrize(("given", "is_found"), [("non_blocking=True", False), ("", True)])
def test_an_input_from_pinned_memory_has_the_device_of_the_host(given: str, is_found: bool) -> None:
    text = "import torch\n\n\ndef scale(model, x: torch.Tensor):\n    return torch.relu(x.cuda(GIVEN)) * 2\n"
    assert ("KL126" in codes(text.replace("GIVEN", given))) is is_found
