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
