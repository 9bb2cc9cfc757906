"""KL161 to KL164: manual code for training and inference that PyTorch provides faster."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.rules.pytorch.cost import MAX_STEPS, value_above
from kernel_lsp.rules.pytorch.declare import INFORMATION, declare, hit
from kernel_lsp.rules.pytorch.losses import loss_name
from kernel_lsp.rules.pytorch.scopes import Scope, keyword
from kernel_lsp.rules.rule import Hit

LARGE_VOCABULARY = 16_384
"""Minimum classes for which the logits of a whole batch outweigh the model's activations."""
_OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adagrad")
"""Optimizers of `torch.optim` with a `fused` implementation on CUDA."""
_HALF = ("half", "bfloat16")
_VISION_NETS = (
    "resnet",
    "resnext",
    "wide_resnet",
    "densenet",
    "mobilenet",
    "efficientnet",
    "convnext",
    "regnet",
    "vgg",
)
"""Prefixes of the convolutional nets in `torchvision.models`."""
_IN_PLACE = ("add_", "sub_", "addcdiv_", "addcmul_")
_AUTOCAST_OPERATIONS = ("matmul", "bmm", "mm", "linear", "conv1d", "conv2d", "conv3d", "addmm", "einsum")


@declare(
    "KL161",
    "loss-over-vocabulary",
    INFORMATION,
    needs=("cross_entropy CrossEntropyLoss criterion loss",),
    summary="A cross entropy over the logits of a large vocabulary",
    why="""
    The logits of all tokens, and their gradient, are the largest tensors of the step: 8,192 tokens times 128,256
    classes are 4.2 GB in f32, twice. Compute head and loss in chunks of tokens, or with a fused linear cross entropy.
    """,
    bad="""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4096, 128256, bias=False)

        def forward(self, x, labels):
            logits = self.head(x)
            return F.cross_entropy(logits.view(-1, 128256), labels.view(-1))
    """,
    good="""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4096, 1000, bias=False)

        def forward(self, x, labels):
            logits = self.head(x)
            return F.cross_entropy(logits.view(-1, 1000), labels.view(-1))
    """,
)
def loss_over_vocabulary(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        if scope.loop_around(call) is not None:
            continue  # the loop probably splits the tokens into chunks
        if loss_name(call, scope) == "cross_entropy" and call.args:
            size = max(_largest_number(scope.definition(call.args[0]), call.args[0]), _head_size(call.args[0], scope))
            if size >= LARGE_VOCABULARY:
                yield hit(scope, call, f"loss over {size} classes: compute head and loss in chunks, or fused")
            elif _is_upcast_head(call.args[0], scope):
                yield hit(
                    scope, call, "f32 copy of the logits of a vocabulary: compute head and loss in chunks, or fused"
                )


@declare(
    "KL162",
    "unfused-optimizer",
    INFORMATION,
    needs=(" ".join((*_OPTIMIZERS, "grad", "grads", "gradients")),),
    summary="An optimizer step without `fused` or `foreach`",
    why="""
    `fused=True` updates all parameters in a few kernels. Where a step is told not to use `foreach`, each parameter
    launches a dozen small kernels of its own. Parameters must be floating tensors on a GPU.
    """,
    bad="""
    import torch

    def optimizer_of(model):
        return torch.optim.AdamW(model.parameters(), lr=1e-3)
    """,
    good="""
    import torch

    def optimizer_of(model):
        return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    """,
)
def unfused_optimizer(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        head, _, name = scope.dotted(call.func).rpartition(".")
        is_unpacked = any(given.arg is None for given in call.keywords)
        if head != "torch.optim" or name not in _OPTIMIZERS or is_unpacked:
            continue
        foreach = keyword(call, "foreach")
        is_asked = keyword(call, "fused") is not None or (
            foreach is not None and not (isinstance(foreach, ast.Constant) and foreach.value is False)
        )
        if not is_asked:
            yield hit(scope, call, f"unfused optimizer step: `{name}(..., fused=True)` updates all in few kernels")
    for loop in () if _is_of_optimizer(scope) else scope.loops:
        update = _update_by_gradient(loop)
        if update is not None:
            message = "optimizer step by hand, several kernels per parameter: use `torch.optim` with `fused=True`"
            yield hit(scope, update, message)


@declare(
    "KL163",
    "missing-channels-last",
    INFORMATION,
    needs=("cuda to", "half bfloat16 autocast float16"),
    summary="A convolution net in half precision without `channels_last`",
    why="""
    Tensor cores compute convolutions in NHWC. With the default layout cuDNN transposes before and after. Convert the
    model and its inputs once: `.to(memory_format=torch.channels_last)`.
    """,
    bad="""
    import torch
    from torch import nn

    def build():
        model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3))
        return model.to("cuda", dtype=torch.bfloat16)
    """,
    good="""
    import torch
    from torch import nn

    def build():
        model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3))
        return model.to("cuda", dtype=torch.bfloat16, memory_format=torch.channels_last)
    """,
)
def missing_channels_last(scope: Scope) -> Iterator[Hit]:
    if "channels_last" in scope.module.text:
        return
    for call in scope.calls:
        is_half = any(word in scope.module.text for word in ("autocast", ".half()", "bfloat16", "float16"))
        if _is_vision_net(call, scope) and is_half and "cuda" in scope.module.text:
            yield hit(scope, call, "convolutions without `channels_last`: add `memory_format=torch.channels_last`")
    if scope.module.text.count("Conv2d(") < 2:
        return
    for call in scope.calls:
        if isinstance(call.func, ast.Attribute) and (_moves_in_half(call) or _moves_net(call, scope)):
            yield hit(scope, call, "convolutions without `channels_last`: add `memory_format=torch.channels_last`")


@declare(
    "KL164",
    "cast-under-autocast",
    INFORMATION,
    needs=("autocast", "half bfloat16 to"),
    summary="A cast that autocast does by itself",
    why="""
    Under `autocast` products and convolutions cast their own operands, weights once per region. A cast by hand in front
    of them changes nothing, and hides the dtype from the next reader.
    """,
    bad="""
    import torch

    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return torch.matmul(x.bfloat16(), weight)
    """,
    good="""
    import torch

    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return torch.matmul(x, weight)
    """,
)
def cast_under_autocast(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        is_operation = scope.function_name(call) in _AUTOCAST_OPERATIONS
        if not (is_operation or _is_model(call) or _is_layer(call, scope)) or not _is_autocast(call, scope):
            continue
        for argument in call.args:
            if isinstance(argument, ast.Call) and isinstance(argument.func, ast.Attribute):
                name, is_known = argument.func.attr, _is_model(call) or _takes_tensors(call, argument, scope)
                if is_known and (name in ("half", "bfloat16") or _is_half(argument)):
                    yield hit(scope, argument, f"redundant `.{name}()` under autocast: it casts operands itself")


# --- below: helpers of the rules


def _is_of_optimizer(scope: Scope) -> bool:
    """Return whether the code is a method of a `torch.optim.Optimizer`, which is where such a loop belongs, or of a
    class whose bases the file does not say."""
    classes = (node for node in ast.walk(scope.module.tree) if isinstance(node, ast.ClassDef))
    owner = next((each for each in classes if scope.node in each.body), None)
    return "self" in scope.parameters and (owner is None or bool(owner.bases))


def _update_by_gradient(loop: ast.stmt) -> ast.expr | None:
    """Return the in-place update of a parameter in a loop that reads its gradient: ``p.add_(p.grad, alpha=-lr)``."""
    if not isinstance(loop, ast.For):
        return None
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    attributes = [node for node in ast.walk(loop) if isinstance(node, ast.Attribute)]
    with_gradient = {ast.unparse(node.value) for node in attributes if node.attr == "grad"} & names
    if _zips_gradients(loop):
        with_gradient |= {target.id for target in ast.walk(loop.target) if isinstance(target, ast.Name)}
    for node in ast.walk(loop):
        updated: ast.expr | None = node.target if isinstance(node, ast.AugAssign) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _IN_PLACE:
            updated = node.func.value
        if updated is not None and ast.unparse(updated).removesuffix(".data") in with_gradient:
            return updated
    return None


def _zips_gradients(loop: ast.For) -> bool:
    """Return whether the loop goes over parameters and their gradients: ``for w, g in zip(weights, grads)``."""
    match loop.iter:
        case ast.Call(func=ast.Name(id="zip"), args=[_, ast.Name(id=name), *_]):
            return "grad" in name
    return False


def _is_upcast_head(logits: ast.expr, scope: Scope) -> bool:
    """Return whether the logits are a language model's, cast to f32 as a whole."""
    is_upcast, node = False, logits
    for _ in range(MAX_STEPS):
        node = value_above(node, scope)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        if "lm_head" in node.func.attr or "vocab" in node.func.attr:
            return is_upcast
        is_upcast = is_upcast or node.func.attr == "float"
        node = node.func.value
    return False


def _head_size(logits: ast.expr, scope: Scope) -> int:
    """Return the number of outputs of the layer that computes the logits; 0 if the file does not say it."""
    node = logits
    for _ in range(MAX_STEPS):
        node = value_above(node, scope)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return 0
        owner = node.func.value
        if isinstance(owner, ast.Name) and owner.id == "self":
            return _outputs_of(node.func.attr, scope)
        node = owner
    return 0


def _outputs_of(attribute: str, scope: Scope) -> int:
    """Return the outputs of ``self.head = nn.Linear(dim, vocab_size)``, where they are a number or a default."""
    init = None if scope.owner is None else scope.owner.methods.get("__init__")
    for node in ast.walk(init) if init is not None else ():
        match node:
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Call() as made):
                outputs = made.args[1] if len(made.args) > 1 else keyword(made, "out_features")
                is_head = name == attribute and scope.dotted(made.func).endswith("nn.Linear")
                if is_head and init is not None and outputs is not None:
                    return _number(outputs, init, scope)
    return 0


def _number(node: ast.expr, init: ast.FunctionDef, scope: Scope) -> int:
    """Return the value of a number, of a parameter's default, or of a field's in a class of the file; 0 if unknown."""
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            parameters = [*init.args.posonlyargs, *init.args.args]
            defaults = init.args.defaults
            known = dict(
                zip([each.arg for each in parameters[len(parameters) - len(defaults) :]], defaults, strict=True)
            )
            values = [known[name]] if name in known else _values_of_file(name, scope)
            return _number(values[0], init, scope) if values and isinstance(values[0], ast.Constant) else 0
        case ast.Attribute(attr=name):
            classes = [each for each in scope.module.tree.body if isinstance(each, ast.ClassDef)]
            for field in (field for each in classes for field in each.body):
                match field:
                    case ast.AnnAssign(target=ast.Name(id=said), value=ast.Constant(value=int(value))) if said == name:
                        return value
    return 0


def _values_of_file(name: str, scope: Scope) -> list[ast.expr]:
    """Return the values that the top level of the file assigns to a name."""
    return [
        node.value
        for node in scope.module.tree.body
        if isinstance(node, ast.Assign)
        if any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]


def _largest_number(*nodes: ast.expr) -> int:
    return max(
        (
            part.value
            for node in nodes
            for part in ast.walk(node)
            if isinstance(part, ast.Constant) and type(part.value) is int
        ),
        default=0,
    )


def _moves_in_half(call: ast.Call) -> bool:
    """Return whether the call moves and casts to half precision: ``model.to("cuda", dtype=torch.bfloat16)``, or
    ``Net().cuda().half()``."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("half", "bfloat16"):
        moved = call.func.value
        made = moved.func.value if isinstance(moved, ast.Call) and isinstance(moved.func, ast.Attribute) else None
        is_made = isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id[:1].isupper()
        return is_made and "'cuda" in ast.dump(call)
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "to":
        return False
    given = ast.dump(call)
    return "'cuda" in given and ("'bfloat16'" in given or "'float16'" in given or "'half'" in given)


def _moves_net(call: ast.Call, scope: Scope) -> bool:
    """Return whether the call moves a net with convolutions, as it is made, in a file that trains it under autocast:
    ``nn.Sequential(nn.Conv2d(...), ...).to(device)``, or ``Net().cuda()`` of a class of the file."""
    moved = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda") else None
    made = None if moved is None else value_above(moved, scope)
    is_half = "autocast" in scope.module.text
    for _ in range(MAX_STEPS):
        if not isinstance(made, ast.Call) or not isinstance(made.func, ast.Attribute):
            break
        if made.func.attr not in ("to", "cuda", "eval", "train", *_HALF):
            break
        is_half = is_half or made.func.attr in _HALF
        made = value_above(made.func.value, scope)
    if not isinstance(made, ast.Call) or not (is_half and "cuda" in scope.module.text):
        return False
    if scope.dotted(made.func) == "torch.nn.Sequential":
        return "attr='Conv2d'" in ast.dump(made)
    owner = scope.names.classes.get(scope.dotted(made.func))
    return owner is not None and "'Conv2d'" in ast.dump(owner.node)


def _is_vision_net(call: ast.Call, scope: Scope) -> bool:
    """Return whether the call makes a convolutional net of torchvision: ``torchvision.models.resnet50()``."""
    owner, _, name = scope.dotted(call.func).rpartition(".")
    return owner == "torchvision.models" and name.startswith(_VISION_NETS)


def _takes_tensors(call: ast.Call, argument: ast.Call, scope: Scope) -> bool:
    """Return whether an operand is a tensor: it is known as one, or torch or a layer is given it."""
    is_given = scope.dotted(call.func).startswith("torch.") or _is_layer(call, scope)
    return is_given or (isinstance(argument.func, ast.Attribute) and scope.is_tensor(argument.func.value))


def _is_model(call: ast.Call) -> bool:
    """Return whether a model of the caller's is called: ``model(x)``, ``self.unet(x)``."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name.endswith(("model", "net", "backbone", "encoder", "decoder"))


def _is_layer(call: ast.Call, scope: Scope) -> bool:
    """Return whether the call is that of a linear or convolution layer of the module."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="self"), attr=name) if scope.owner is not None:
            return scope.owner.submodules.get(name, "").rpartition(".")[2] in ("Linear", "Conv1d", "Conv2d", "Conv3d")
    return False


def _is_half(call: ast.Call) -> bool:
    """Return whether the call is ``x.to(torch.bfloat16)``."""
    given = call.args[0] if len(call.args) == 1 and not call.keywords else None
    is_cast = isinstance(call.func, ast.Attribute) and call.func.attr == "to"
    return is_cast and isinstance(given, ast.Attribute) and given.attr in ("bfloat16", "float16", "half")


def _is_autocast(call: ast.Call, scope: Scope) -> bool:
    for parent in scope.around(call):
        if isinstance(parent, ast.With):
            for item in parent.items:
                if _enters_autocast(item.context_expr, scope):
                    return _is_enabled(item.context_expr)
    decorators = [] if isinstance(scope.node, ast.Module) else scope.node.decorator_list
    return any(_enters_autocast(each, scope) and _is_enabled(each) for each in decorators)


def _enters_autocast(node: ast.expr, scope: Scope) -> bool:
    return isinstance(node, ast.Call) and scope.dotted(node.func).endswith("autocast")


def _is_enabled(node: ast.expr) -> bool:
    enabled = keyword(node, "enabled") if isinstance(node, ast.Call) else None
    return enabled is None or not (isinstance(enabled, ast.Constant) and enabled.value is False)
