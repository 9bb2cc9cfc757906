"""Check that proposed pragmas say what a target's code requires of its inputs, and agree with each other."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from kernel_lsp.source.inference.pragma_proposal import Example, Signature, propose
from kernel_lsp.source.pragma import PragmaLine, parse_pragma
from kernel_lsp.source.python_file import FunctionNode, parse_python

NORM = """
class Norm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        self.weight = nn.Parameter(torch.ones(dim))
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
"""


def check(text: str, *expected: str, symbol: str = "f", pragma: str = "", example: Example | None = None) -> None:
    """Each of the expected items, ``dim=64`` or ``x=f32[8, 4]``, is proposed."""
    source = parse_python(dedent(text), "m.py")
    node = source.definition(symbol)
    owner = node if isinstance(node, ast.ClassDef) else None
    function = source.inherited(owner, "forward") if owner is not None else node
    assert isinstance(function, FunctionNode)
    given = parse_pragma([PragmaLine(pragma, 1)] if pragma else [])
    signature = Signature(source, function, owner, given, source.definition("get_init_inputs") is not None)
    found = propose(signature, example or Example())
    items = {f"{name}={value}" for part in (found.init, found.inputs, found.sizes) for name, value in part.items()}
    assert not {*expected} - items, items


def module(constructor: str, forward: str, parameters: str = "dim", inputs: str = "x") -> str:
    lines = constructor.replace("; ", "\n        ")
    head = f"class f(nn.Module):\n    def __init__(self, {parameters}):\n        {lines}\n"
    return f"{head}    def forward(self, {inputs}):\n        return {forward}\n"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("grown", ["n = n ** 64", "n = [*n, *n]", "n = n * n"])
def test_a_number_or_list_that_grows_without_bound_is_unknown(grown: str) -> None:
    start = "[1]" if "[" in grown else "2"
    constructor = f"n = {start}; {'; '.join([grown] * 40)}; self.n = n; self.a = nn.Linear(dim, 8)"
    check(module(constructor, "self.a(x)"), "x=f32[4096, 1024]")


@pytest.mark.parametrize(
    ("constructor", "forward", "expected"),
    [
        ("self.a = nn.Linear(dim, 4 * dim)", "self.a(x)", "x=f32[4096, 1024]"),
        ("self.a = nn.LayerNorm(dim)", "self.a(x)", "x=f32[4096, 1024]"),
        ("self.a = nn.Conv1d(dim, 8, 3)", "self.a(x)", "x=f32[8, 1024, 1024]"),
        ("self.a = nn.Conv2d(3, dim, 3)", "F.relu(self.a(x))", "x=f32[8, 3, 56, 56]"),
        ("self.a = nn.Conv3d(3, dim, 3)", "self.a(x)", "x=f32[2, 3, 16, 32, 32]"),
        ("self.a = nn.BatchNorm2d(32)", "self.a(x)", "x=f32[8, 32, 56, 56]"),
        ("self.a = nn.GroupNorm(4, 32)", "self.a(x)", "x=f32[8, 32, 56, 56]"),
        ("self.a = nn.InstanceNorm1d(32)", "self.a(x)", "x=f32[8, 32, 1024]"),
        ("self.a = nn.MaxPool2d(2)", "self.a(x)", "x=f32[8, 64, 56, 56]"),
        ("self.a = nn.LSTM(dim, 64, batch_first=True)", "self.a(x)[0]", "x=f32[8, 512, 1024]"),
        ("self.a = nn.Embedding(num_embeddings=500, embedding_dim=dim)", "self.a(x)", "x=i64[8, 512] in [0, 500)"),
        ("self.register_buffer('a', torch.zeros(dim))", "x + self.a", "x=f32[4096, 1024]"),
        ("self.a = nn.Parameter(torch.linspace(0.5, 1.5, dim))", "x * self.a", "x=f32[4096, 1024]"),
        ("self.a = nn.Parameter(torch.arange(dim) / 8.0)", "x * self.a", "x=f32[4096, 1024]"),
        ("self.a = nn.Parameter(torch.eye(dim))", "x @ self.a", "x=f32[4096, 1024]"),
        ("self.a = nn.Parameter(torch.empty(dim).uniform_(-1, 1))", "x * self.a", "x=f32[4096, 1024]"),
        ("self.a = nn.Parameter(0.02 * torch.randn(8, dim))", "F.linear(x, self.a)", "x=f32[4096, 1024]"),
        ("self.a = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))", "x * self.a", "x=f32[4096, 3]"),
        ("self.a = nn.Parameter(torch.full((dim,), 0.1))", "x * self.a", "x=f32[4096, 1024]"),
        ("self.a = nn.ParameterList([nn.Parameter(torch.ones(dim))])", "x * self.a[0]", "x=f32[4096, 1024]"),
        ("self.a = nn.utils.weight_norm(nn.Linear(dim, 3))", "self.a(x)", "x=f32[4096, 1024]"),
        ("self.a = nn.ModuleDict({'one': nn.Linear(dim, 3)})", "self.a['one'](x)", "x=f32[4096, 1024]"),
        ("self.h = 2 * dim; self.a = nn.Linear(self.h, 3)", "self.a(F.gelu(x))", "x=f32[4096, 2048]"),
        ("self.a = nn.Sequential(nn.ReLU(), nn.Linear(dim, 3))", "self.a(x)", "x=f32[4096, 1024]"),
        ("self.a = nn.ModuleList([nn.Linear(dim, dim) for _ in 'ab'])", "[a(x) for a in self.a]", "x=f32[4096, 1024]"),
        ("self.a = nn.MultiheadAttention(dim, 8)", "self.a(x, x, x)", "x=f32[8, 512, 1024]"),
    ],
)  # fmt: skip
def test_layers_fix_the_dims_of_what_they_get(constructor: str, forward: str, expected: str) -> None:
    check(module(constructor, forward), "dim=1024", expected)


@pytest.mark.parametrize(
    ("signature", "result", "expected"),
    [
        ("x, weight", "F.layer_norm(x, (64,), weight)", ("x=f32[4096, 64]", "weight=f32[64]")),
        ("x, w, b", "F.linear(x, w, b)", ("x=f32[1024, 4096]", "w=f32[4096, 4096]", "b=f32[4096]")),
        ("a, b", "a @ b.transpose(-2, -1)", ("a=f32[1024, 4096]", "b=f32[4096, 4096]")),
        ("x, y", "x + torch.relu(y)", ("x=f32[1024, 4096]", "y=f32[1024, 4096]")),
        ("x, t", "F.cross_entropy(x, t)", ("x=f32[1024, 4096]", "t=i64[1024] in [0, 4096)")),
        ("ids, table", "F.embedding(ids, table)", ("ids=i64[8, 512] in [0, 1000)", "table=f32[1000, 4096]")),
        ("table, where", "table[where]", ("table=f32[1024, 4096]", "where=i64[1024, 4096] in [0, 1024)")),
        ("x, w", "F.conv2d(x, w)", ("x=f32[8, 64, 56, 56]", "w=f32[8, 64, 3, 3]")),
        ("q, k, v", "F.scaled_dot_product_attention(q, k, v)", tuple(f"{n}=f32[2, 8, 512, 64]" for n in "qkv")),
        ("a, b", "torch.einsum('bhd,bkd->bhk', a, b)", ("a=f32[8, 512, 1024]", "b=f32[8, 512, 1024]")),
    ],
)
def test_functions_make_dims_of_their_arguments_agree(signature: str, result: str, expected: tuple[str, ...]) -> None:
    check(f"def f({signature}):\n    return {result}\n", *expected)


def test_a_parameter_of_the_module_fixes_the_last_dim() -> None:
    check(NORM, "dim=1024", "x=f32[4096, 1024]", symbol="Norm")


def test_a_given_constructor_argument_holds_for_the_inputs() -> None:
    check(NORM, "dim=96", "x=f32[4096, 96]", symbol="Norm", pragma="init: dim=96")


def test_a_call_in_the_file_gives_the_constructor_s_arguments() -> None:
    check(f"{NORM}\nD = 32\nnet = Norm(dim=2 * D)\n", "dim=64", "x=f32[4096, 64]", symbol="Norm")


OUTER = """
class Layer(nn.Module):
    def __init__(self, width, eps):
        self.norm = Norm(width, eps)
    def forward(self, x):
        b, t, d = x.shape
        return self.norm(x)
