"""KL161 to KL164: manual code for training and inference that PyTorch provides faster."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.rules.pytorch.cost import MAX_STEPS, value_above
from kernel_lsp.rules.pytorch.declare import INFORMATION, declare, hit
from kernel_lsp.rules.pytorch.losses import (
    classes_of_view,
    head_size,
    is_gathered,
    is_of_language_model,
    is_upcast_head,
    is_upcast_of_logits,
    largest_number,
    logits_of,
    loss_name,
    outputs_of_layer,
    vocabulary_of_file,
)
from kernel_lsp.rules.pytorch.program import flow
from kernel_lsp.rules.pytorch.program.parsing import nodes_in, nodes_of
from kernel_lsp.rules.pytorch.program.scopes import Scope, keyword
from kernel_lsp.rules.rule import Hit, words

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
_LAYERS = ("Linear", "Conv1d", "Conv2d", "Conv3d")
_IN_PLACE = ("add_", "sub_", "addcdiv_", "addcmul_")
_OF_INTEGERS = words(
    "argmax argmin argsort topk sort one_hot bucketize searchsorted multinomial nonzero long int bool eq ne lt le gt ge"
)
"""Functions and methods whose results may be no floating-point numbers."""
_AUTOCAST_OPERATIONS = ("matmul", "bmm", "mm", "linear", "conv1d", "conv2d", "conv3d", "addmm", "einsum")


@declare(
    "KL161",
    "loss-over-vocabulary",
    INFORMATION,
    needs=("cross_entropy CrossEntropyLoss crit criterion loss loss_fn ce_loss log_softmax",),
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
            logits = call.args[0]
            numbers = max(largest_number(scope.definition(logits), logits), classes_of_view(logits, scope))
            size = max(numbers, head_size(logits, scope), outputs_of_layer(logits, scope))
            if size >= LARGE_VOCABULARY:
                yield hit(scope, call, f"loss over {size} classes: compute head and loss in chunks, or fused")
            elif is_upcast_head(call.args[0], scope):
                yield hit(
                    scope, call, "f32 copy of the logits of a vocabulary: compute head and loss in chunks, or fused"
                )
    for call in scope.calls:
        operand = logits_of(call, scope)
        if operand is None or scope.loop_around(call) is not None:
            continue
        size = head_size(operand, scope) or outputs_of_layer(operand, scope)
        is_upcast = is_upcast_of_logits(call, scope) and vocabulary_of_file(scope) >= LARGE_VOCABULARY
        is_read_in_part = is_gathered(call, scope) and is_of_language_model(operand, scope)
        if is_upcast or is_read_in_part or size >= LARGE_VOCABULARY:
            yield hit(scope, call, "log-probabilities of a whole vocabulary: compute head and loss in chunks, or fused")


@declare(
    "KL162",
    "unfused-optimizer",
    INFORMATION,
    needs=(" ".join((*_OPTIMIZERS, "grad", "grads", "gradients", "parameters", "named_parameters", "state_dict")),),
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
        is_off = isinstance(foreach, ast.Constant) and foreach.value is False
        if isinstance(foreach, ast.Attribute):
            is_off = f"{foreach.attr}: bool = False" in scope.module.text and "foreach=True" not in scope.module.text
        is_asked = keyword(call, "fused") is not None or (foreach is not None and not is_off)
        if not is_asked:
            yield hit(scope, call, f"unfused optimizer step: `{name}(..., fused=True)` updates all in few kernels")
    bodies = [each for loop in scope.loops if isinstance(loop, ast.For) for each in _bodies(loop, scope)]
    instead = "`torch._foreach_*`" if _is_of_optimizer(scope) else "`torch.optim` with `fused=True`"
    for find, message in (
        (_update_by_gradient, f"optimizer step by hand, several kernels per parameter: use {instead}"),
        (_norm_of_gradient, "gradient norm by hand, kernels per parameter: use `torch.nn.utils.clip_grad_norm_`"),
        (_average_of_parameters, "moving average by hand, kernels per parameter: use `torch._foreach_lerp_`"),
    ):
        for body, loop, names, caller in bodies:
            found = find(body, loop, names)
            if found is not None:
                is_whole = find is _update_by_gradient  # the loop is to be replaced, and each of its updates
                yield hit(scope, caller or (loop.iter if is_whole else found), message)
                break


_Body = tuple[ast.AST, ast.For, set[str], ast.Call | None]
"""A loop's body, or that of a function that it calls; the loop; the names of its elements there; and the call."""


