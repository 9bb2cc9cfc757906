"""Check faults that lie across the border of a function or method: a caller or a callee of the file decides."""

from __future__ import annotations

import time

import pytest

from kernel_lsp.rules import pytorch
from kernel_lsp.rules.pytorch.program.functions import MAX_LINES

HEADER = """import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.fc = nn.Linear(d, d)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.drop(self.fc(x))

"""
TRAINER = """class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.device = torch.device("cuda")
        self.model = Net().to(self.device)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)"""
"""Stands for `TRAINER` in the cases."""
CASES = [
    (
        "KL105",
        """
class Base:
    def fit(self, loader):
        for batch in loader:
            self.opt.zero_grad()
            loss = self.step(batch)
            loss.backward()
            self.opt.step()
            self.after(loss)  # here

    def after(self, loss):
        self.total += loss.item()

class Classifier(Base):
    def step(self, batch):
        x, y = batch
        return F.cross_entropy(self.model(x), y)
""",
    ),
    (
        "KL105",
        """
def batch_accuracy(logits, y):
    correct = (logits.argmax(-1) == y).sum()
    return correct.item() / y.numel()  # here

def train(model, opt, loader):
    for x, y in loader:
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        acc = batch_accuracy(logits, y)
""",
    ),
    (
        "KL105",
        """
TRAINER

    def _update_scale(self, norm):
        if norm > self.cfg.max_norm:  # here
            self.skipped += 1
            return False
        return True

    def fit(self, loader):
        for x, y in loader:
            self.opt.zero_grad()
            loss = F.mse_loss(self.model(x), y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            if self._update_scale(norm):
                self.opt.step()
""",
    ),
    (
        "KL105",
        """
TRAINER

    def _is_bad(self, loss):
        return not torch.isfinite(loss)  # here

    def fit(self, loader):
        for x, y in loader:
            self.opt.zero_grad()
            loss = F.mse_loss(self.model(x), y)
            if self._is_bad(loss):
                continue
            loss.backward()
            self.opt.step()
""",
    ),
    (
        "KL105",
        """
TRAINER

    def _diverged(self, loss):
        return (loss > 10 * self.best).any()

    def _one(self, x, y):
        loss = F.mse_loss(self.model(x), y)
        bad = self._diverged(loss)
        if bad:  # here
            return None
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()

    def fit(self, loader):
        for x, y in loader:
            self._one(x, y)
""",
    ),
    (
        "KL150",
        """
def embed(model, batch):
    return F.normalize(model(batch), dim=-1)

def evaluate(model, loader, index):
    model.eval()  # here
    hits = 0
    for x, y in loader:
        sims = embed(model, x) @ index.T
        hits += (sims.argmax(-1) == y).sum()
    model.train()
    return hits.item()
""",
    ),
    (
        "KL150",
        """
TRAINER

    def validate(self, loader):
        total = torch.zeros((), device=self.device)
        n = 0
        for x, y in loader:
            total += self._loss(x, y)  # here
            n += 1
        return total.item() / n

    def _loss(self, x, y):
        return F.mse_loss(self.model(x), y)

    def fit(self, loader, val):
        for x, y in loader:
            self.opt.zero_grad()
            loss = self._loss(x, y)
            loss.backward()
            self.opt.step()
        print(self.validate(val))
""",
    ),
    (
        "KL173",
        """
TRAINER

    def _set_eval(self):
        self.model.eval()  # here

    @torch.no_grad()
    def evaluate(self, loader):
        self._set_eval()
        return torch.stack([F.mse_loss(self.model(x), y) for x, y in loader]).mean().item()

    def fit(self, loader, val):
        self.model.train()
        for epoch in range(self.cfg.epochs):
            for x, y in loader:
                self.opt.zero_grad()
                loss = F.mse_loss(self.model(x), y)
                loss.backward()
                self.opt.step()
            print(self.evaluate(val))
""",
    ),
    (
        "KL173",
        """
TRAINER

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.train(False)  # here
        return torch.stack([F.mse_loss(self.model(x), y) for x, y in loader]).mean().item()

    def fit(self, loader, val):
        self.model.train()
        for epoch in range(self.cfg.epochs):
            for x, y in loader:
                self.opt.zero_grad()
                loss = F.mse_loss(self.model(x), y)
                loss.backward()
                self.opt.step()
            print(self.evaluate(val))
""",
    ),
    (
        "KL157",
        """
TRAINER

    def _step(self, x, y):
        loss = F.mse_loss(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return {"loss": loss, "n": len(x)}

    def fit(self, loader):
        history = []
        for x, y in loader:
            out = self._step(x, y)
            history.append(out["loss"])  # here
""",
    ),
    (
        "KL157",
        """
TRAINER

    def _track(self, loss):
        self.ema = 0.99 * self.ema + 0.01 * loss  # here

    def fit(self, loader):
        for x, y in loader:
            loss = F.mse_loss(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self._track(loss)
""",
    ),
    (
        "KL157",
        """
TRAINER

    def _losses(self, x, y):
        out = self.model(x)
        rec = F.mse_loss(out, y)
        reg = out.pow(2).mean()
        return rec + 0.1 * reg, rec, reg

    def fit(self, loader):
        recs = []
        for x, y in loader:
            loss, rec, reg = self._losses(x, y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            recs.append(rec)  # here
""",
    ),
    (
        "KL131",
        """
def channel_stats(images):
    mean = np.array([0.485, 0.456, 0.406])
    std = np.array([0.229, 0.224, 0.225])
    return mean, std

class Normalizer(nn.Module):
    def __init__(self, images):
        super().__init__()
        mean, std = channel_stats(images)
        self.register_buffer("mean", torch.from_numpy(mean))  # here
        self.register_buffer("std", torch.from_numpy(std))

    def forward(self, x):
        return (x - self.mean) / self.std
""",
    ),
    (
        "KL131",
        """
TRAINER

    def _noise(self, shape):
        return np.random.randn(*shape) * 0.1

    def step(self, x):
        noise = torch.from_numpy(self._noise(x.shape)).to(self.device)  # here
        return self.model(x + noise)
""",
    ),
    (
        "KL130",
        """
class Schedule:
    def __init__(self, steps, device):
        betas = torch.linspace(1e-4, 0.02, steps, dtype=torch.float64)
        self.alphas = torch.cumprod(1 - betas, 0).to(device)  # here

    def add_noise(self, x, noise, t):
        a = self.alphas[t].view(-1, 1)
        return a.sqrt() * x + (1 - a).sqrt() * noise
""",
    ),
    (
        "KL121",
        """
TRAINER

    def _mask(self, n):
        return torch.ones(n, n).triu(1).bool()

    def step(self, x, y):
        mask = self._mask(x.size(1)).to(self.device)  # here
        loss = F.mse_loss(self.model(x).masked_fill(mask, 0), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()

    def fit(self, loader):
        for x, y in loader:
            self.step(x, y)
""",
    ),
    (
        "KL121",
        """
TRAINER

    def _permute(self, x):
        order = torch.randperm(x.size(0))
        return x[order.to(x.device)]  # here

    def fit(self, loader):
        for x, y in loader:
            loss = F.mse_loss(self.model(self._permute(x)), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
""",
    ),
    (
        "KL114",
        """
TRAINER

    def _collect(self, z):
        self.bank = torch.cat([self.bank, z.detach()], dim=0)  # here

    def run(self, loader):
        self.bank = torch.empty(0, 64, device=self.device)
        with torch.no_grad():
            for x in loader:
                self._collect(self.model(x))
""",
    ),
    (
        "KL114",
        """
def append(buffer, new):
    return new if buffer is None else torch.cat((buffer, new), dim=1)

@torch.no_grad()
def rollout(model, x, steps):
    frames = None
    for _ in range(steps):
        x = model(x)
        frames = append(frames, x.unsqueeze(1))  # here
    return frames
""",
    ),
    (
        "KL172",
        """
TRAINER

        self.head = nn.Linear(64, 2).to(self.device)
        self.head_opt = torch.optim.SGD(self.head.parameters(), lr=0.1, fused=True)

    def _backward(self, loss):
        self.opt.zero_grad()
        loss.backward()

    def step(self, x, y):
        loss = F.cross_entropy(self.head(self.model(x)), y)
        self._backward(loss)
        self.opt.step()
        self.head_opt.step()  # here

    def fit(self, loader):
        for x, y in loader:
            self.step(x, y)
""",
    ),
    (
        "KL172",
        """
TRAINER

    def step(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.opt.step()  # here

    def fit(self, loader):
        for epoch in range(10):
            for x, y in loader:
                self.step(x, y)
""",
    ),
    (
        "KL160",
        """
def scaled_scores(q, k):
    return torch.matmul(q, k.transpose(-1, -2)) / q.size(-1) ** 0.5

def masked_softmax(scores, mask):
    return F.softmax(scores.masked_fill(mask, -1e9), dim=-1)

class Attn(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x, mask):
        q, k, v = self.q(x), self.k(x), self.v(x)
        p = masked_softmax(scaled_scores(q, k), mask)
        return torch.matmul(p, v)  # here
""",
    ),
    (
        "KL160",
        """
class Attn(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.drop = nn.Dropout(0.1)

    def probs(self, q, k, bias):
        s = torch.baddbmm(bias, q, k.mT, alpha=q.size(-1) ** -0.5)
        return self.drop(s.softmax(-1))

    def forward(self, x, bias):
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.bmm(self.probs(q, k, bias), v)  # here
""",
    ),
    (
        "KL161",
        """
class Cfg:
    vocab_size: int = 50257
    dim: int = 768

class LM(nn.Module):
    def __init__(self, cfg: Cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab_size, cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab_size, bias=False)

    def forward(self, ids):
        return self.head(self.embed(ids))

class LMTrainer:
    def __init__(self, cfg):
        self.model = LM(cfg).cuda()

    def _nll(self, logits, targets):
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())  # here

    def step(self, ids):
        logits = self.model(ids[:, :-1])
        return self._nll(logits, ids[:, 1:])
""",
    ),
    (
        "KL162",
        """
def sgd_update(p, lr):
    p.data.add_(p.grad, alpha=-lr)
    p.grad = None

def train(model, loader, lr):
    for x, y in loader:
        F.mse_loss(model(x), y).backward()
        for p in model.parameters():
            sgd_update(p, lr)  # here
""",
    ),
    (
        "KL162",
        """
def blend(avg, new, decay):
    avg.mul_(decay).add_(new, alpha=1 - decay)

class Ema:
    def __init__(self, model, decay):
        self.model, self.decay = model, decay

    @torch.no_grad()
    def update(self, source):
        for a, b in zip(self.model.parameters(), source.parameters()):
            blend(a, b, self.decay)  # here
""",
    ),
    (
        "KL164",
        """
class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.proj = nn.Linear(d, d)

    def forward(self, x):
        x = cast(x, torch.bfloat16)
        return self.proj(x)  # here

def cast(x, dtype):
    return x.to(dtype)

def step(model, x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return model(x).mean()
""",
    ),
    (
        "KL174",
        """
class Gate(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.fc = nn.Linear(d, d)
        self.temperature = 1.0

    def forward(self, x):
        return torch.sigmoid(self.fc(x) / self.temperature)  # here

def train(loader, opt, steps):
    gate = Gate(64).cuda()
    model = torch.compile(gate)
    for step, (x, y) in enumerate(loader):
        gate.temperature = max(0.1, 1 - step / steps)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    ),
    (
        "KL107",
        """
class Pool(nn.Module):
    def _pool_one(self, h, n):
        return h[:n].mean(0)

    def forward(self, h, lengths):
        return torch.stack([self._pool_one(h[i], lengths[i]) for i in range(h.size(0))])  # here
""",
    ),
    (
        "KL107",
        """
class Router(nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.experts = nn.ModuleList(experts)

    def _run(self, token, e):
        return self.experts[e](token)

    def forward(self, x, choice):
        y = torch.empty_like(x)
        for i in range(x.size(0)):  # here
            y[i] = self._run(x[i], choice[i])
        return y
""",
    ),
    (
        "KL127",
        """
def causal_mask(n, device):
    return torch.triu(torch.ones(n, n, device=device, dtype=torch.bool), diagonal=1)

class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.fc = nn.Linear(d, d)

    def forward(self, x):
        m = causal_mask(x.size(1), x.device)  # here
        return F.scaled_dot_product_attention(x, x, x, attn_mask=~m)

class Stack(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.layers = nn.ModuleList([Layer(d) for _ in range(12)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
""",
    ),
    (
        "KL165",
        """
from torch.utils.data import DataLoader

def make_loader(ds):
    return DataLoader(ds, batch_size=64, shuffle=True)  # here

def train(ds, model, opt):
    loader = make_loader(ds)
    for x, y in loader:
        loss = F.mse_loss(model(x.cuda()), y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    ),
    (
        "KL108",
        """
TRAINER

    def _cleanup(self):
        torch.cuda.empty_cache()  # here

    def fit(self, loader):
        for x, y in loader:
            loss = F.mse_loss(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self._cleanup()
""",
    ),
    (
        "KL163",
        """
class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 64, 3)
        self.b = nn.Conv2d(64, 64, 3)

    def forward(self, x):
        return self.b(self.a(x).relu())

def build(cfg):
    return Cnn()

class T2:
    def __init__(self, cfg):
        self.device = torch.device("cuda")
        self.model = build(cfg).to(self.device)  # here

    def loss(self, x, y):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return F.cross_entropy(self.model(x).mean((2, 3)), y)
""",
    ),
    (
        "KL157",
        """
class Memory:
    def __init__(self):
        self.items = []

    def add(self, z, y):
        self.items.append(z)

def train(model, opt, loader):
    memory = Memory()
    for x, y in loader:
        z = model(x)
        loss = F.cross_entropy(z, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        memory.add(z, y)  # here
""",
    ),
    (
        "KL157",
        """
class Meter:
    def __init__(self):
        self.total = 0.0
        self.n = 0

    def update(self, value, n=1):
        self.total += value * n
        self.n += n

def train(model, opt, loader):
    meter = Meter()
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        meter.update(loss)  # here
""",
    ),
    (
        "KL157",
        """
class T:
    def train_step(self, x, y):
        loss = F.mse_loss(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss

    def train(self, loader):
        total = 0
        for x, y in loader:
            loss = self.train_step(x, y)
            total += loss  # here
        return total
""",
    ),
    (
        "KL150",
        """
class Service:
    def __init__(self, path):
        self.model = self._load(path)

    def _load(self, path):
        net = Net()
        net.load_state_dict(torch.load(path, weights_only=True))
        net.eval()
        return net.cuda()

    def __call__(self, x):
        return self.model(x).softmax(-1)  # here
""",
    ),
    (
        "KL131",
        """
class Scale(nn.Module):
    def __init__(self, d):
        super().__init__()
        betas = np.linspace(1e-4, 0.02, 1000)
        alphas = np.cumprod(1.0 - betas)
        self.register_buffer("sqrt_alpha", torch.tensor(np.sqrt(alphas)))  # here
""",
    ),
    (
        "KL174",
        """
def train(net, opt, loader, steps):
    net = torch.compile(net, dynamic=False)
    for step, (x, y) in enumerate(loader):
        temperature = max(0.1, 1.0 - step / steps)
        loss = F.mse_loss(net(x, temperature), y)  # here
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    ),
]
STEP = """
class Trainer:
    def __init__(self):
        self.model = Net().to("cuda")
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.history = []

    def step(self, x, y):
        loss = F.mse_loss(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return RESULT

    def fit(self, loader):
        for epoch in range(9):
            self.model.train()
            for i, (x, y) in enumerate(loader):
                loss = self.step(x, y)
                BODY
            print(self.validate(loader))

    @torch.no_grad()
    def validate(self, loader):
        self.model.eval()
        return torch.stack([F.mse_loss(self.model(x), y) for x, y in loader]).mean().item()

    def log(self, loss):
        print(loss.item())
"""


def found(text: str, *codes: str) -> set[tuple[str, int]]:
    return {(f.code, f.range.start_line) for f in pytorch.check(HEADER + text) if not codes or f.code in codes}


@pytest.mark.parametrize(("code", "text"), CASES, ids=range(len(CASES)))
def test_a_fault_across_functions_is_found_at_its_line(code: str, text: str) -> None:
    text = text.replace("TRAINER", TRAINER)
    lines = (HEADER + text).splitlines()
    expected = {(code, line) for line, each in enumerate(lines) if each.endswith("# here")}
    assert expected <= found(text, code)


@pytest.mark.parametrize(
    ("result", "body", "codes"),
    [
        ("loss.detach()", "self.history.append(loss)", set()),
        ("loss", "self.history.append(loss)", {"KL157"}),
        ("loss", "self.history.append(loss.detach())", set()),
        ("loss.detach()", "if i % 100 == 0:\n                    self.log(loss)", set()),
        ("loss.detach()", "self.log(loss)", {"KL105"}),
        ("loss.item()", "self.history.append(loss)", {"KL105"}),
    ],
)
def test_what_a_step_returns_decides_over_what_its_loop_may_do(result: str, body: str, codes: set[str]) -> None:
    assert {code for code, _ in found(STEP.replace("RESULT", result).replace("BODY", body))} == codes


def test_a_mode_that_a_helper_sets_back_is_set_back() -> None:
    text = STEP.replace("RESULT", "loss.detach()").replace("BODY", "pass")
    assert found(text) == set()
    assert {code for code, _ in found(text.replace("            self.model.train()\n", ""))} == {"KL173"}


def test_gradients_that_a_caller_switches_off_are_off() -> None:
    text = (
        "def score(model, x):\n    model.eval()\n    return model(x).argmax(-1).tolist()\n\n"
        "def main(model, xs):\n    with torch.no_grad():\n        return score(model, xs)\n"
    )
    assert found(text) == set()
    assert {code for code, _ in found(text.replace("with torch.no_grad():", "if xs:"))} == {"KL150"}


def test_an_edit_of_a_callee_reaches_what_was_found_in_its_caller() -> None:
    text = STEP.replace("RESULT", "loss").replace("BODY", "self.history.append(loss)")
    before = found(text, "KL157")
    assert found(text.replace("return loss", "return loss.detach()"), "KL157") == set() != before
    assert found(text, "KL157") == before


def test_a_long_file_is_checked_function_by_function() -> None:
    text = STEP.replace("RESULT", "loss").replace("BODY", "self.history.append(loss)")
    assert found(text + "\n" * MAX_LINES, "KL157") == set() != found(text, "KL157")


BESIDE = """
class Attention(nn.Module):
    def forward(self, q, k, v):
        weights = (q @ k.transpose(-2, -1) * 0.1).softmax(-1)
        return RESULT

def ranks(scores: torch.Tensor) -> torch.Tensor:
    return scores.double().mean(0).cpu()

def observe(clean, noise):
    return clean + torch.from_numpy(np.random.normal(0, 1, clean.shape))

@torch.no_grad()
def main(args, model, loader):
    for x in loader:
        np.save("x.npy", model(x).cpu().numpy())
    best = ranks(model(x))
    for k in args.ranks:
        print((best < k).float().mean().item())
"""


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ("return RESULT", "return weights @ v", "KL160"),
        ("    best = ranks(model(x))", "        best = ranks(model(x))", "KL130"),
        ("no_grad()", "enable_grad()", "KL105"),
        ("in args.ranks", "in loader", "KL105"),
        ("clean.shape))", "clean.shape)).cuda()", "KL131"),
    ],
)
def test_what_a_good_file_does_is_no_fault_there(before: str, after: str, code: str) -> None:
    good = BESIDE.replace("np.random.normal(0, 1, clean.shape)", "np.zeros(4, dtype=np.float64) + np.ones(4)")
    assert found(good.replace("RESULT", "weights @ v, weights")) == set()
    assert code in {each for each, _ in found(BESIDE.replace(before, after).replace("RESULT", "weights @ v, weights"))}


INVERTER = """
class Inverter:
    def __init__(self, decoder, series):
        self.decoder = decoder.eval().requires_grad_(False)
        self.data = torch.from_numpy(np.asarray(series, dtype=np.float64)CAST).to("cuda")

    def objective(self, z, target):
        return (self.decoder(z) - target).square().mean()

    def solve(self, z, target):
        loss = self.objective(z, target)
        STEP
        return loss
"""


@pytest.mark.parametrize(
    ("cast", "step", "code"), [("", "loss.backward()", "KL130"), (".astype(np.float32)", "pass", "KL150")]
)
def test_host_statistics_and_losses_of_a_frozen_model_are_no_faults(cast: str, step: str, code: str) -> None:
    good = INVERTER.replace("CAST", ".astype(np.float32)").replace("STEP", "loss.backward()")
    assert found(good) == set()
    assert code in {each for each, _ in found(INVERTER.replace("CAST", cast).replace("STEP", step))}


def test_micro_steps_under_no_sync_reduce_once() -> None:
    text = (
        "model = nn.parallel.DistributedDataParallel(Net())\n\ndef micro(x, accumulate):\n"
        "    loss = model(x).mean() / accumulate\n    loss.backward()\n"
    )
    assert {code for code, _ in found(text)} == {"KL175"}
    assert found(text.replace("    loss.b", "    with model.no_sync():\n        loss.b")) == set()


def test_code_that_is_compiled_later_is_read_anew() -> None:
    text = (
        "class Gate(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.t = 1.0\n\n"
        "    def forward(self, x):\n        return torch.sigmoid(x / self.t)\n\n"
        "def train(loader, steps):\n    gate = Gate().cuda()\n    model = gate\n"
        "    for step, x in enumerate(loader):\n        gate.t = max(0.1, 1 - step / steps)\n        model(x)\n"
    )
    assert "KL174" not in {code for code, _ in found(text)}
    assert "KL174" in {code for code, _ in found(text.replace("model = gate", "model = torch.compile(gate)"))}


def test_a_name_that_is_set_many_times_is_followed_once() -> None:
    text = "def f(x):\n" + "    x = g(x) + x.item()\n" * 400 + "    return x\n\ndef g(x):\n    return f(x)\n"
    start = time.process_time()
    found(text + "\ndef train(loader):\n    for x in loader:\n        loss = f(x)\n        loss.backward()\n")
    assert time.process_time() - start < 5.0


def test_functions_that_call_themselves_cost_no_more_than_others() -> None:
    calls = (
        "    return [walk(x[0]), walk(x[1]), walk(x[2]), walk(x[3]), walk(x[4]), walk(x[5]), walk(x[6]), walk(x[7])]\n"
    )
    start = time.process_time()
    assert found("def walk(x):\n    x = x.eval()\n    y = x(3).item()\n" + calls) <= {("KL150", 17)}
    assert time.process_time() - start < 2.0