class Net(nn.Module):
    def __init__(self{parameters}):
        self.layers = nn.ModuleList(Layer(width, 1e-5) for _ in range(3))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""


def test_modules_of_the_file_that_hold_the_target_give_its_arguments_and_ranks() -> None:
    text = NORM + OUTER.format(parameters=", width=48")
    check(text, "dim=48", "x=f32[8, 512, 48]", symbol="Norm")
    check(text + "net = Net(80)\n", "dim=80", "x=f32[8, 512, 80]", symbol="Norm")


def test_a_module_whose_own_arguments_are_unknown_gives_none() -> None:
    check(NORM + OUTER.format(parameters=", width"), "dim=1024", "x=f32[4096, 1024]", symbol="Norm")


def test_get_init_inputs_gives_them_too() -> None:
    check(f"{NORM}\ndef get_init_inputs():\n    return [48]\n", "x=f32[4096, 48]", symbol="Norm")


def test_modules_of_the_file_are_followed_into() -> None:
    outer = module("self.norm = Norm(size)", "self.norm(x) + y", "size=80", "x, y")
    check(NORM + outer, "x=f32[4096, 80]", "y=f32[4096, 80]")


def test_an_assertion_and_an_unpacked_shape_are_requirements() -> None:
    check("def f(x):\n    b, t, d = x.shape\n    assert d == 128\n    return x\n", "x=f32[8, 512, 128]")