def _bodies(loop: ast.For, scope: Scope) -> Iterator[_Body]:
    names = {node.id for node in nodes_of(loop.target, ast.Name)}
    yield loop, loop, names, None
    for call in nodes_of(loop, ast.Call):
        for function in flow.callees(call, scope):
            given = flow.bound(call, function)
            taken = {name for name, each in given if any(n.id in names for n in nodes_of(each, ast.Name))}
            if taken and function.name != "__init__":
                yield function.node, loop, taken, call


@declare(
    "KL163",
    "missing-channels-last",
    INFORMATION,
    needs=("cuda to",),
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
    if scope.module.mentions("channels_last"):
        return
    for call in scope.calls:
        is_half = any(word in scope.module.text for word in ("autocast", ".half()", "bfloat16", "float16"))
        if _is_vision_net(call, scope) and is_half and scope.module.mentions("cuda"):
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
    if not scope.module.mentions("autocast"):
        return
    for call in scope.calls:
        is_operation = scope.function_name(call) in _AUTOCAST_OPERATIONS
        is_layer = _is_layer(call, scope)
        is_inside = _is_autocast(call, scope) or (is_layer and _is_run_under_autocast(scope))
        if not (is_operation or _is_model(call) or is_layer) or not is_inside:
            continue
        for argument in call.args:
            for cast, where in flow.origins(argument, scope):
                if not isinstance(cast, ast.Call) or not isinstance(cast.func, ast.Attribute):
                    continue
                name, is_known = cast.func.attr, _is_model(call) or _takes_tensors(call, cast, scope)
                is_widened = is_layer and _is_float(cast, where) and _is_of_layer(cast.func.value, where)
                if is_known and (name in ("half", "bfloat16") or _is_half(cast, where) or is_widened):
                    yield hit(scope, argument, f"redundant `.{name}()` under autocast: it casts operands itself")


def _is_of_optimizer(scope: Scope) -> bool:
    """Return whether the code is a method of a `torch.optim.Optimizer`, which is where such a loop belongs, or of a
    class whose bases the file does not say."""
    owner = scope.module.class_of(scope.node)
    return "self" in scope.parameters and (owner is None or bool(owner.bases))


def _update_by_gradient(body: ast.AST, loop: ast.For, names: set[str]) -> ast.expr | None:
    """Return the in-place update of a parameter by its gradient: ``p.add_(p.grad, alpha=-lr)``."""
    with_gradient = {ast.unparse(n.value) for n in nodes_of(body, ast.Attribute) if n.attr == "grad"} & names
    if _zips_gradients(loop):
        with_gradient |= names
    for node in nodes_in(body):
        updated: ast.expr | None = node.target if isinstance(node, ast.AugAssign) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _IN_PLACE:
            updated = node.func.value
        if updated is not None and ast.unparse(updated).removesuffix(".data") in with_gradient:
            return updated
    return None


def _norm_of_gradient(body: ast.AST, loop: ast.For, names: set[str]) -> ast.expr | None:
    """Return the norm, or the sum of squares, of one parameter's gradient: ``p.grad.norm() ** 2``."""
    for node in nodes_of(body, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _NORMS:
            text = ast.unparse(node)
            if ".grad" in text and any(f"{name}.grad" in text for name in names):
                return node
    return None


_NORMS = ("norm", "vector_norm")


def _average_of_parameters(body: ast.AST, loop: ast.For, names: set[str]) -> ast.expr | None:
    """Return the update of an average in a loop over the parameters of two models: ``a.lerp_(b, 1 - decay)``."""
    source = ast.unparse(loop.iter)
    if source.count("parameters(") + source.count("state_dict(") not in (1, 2) or ".grad" in ast.unparse(body):
        return None
    for node in nodes_in(body):
        if isinstance(node, ast.Assign) and _blends(node, names):
            return node.value
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        method, owner = node.func.attr, ast.unparse(node.func.value).partition(".")[0].partition("[")[0]
        given = {each.id for argument in node.args for each in nodes_of(argument, ast.Name)}
        is_weighted = method == "lerp_" or (
            method in ("add_", "copy_") and ("alpha" in ast.unparse(node) or "*" in ast.unparse(node))
        )
        is_of_average = owner in names or not given.isdisjoint(names)
        if is_weighted and len(names) > 1 and is_of_average and given & names:
            return node
    return None


def _blends(node: ast.Assign, names: set[str]) -> bool:
    """Return whether the assignment is ``average = d * average + (1 - d) * p`` of an element or of `.data`."""
    target, value = node.targets[0], node.value
    if not isinstance(target, ast.Subscript | ast.Attribute) or not isinstance(value, ast.BinOp):
        return False
    read = {each.id for each in nodes_of(value, ast.Name)}
    is_sum = isinstance(value.op, ast.Add) and ast.unparse(value).count("*") > 1
    is_gradient = ".grad" in ast.unparse(node)
    return is_sum and not is_gradient and bool(read & names) and ast.unparse(target) in ast.unparse(value)


def _zips_gradients(loop: ast.For) -> bool:
    """Return whether the loop goes over parameters and their gradients: ``for w, g in zip(weights, grads)``."""
    match loop.iter:
        case ast.Call(func=ast.Name(id="zip"), args=[_, ast.Name(id=name), *_]):
            return "grad" in name
    return False


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
    is_half = scope.module.mentions("autocast")
    for _ in range(MAX_STEPS):
        if not isinstance(made, ast.Call) or not isinstance(made.func, ast.Attribute):
            break
        if made.func.attr not in ("to", "cuda", "eval", "train", *_HALF):
            break
        is_half = is_half or made.func.attr in _HALF
        made = value_above(made.func.value, scope)
    if not isinstance(made, ast.Call) or not (is_half and scope.module.mentions("cuda")):
        return False
    if scope.dotted(made.func) == "torch.nn.Sequential":
        return "attr='Conv2d'" in ast.dump(made)
    return isinstance(made.func, ast.Name) and _has_convolutions(made.func.id, scope)


def _has_convolutions(name: str, scope: Scope, depth: int = 0) -> bool:
    """Return whether a class or function of the file makes convolutions, also by another one."""
    definitions = (
        n for n in scope.module.tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name
    )
    for definition in definitions:
        if "'Conv2d'" in ast.dump(definition):
            return True
        made = {n.func.id for n in nodes_of(definition, ast.Call) if isinstance(n.func, ast.Name)}
        if depth < MAX_STEPS and any(_has_convolutions(each, scope, depth + 1) for each in made - {name}):
            return True
    return False


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
            return scope.owner.submodules.get(name, "").rpartition(".")[2] in _LAYERS
        case ast.Name(id=name) if scope.owner is not None:
            loops = [loop for loop in scope.loops if isinstance(loop, ast.For)]
            iterated = [loop.iter for loop in loops if name in {n.id for n in nodes_of(loop.target, ast.Name)}]
            attributes = {n.attr for each in iterated for n in nodes_of(each, ast.Attribute)}
            return any("ModuleList" in scope.owner.submodules.get(each, "") for each in attributes)
    return False


def _is_of_layer(node: ast.expr, scope: Scope) -> bool:
    """Return whether a value is computed from the result of a layer, which is in half precision under autocast. Values
    that may be integers or truths, such as an argmax, need a cast of their own."""
    names = nodes_of(node, ast.Name) if isinstance(node, ast.Name | ast.BinOp | ast.Call) else []
    values = [node, *(value for name in names for value in scope.assigned.get(name.id, ()))]
    calls = [call for value in values for call in nodes_of(value, ast.Call)]
    is_number = not any(True for value in values for _ in nodes_of(value, ast.Compare))
    is_number = is_number and _OF_INTEGERS.isdisjoint(flow.called_name(call) for call in calls)
    return is_number and any(_is_layer(call, scope) for call in calls)


def _is_float(call: ast.Call, scope: Scope) -> bool:
    """Return whether the call is ``x.float()`` or ``x.to(torch.float32)``."""
    given = [*call.args, *(each.value for each in call.keywords if each.arg == "dtype")]
    is_single = len(given) == 1 and scope.dotted(given[0]) in ("torch.float32", "torch.float")
    return flow.called_name(call) == "float" or (flow.called_name(call) == "to" and is_single)


def _is_run_under_autocast(scope: Scope) -> bool:
    """Return whether this is a module's forward in a file that enters autocast, and never leaves it."""
    text = scope.module.text
    return scope.is_forward and scope.owner is not None and "enabled=False" not in text and "autocast(" in text


def _is_half(call: ast.Call, scope: Scope) -> bool:
    """Return whether the call is ``x.to(torch.bfloat16)``."""
    given = call.args[0] if len(call.args) == 1 and not call.keywords else None
    if given is None or flow.called_name(call) != "to":
        return False
    dtypes = [each for each, _ in flow.origins(given, scope)]
    return any(isinstance(each, ast.Attribute) and each.attr in ("bfloat16", "float16", "half") for each in dtypes)


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