def test_a_dim_named_in_an_annotation_gets_the_size_that_the_code_requires() -> None:
    check(module("self.a = nn.Linear(48, 3)", "self.a(x)", "k=1", "x: Float[Tensor, 'B D']"), "B=1024", "D=48")


def test_given_tensors_fix_the_others() -> None:
    check("def f(x, y):\n    return x * y\n", "y=f32[7, 5]", pragma="x=f32[7, 5]")


def test_other_examples_vary_what_is_open_alone() -> None:
    check(NORM, "dim=1024", "x=f32[8, 512, 1024]", symbol="Norm", example=Example(rank=3))


@pytest.mark.parametrize(
    "body",
    ["return f(x)", "while f(x): x = f(x)", " + ".join(["x"] * 800), "return x ** 9 ** 9 ** 9", "x = 1 // 0"],
)
def test_code_that_cannot_be_followed_costs_nothing(body: str) -> None:
    check(f"def f(x):\n    {body}\n", "x=f32[1024, 4096]")


def test_positions_stay_below_the_table_that_they_index() -> None:
    constructor = "self.token = nn.Embedding(500, 32); self.position = nn.Embedding(length, 32)"
    forward = "self.token(x) + self.position(torch.arange(x.shape[1], device=x.device))"
    check(module(constructor, forward, "length=64"), "x=i64[8, 64] in [0, 500)")
    before = module("self.token = nn.Embedding(500, 32); self.position = nn.Embedding(length, 32)", "0", "length=64")
    lines = "t = torch.arange(x.size(1))\n        return self.token(x) + self.position(t)"
    check(before.replace("return 0", lines), "x=i64[8, 64] in [0, 500)")


def test_submodules_of_other_files_are_followed(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text(
        "from torch import nn\nWIDTH = 3\n\n\nclass Stem(nn.Module):\n    def __init__(self, dim):\n"
        "        self.conv = nn.Conv2d(WIDTH, dim, 4)\n    def forward(self, image):\n        return self.conv(image)\n"
    )
    text = "from torch import nn\n{}\n\n\nclass Net(nn.Module):\n    def __init__(self, dim=32):\n"
    text += "        self.stem = {}(dim)\n    def forward(self, x):\n        return self.stem(x)\n"
    for line, name in (("from .layers import Stem", "Stem"), ("import layers", "layers.Stem")):
        path = tmp_path / "model.py"
        path.write_text(text.format(line, name))
        source = parse_python(path.read_text(), "model.py", origin=path)
        owner = source.definition("Net")
        assert isinstance(owner, ast.ClassDef)
        function = source.inherited(owner, "forward")
        assert isinstance(function, FunctionNode)
        found = propose(Signature(source, function, owner, parse_pragma([]), has_init_inputs=False), Example())
        assert found.inputs == {"x": "f32[8, 3, 56, 56]"}


@pytest.mark.parametrize("call", ["f(x, 1.5)", "f(x, t=1.5)"])
def test_a_number_in_a_call_of_the_file_is_no_tensor(call: str) -> None:
    check(f"def f(x, t):\n    return torch.softmax(x / t, -1)\n\n{call}\n", "t=1.5", "x=f32[1024, 4096]")


def test_a_tensor_in_a_call_of_the_file_stays_one() -> None:
    check("def f(x, y):\n    return x + y\n\nf(torch.ones(3), a)\n", "y=f32[1024, 4096]")


def test_a_name_asks_the_file_system_once_whatever_the_number_of_imports_and_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "layers.py").write_text("class Base:\n    pass\n")
    text = "import torch\nfrom torch import nn\nfrom layers import Base\n" * 50
    source = parse_python(text, "m.py", origin=tmp_path / "m.py")
    asked: list[Path] = []
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: asked.append(path) or is_file(path))
    for name in ("torch.nn.Linear", "torch.nn.ReLU", "nn.Module", "Base", "Base") * 20:
        found = source.imported_class(name)
        assert (found is not None) == (name == "Base")
    assert len(asked) == len({*asked}) < 20


@pytest.mark.parametrize(
    "code",
    ["F.mse_loss(x, target)", "nn.BCEWithLogitsLoss()(x, target)", "target.lerp(x, 0.1)", "(x * target).sum()"],
)
def test_a_target_that_is_computed_with_is_no_index(code: str) -> None:
    check(f"def f(x, target):\n    return {code}", "target=f32[1024, 4096]")
    check("def f(x, target):\n    return F.nll_loss(x, target)", "target=i64[1024] in [0, 4096)")


def test_an_argument_that_is_a_module_has_no_example() -> None:
    source = parse_python(module("self.a = inner", "x + self.a(x)", "inner: nn.Module"), "m.py")
    owner = source.definition("f")
    assert isinstance(owner, ast.ClassDef)
    function = source.inherited(owner, "forward")
    assert isinstance(function, FunctionNode)
    assert propose(Signature(source, function, owner, parse_pragma([]))).objects == ("inner",)


def test_a_class_inside_of_a_class_is_followed() -> None:
    inner = "    class Inner(nn.Module):\n        def __init__(self, n):\n            self.w = torch.ones(n)\n"
    inner += "        def forward(self, x):\n            return x * self.w\n"
    text = module("self.a = f.Inner(48)", "self.a(x)", "n").replace("(nn.Module):\n", f"(nn.Module):\n{inner}", 1)
    check(text, "x=f32[4096, 48]")


CONFIG = """
@dataclass
class Sizes:
    heads: int = 4

@dataclass
class Config:
    width: int
    eps: float = 1e-5
    sizes: Sizes = field(default_factory=Sizes)
"""


@pytest.mark.parametrize("parameter", ["config: Config", "config: 'Config'", "config", "*, config: Config"])
def test_an_argument_that_is_a_dataclass_is_constructed(parameter: str) -> None:
    constructor = "self.a = nn.Linear(config.width * config.sizes.heads, 8)"
    expected = ("config=Config(width=1024)", "x=f32[4096, 4096]")
    check(CONFIG + module(constructor, "self.a(x)", parameter), *expected)


def test_what_a_dataclass_computes_of_its_fields_is_followed() -> None:
    text = "@dataclass\nclass Config:\n    width: int = 48\n    hidden: int = None\n"
    text += "    size: int = field(init=False)\n    def __post_init__(self):\n        self.size = self.width // 4\n"
    text += "        if self.hidden is None:\n            self.hidden = 4 * self.width\n"
    lines = "self.a = nn.Linear(c.hidden, c.size)"
    check(text + module(lines, "self.a(x)", "c: Config"), "c=Config()", "x=f32[4096, 192]")


def test_an_argument_whose_class_no_pragma_can_name_is_an_object() -> None:
    text = CONFIG.replace("Config", "_Config") + module("self.a = nn.Linear(c.width, 8)", "self.a(x)", "c: _Config")
    check(text.replace("    width: int\n", "    kind: ClassVar[str]\n    width: int\n"), "c=_Config(width=1024)")
    source = parse_python(text.replace("_Config", "config"), "m.py")
    owner = source.definition("f")
    assert isinstance(owner, ast.ClassDef)
    function = source.inherited(owner, "forward")
    assert isinstance(function, FunctionNode)
    assert propose(Signature(source, function, owner, parse_pragma([]))).objects == ("c",)


def test_an_object_has_the_fields_that_its_class_inherits() -> None:
    text = CONFIG + "\n@dataclass\nclass Deep(Config):\n    layers: tuple = (64, 128)\n\n"
    lines = (
        "s = [config.width, *config.layers]; self.a = nn.Sequential(*[nn.Linear(a, b) for a, b in zip(s[:-1], s[1:])])"
    )
    check(text + module(lines, "self.a(x)", "config: Deep"), "config=Deep(width=1024)", "x=f32[4096, 1024]")
    half_typed = "class A(B):\n    n: int\n\nclass B(A):\n    pass\n"
    check(half_typed + module("self.w = torch.ones(a.n)", "x * self.w", "a: A"), "a=A(n=1024)")


def test_a_construction_of_the_pragma_fixes_sizes() -> None:
    text = CONFIG + module("self.a = nn.Linear(config.width, 8)", "self.a(x)", "config: Config")
    check(text, "x=f32[4096, 96]", pragma="init: config=Config(width=96, sizes=Sizes(heads=2))")


@pytest.mark.parametrize(
    ("parameters", "constructor", "expected"),
    [
        (
            "sizes: List[int]",
            "self.a = nn.Linear(sizes[0], sizes[2])",
            ("sizes=[1024, 1024, 1024]", "x=f32[4096, 1024]"),
        ),
        ("widths", "self.a = nn.Linear(widths[-1], 8); n = len(widths)", ("widths=[1024, 1024]", "x=f32[4096, 1024]")),
        ("shape: tuple[int, int]", "a, b = shape; self.a = nn.Linear(b, a)", ("shape=(1024, 1024)",)),
        ("strides: tuple[int, ...]", "self.a = nn.Linear(8, strides[0])", ("strides=(1,)",)),
        ("dim: Optional[int], gain: float | None", "self.a = nn.Linear(dim, 8)", ("dim=1024", "gain=0.5")),
        ("limit: 'Union[None, float]'", "self.a = nn.Linear(8, 8)", ("limit=0.5",)),
        ("options", "self.a = nn.Linear(options['dim'], 8)", ("options=1024",)),
    ],
)
def test_lists_and_what_may_be_none_have_examples(parameters: str, constructor: str, expected: tuple[str, ...]) -> None:
    check(module(constructor, "self.a(x)", parameters), *expected)


def test_parts_of_a_dim_and_indices_fit_their_tensor() -> None:
    turned = "a, b = x.chunk(2, dim=-1)\n    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)"
    check(f"def f(x, cos, sin):\n    {turned}", "x=f32[4096, 2048]", "cos=f32[4096, 1024]", "sin=f32[4096, 1024]")
    check("def f(x, idx):\n    return torch.gather(x, 1, idx)", "x=f32[1024, 4096]", "idx=i64[1024, 4096] in [0, 4096)")


def test_names_of_vision_modules_have_sizes_that_fit_each_other() -> None:
    constructor = "self.a = nn.Conv2d(in_chans, channels // reduction, patch_size)"
    parameters = "in_chans, channels, reduction, patch_size, img_size, head_dim"
    expected = ("in_chans=3", "channels=64", "reduction=4", "patch_size=16", "img_size=224", "head_dim=64")
    check(module(constructor, "self.a(x)", parameters), *expected, "x=f32[8, 3, 56, 56]")


@pytest.mark.parametrize(
    ("forward", "dtype"),
    [("x + mask", "f32"), ("x.unknown() + mask", "f32"), ("torch.where(mask, x, 0.0)", "bool")],
)
def test_a_mask_that_is_added_is_no_boolean(forward: str, dtype: str) -> None:
    check(f"def f(x, mask, gain: Optional[float]):\n    return {forward}", f"mask={dtype}[1024, 4096]", "gain=0.5")


def function(parameters: str, *lines: str) -> str:
    return f"def f({parameters}):\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("parameters", "lines", "expected"),
    [
        (
            "a, b",
            ("wh = torch.min(a[:, None, 2:], b[None, :, 2:]) - torch.max(a[:, None, :2], b[None, :, :2])", "return wh"),
            "a=f32[4096, 4]; b=f32[4096, 4]",
        ),
        ("boxes", ("return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])",), "boxes=f32[4096, 4]"),
        ("boxes", ("a, b, c = boxes.unbind(-1)", "return torch.stack([a - b, b + c], dim=-1)"), "boxes=f32[4096, 3]"),
        (
            "x, mask",
            ("m = mask.unsqueeze(-1)", "return (x * m).sum(1) / m.sum(1)"),
            "x=f32[8, 512, 1024]; mask=f32[8, 512]",
        ),
        ("x", ("s = x.mean((2, 3))", "return x * s[:, :, None, None]"), "x=f32[8, 64, 56, 56]"),
        ("x", ("return x[:, :, 1:] - x[:, :, :-1]",), "x=f32[8, 512, 1024]"),
        ("x, y", ("return x[..., ::2] * y",), "x=f32[4096, 2048]; y=f32[4096, 1024]"),
        ("x, y", ("return x.flatten(1) * y.flatten(1)",), "x=f32[1024, 4096]; y=f32[1024, 4096]"),
        (
            "logits, labels",
            ("return logits.gather(-1, labels[..., None]).squeeze(-1)",),
            "logits=f32[1024, 4096]; labels=i64[1024] in [0, 4096)",
        ),
        (
            "h, lengths",
            ("m = torch.arange(h.shape[1])[None, :] < lengths[:, None]", "return (h * m[..., None]).sum(1)"),
            "h=f32[8, 512, 1024]; lengths=f32[8]",
        ),
        (
            "image, target",
            ("if image.shape != target.shape:", "    raise TypeError", "return unknown(image, target)"),
            "image=f32[1024, 4096]; target=f32[1024, 4096]",
        ),
        (
            "a, b",
            ("if len(a.shape) < 3 or a.shape[-3] != 3:", "    raise ValueError", "return unknown(a, b)"),
            "a=f32[3, 512, 1024]; b=f32[1024, 4096]",
        ),
        ("x", ("assert x.ndim == 4 and x.size(1) == 2", "return unknown(x)"), "x=f32[8, 2, 56, 56]"),
        ("x", ("if not (x.dim() in (3, 4)):", "    raise ValueError", "return unknown(x)"), "x=f32[8, 64, 56, 56]"),
        ("p, q", ("return torch.cdist(p, q).min(2)[0]",), "p=f32[1024, 4096]; q=f32[1024, 4096]"),
        ("t, dim", ("return t[:, None] * torch.arange(dim // 2)[None]",), "t=f32[4096]; dim=1024"),
        (
            "h, edges",
            ("src, dst = edges", "return (h[src] * h[dst]).sum(-1)"),
            "h=f32[1024, 4096]; edges=i64[2, 4096] in [0, 1024)",
        ),
        (
            "x, gamma",
            ("return gamma[:, :, None, None] * x",),
            "x=f32[8, 64, 56, 56]; gamma=f32[8, 64]",
        ),
        ("scores, boxes", ("return scores[..., None] * boxes",), "scores=f32[8, 512]; boxes=f32[8, 512, 1024]"),
        ("tokens, q", ("return tokens @ q",), "tokens=f32[1024, 4096]; q=f32[4096, 4096]"),
        (
            "src, index, n: int",
            ("return torch.zeros(n, src.size(1)).index_add_(0, index, src)",),
            "index=i64[1024] in [0, 1000); n=1024",
        ),
        ("x", ("v, i = torch.sort(x, dim=-1)", "return torch.where(v > 0, v, i)"), "x=f32[1024, 4096]"),
        ("x, s", ("a, b, c, d = x.shape", "return x * s.view(1, -1, 1, 1)"), "x=f32[8, 64, 56, 56]; s=f32[64]"),
        (
            "q, k, bias",
            ("a = q @ k.transpose(-2, -1) + bias.unsqueeze(0)", "b, h, n, _ = a.shape", "return a"),
            "q=f32[8, 64, 56, 56]",
        ),
        ("x, axis", ("return x.softmax(axis)",), "x=f32[1024, 4096]; axis=-1"),
        ("x, p", ("return F.dropout(x, p)",), "x=f32[1024, 4096]; p=0.0"),
    ],
)
def test_indices_reductions_and_joins_fix_ranks_and_sizes(
    parameters: str, lines: tuple[str, ...], expected: str
) -> None:
    check(function(parameters, *lines), *expected.split("; "))


def test_a_place_of_a_sequence_is_no_column_of_a_matrix() -> None:
    text = module("self.n, self.h = nn.LayerNorm(dim), nn.Linear(dim, 10)", "self.h(self.n(x)[:, 0])")
    check(text, "x=f32[8, 512, 1024]")


def test_a_parameter_of_images_says_that_there_is_a_batch_of_them() -> None:
    text = module("self.w = nn.Parameter(torch.ones(dim))", "self.w[:, None, None] * (x - x.mean(1, keepdim=True))")
    check(text, "x=f32[8, 1024, 56, 56]")


def test_a_view_and_a_layers_weight_keep_their_dims() -> None:
    text = module(
        "self.e = nn.Embedding(8, dim)", "z.permute(0, 2, 3, 1).view(-1, z.shape[1]) @ self.e.weight.t()", inputs="z"
    )
    check(text, "z=f32[8, 1024, 56, 56]")
