"""KernelBench files, robust-kbench folders, packages, and re-reading a file that changed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from kernel_lsp.core.task import ConstantInput, Construction, InputConfiguration, TargetSource
from kernel_lsp.errors import TargetError
from kernel_lsp.process.worker_client import Worker
from tests.worker.capturing import capture_source, capture_text, source_of, tensor, with_worker

KERNELBENCH = """
class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.fc = nn.Linear(in_features, out_features)

    def forward(self, x, y):
        return F.relu(self.fc(x)) + y


def get_inputs():
    return [torch.rand(16, 32), torch.rand(16, 8).t().contiguous().t()]


def get_init_inputs():
    return [32, 8]
"""
FUNC_FORWARD = """
def forward_fn(x, weight, bias, eps):
    return F.layer_norm(x, weight.shape, weight, bias, eps)


class Model(nn.Module):
    def __init__(self, features: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x, fn=forward_fn):
        return fn(x, self.weight, self.bias, self.eps)


def get_inputs(batch_size: int, features: int):
    return [torch.randn(batch_size, features)]


input_names = ["x"]
"""


def robust_kbench(folder: Path, settings: dict[str, object]) -> TargetSource:
    (folder / "config_forward.json").write_text(json.dumps(settings))
    source = source_of(FUNC_FORWARD, "Model", file=folder / "func_forward.py")
    return source.model_copy(update={"kind": "robust_kbench", "symbol": "", "has_get_inputs": True})


def test_a_kernelbench_file_is_captured(tmp_path: Path) -> None:
    source = source_of(KERNELBENCH, "", file=tmp_path / "12_Gemm_ReLU.py", kind="kernelbench")
    task = capture_source(source)
    assert task.name == "gemm_relu"
    assert [(a.name, a.type.shape) for a in task.tensors] == [
        ("x", ("B", "32")),
        ("y", ("B", "8")),
        ("fc_weight", ("8", "32")),
        ("fc_bias", ("8",)),
    ]
    assert task.notes == ("input 'y' is not contiguous as made: captured as a contiguous tensor",)


def test_init_inputs_may_have_keywords() -> None:
    text = KERNELBENCH.replace("return [32, 8]", "return [[32], {'out_features': 8}]")
    assert len(capture_text(text, "Model", kind="kernelbench").tensors) == 4


def test_numbers_and_nested_tensors_among_the_inputs() -> None:
    text = """
    def f(x, pair, factor, flag):
        return x * pair[0] * factor if flag else pair[1]

    def get_inputs():
        return [torch.rand(4, 8), (torch.rand(8), torch.rand(8)), 3, True]
    """
    task = capture_text(text, "f")
    assert [argument.name for argument in task.arguments] == ["x", "pair_0", "factor", "flag"]


def test_inputs_by_name() -> None:
    text = """
    def f(x, *, bias):
        return x + bias

    def get_inputs():
        return {"x": torch.rand(4, 8), "bias": torch.rand(8)}
    """
    assert [argument.name for argument in capture_text(text, "f").arguments] == ["x", "bias"]


def test_get_inputs_that_needs_values_runs_for_real() -> None:
    text = """
    def f(x):
        return x * 2

    def get_inputs():
        x = torch.rand(4, 8)
        return [x[: 2 + int(x.sum().item() > 0)]]
    """
    assert capture_text(text, "f").configurations[0].shapes == {"x": (3, 8)}


def test_inputs_larger_than_the_machines_memory_are_captured() -> None:
    text = "def f(x):\n    return x * 2\n\n\ndef get_inputs():\n    return [torch.rand(1 << 20, 1 << 17)]"
    assert capture_text(text, "f").configurations[0].shapes == {"x": (1 << 20, 1 << 17)}


def test_one_capture_covers_configurations_that_differ_in_sizes(tmp_path: Path) -> None:
    settings = {
        "single_input_configs": [{"batch_size": 4}],
        "single_init_configs": [{"eps": 1e-5}],
        "single_shared_configs": [{"features": 16}],
        "multi_input_configs": [{"batch_size": 4}, {"batch_size": 32}],
        "multi_init_configs": [{"eps": 1e-5}],
        "multi_shared_configs": [{"features": 16}, {"features": 24}],
    }
    task = capture_source(robust_kbench(tmp_path, settings))
    assert [c.shapes["x"] for c in task.configurations] == [(4, 16), (4, 24), (32, 16), (32, 24)]
    assert [c.shapes["weight"] for c in task.configurations] == [(16,), (24,), (16,), (24,)]
    assert task.configurations[2].settings == {"features": 16, "eps": 1e-5, "batch_size": 32}
    assert task.uncovered == ()


def test_parameters_of_a_folder_are_parameters_whatever_their_sizes(tmp_path: Path) -> None:
    settings = {"single_input_configs": [{"batch_size": 4}], "multi_input_configs": [{"batch_size": 4}]}
    settings["single_shared_configs"], settings["multi_shared_configs"] = [{"features": 16}], [{"features": 24}]
    task = capture_source(robust_kbench(tmp_path, settings), backward=True)
    weight = next(tensor for tensor in task.tensors if tensor.name == "weight")
    assert (weight.role, weight.qualified_name, weight.requires_grad) == ("parameter", "weight", True)
    assert weight.type.shape == ("D",)
    assert task.backward is not None
    assert {output.name for output in task.backward.outputs} == {"grad_x", "grad_weight", "grad_bias"}
    assert task.module_settings == {"eps": 1e-5}


def test_recorded_configurations_are_covered_where_the_capture_holds() -> None:
    text = "class N(nn.Module):\n    def __init__(self, eps=1.0):\n        super().__init__()\n        self.eps = eps\n"
    text += "    def forward(self, x):\n        return x.relu() + self.eps"
    seen = [
        ("a", tensor("x", 3, 8), {}),
        ("b", tensor("x", 5, 8, dtype="f16"), {}),
        ("c", tensor("x", 9, 8), {"eps": 2}),
        ("d", tensor("x", 7, 8), {"eps": 0.5}),
    ]
    others = tuple(InputConfiguration(name=name, inputs=(x,), init_arguments=init) for name, x, init in seen)
    source = source_of(text, "N", inputs=[tensor("x", 4, 8)]).model_copy(update={"configurations": others})
    task = capture_source(source)
    found = [(c.name, c.shapes["x"]) for c in task.configurations]
    assert found == [("captured", (4, 8)), ("a", (3, 8)), ("d", (7, 8))]
    assert "eps" not in task.module_settings, "a float of the module is an argument, whatever was recorded"
    assert [(other.index, other.name) for other in task.uncovered] == [(2, "b"), (3, "c")]
    assert "f16" in task.uncovered[0].reason


def test_recorded_configurations_of_a_function_are_covered() -> None:
    other = InputConfiguration(name="a", inputs=(tensor("x", 3, 8),), init_arguments={})
    source = source_of("def f(x):\n    return x.relu() + 1", "f", inputs=[tensor("x", 4, 8)])
    task = capture_source(source.model_copy(update={"configurations": (other,)}))
    assert [(c.name, c.shapes["x"]) for c in task.configurations] == [("captured", (4, 8)), ("a", (3, 8))]


def test_a_float_of_modules_of_several_sizes_is_an_argument() -> None:
    text = dedent("""
        class N(nn.Module):
            def __init__(self, dim, eps=1.0):
                super().__init__()
                self.eps, self.gain = eps, nn.Parameter(torch.ones(dim))

            def forward(self, x):
                return x * self.gain + self.eps
    """)
    other = InputConfiguration(name="a", inputs=(tensor("x", 3, 6),), init_arguments={"dim": 6, "eps": 0.5})
    source = source_of(text, "N", inputs=[tensor("x", 4, 8)])
    source = source.model_copy(update={"configurations": (other,), "init_arguments": {"dim": 8}})
    task = capture_source(source)
    assert [c.shapes["gain"] for c in task.configurations] == [(8,), (6,)]
    assert [(number.name, number.qualified_name) for number in task.scalars] == [("eps", "eps")]
    assert task.module_settings == {}


def test_the_backward_has_configurations_of_its_own(tmp_path: Path) -> None:
    source = robust_kbench(
        tmp_path, {"single_input_configs": [{"batch_size": 4}], "single_shared_configs": [{"features": 16}]}
    )
    more = {"single_input_configs": [{"batch_size": 6}], "single_shared_configs": [{"features": 16}]}
    (tmp_path / "config_backward.json").write_text(json.dumps(more))
    assert [c.shapes["x"] for c in capture_source(source).configurations] == [(4, 16)]
    assert [c.shapes["x"] for c in capture_source(source, backward=True).configurations] == [(4, 16), (6, 16)]


def test_an_uncovered_configuration_is_captured_as_a_task_of_its_own(tmp_path: Path) -> None:
    settings = {
        "single_input_configs": [{"batch_size": 4}],
        "single_init_configs": [{"eps": 1e-5}, {"eps": 0.5}],
        "single_shared_configs": [{"features": 16}],
    }
    source = robust_kbench(tmp_path, settings)
    first = capture_source(source)
    other = with_worker(lambda worker: worker.capture(source, with_backward=False, configuration=1))
    assert [first.module_settings["eps"], other.module_settings["eps"]] == [1e-5, 0.5]

    def cases(worker: Worker) -> Any:
        shapes = first.configurations[0].shapes
        made = [
            worker.make_case(
                "forward", shapes=shapes, family="normal", seed=1, directory=tmp_path / str(n), configuration=n
            )
            for n in (0, 1)
        ]
        return asyncio.gather(*made)

    files = with_worker(cases)
    assert files[0].inputs[0].path.read_bytes() == files[1].inputs[0].path.read_bytes()
    assert files[0].outputs[0].reference.path.read_bytes() != files[1].outputs[0].reference.path.read_bytes()


def test_settings_that_are_no_list_of_objects_are_named(tmp_path: Path) -> None:
    source = robust_kbench(tmp_path, {"single_input_configs": ["batch_size"]})
    with pytest.raises(TargetError, match="'single_input_configs' is not a list of objects"):
        capture_source(source)


def test_a_configuration_with_other_constants_is_not_covered(tmp_path: Path) -> None:
    settings = {
        "single_input_configs": [{"batch_size": 4}],
        "single_init_configs": [{"eps": 1e-5}, {"eps": 0.5}],
        "single_shared_configs": [{"features": 16}],
    }
    task = capture_source(robust_kbench(tmp_path, settings))
    assert len(task.configurations) == 1
    assert [(other.index, other.name) for other in task.uncovered] == [(1, "features=16, eps=0.5, batch_size=4")]
    assert task.uncovered[0].reason == "aten.native_layer_norm.default has 0.5 where the capture has 1e-05"


def test_settings_that_are_not_json_are_named(tmp_path: Path) -> None:
    source = robust_kbench(tmp_path, {})
    (tmp_path / "config_forward.json").write_text('{"single_input_configs": [\n}')
    with pytest.raises(TargetError, match="not JSON") as caught:
        capture_source(source)
    assert caught.value.file == str(tmp_path / "config_forward.json")
    assert caught.value.line == 2


def test_a_folder_without_settings_says_which_file_is_missing(tmp_path: Path) -> None:
    source = robust_kbench(tmp_path, {})
    (tmp_path / "config_forward.json").unlink()
    with pytest.raises(TargetError, match="no settings"):
        capture_source(source)


def test_relative_imports_work_inside_a_package(tmp_path: Path) -> None:
    package = tmp_path / "layers"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("FACTOR = 5\n")
    text = "from .helper import FACTOR\n\n\ndef f(x):\n    return x * FACTOR"
    task = capture_source(source_of(text, "f", inputs=[tensor("x", 4)], file=package / "act.py"))
    assert task.forward.nodes[0].arguments[1] == 5


def test_files_that_a_package_opens_from_its_projects_folder_are_found(tmp_path: Path) -> None:
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers" / "__init__.py").write_text("")
    (tmp_path / "factor.txt").write_text("5")
    (tmp_path / "bias.txt").write_text("7")
    text = """
        FACTOR = int(open("factor.txt").read())


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.bias = int(open("bias.txt").read())

            def forward(self, x):
                return x * FACTOR + self.bias
    """
    task = capture_source(source_of(text, "Net", inputs=[tensor("x", 4)], file=tmp_path / "layers" / "act.py"))
    assert [node.arguments[1] for node in task.forward.nodes] == [5, 7]
    missing = source_of(text.replace("bias.txt", "none.txt"), "Net", inputs=[tensor("x", 4)], file=tmp_path / "net.py")
    with pytest.raises(TargetError, match=r"FileNotFoundError.*none\.txt"):
        capture_source(missing)


def project_without_init(tmp_path: Path) -> Path:
    """A project whose outer packages have no `__init__.py`, as latent-diffusion's."""
    package = tmp_path / "model" / "layers"
    package.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (package / "__init__.py").write_text("")
    (tmp_path / "model" / "helpers.py").write_text("FACTOR = 3.0\n")
    return package


def test_packages_without_init_are_found_from_the_projects_folder(tmp_path: Path) -> None:
    text = "from model.helpers import FACTOR\nassert __name__ == 'model.layers.gate'\ndef f(x):\n    return x * FACTOR"
    file = project_without_init(tmp_path) / "gate.py"
    assert capture_text(text, "f", inputs=[tensor("x", 8, 16)], file=file).forward.nodes


def test_a_module_of_the_projects_folder_is_found_from_a_folder_of_scripts(tmp_path: Path) -> None:
    project_without_init(tmp_path)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scales.py").write_text("SCALE = 2.0\n")
    text = "from model import helpers\nfrom scales import SCALE\n\n\ndef f(x):\n    return x * SCALE + helpers.FACTOR"
    file = tmp_path / "scripts" / "run.py"
    assert capture_text(text, "f", inputs=[tensor("x", 8, 16)], file=file).forward.nodes


def test_a_module_outside_of_the_repository_is_not_found(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / ".git").mkdir()
    (tmp_path / "elsewhere_here.py").write_text("SCALE = 2.0\n")
    with pytest.raises(TargetError, match="No module named 'elsewhere_here'"):
        capture_text("import elsewhere_here\ndef f(x):\n    return x", "f", inputs=[], file=repository / "run.py")


RESIZE = """
def resize(x, size, mode="nearest", mask=True):
    assert mask is None
    return F.interpolate(x, size, mode=mode)
"""


def test_literals_are_arguments_of_the_captured_call() -> None:
    literals = {"size": "(8, 8)", "mode": "'bilinear'", "mask": "None"}
    inputs = [tensor("x", 1, 2, 4, 4), *(ConstantInput(name=name, literal=text) for name, text in literals.items())]
    other = (tensor("x", 1, 2, 4, 4), ConstantInput(name="size", literal="(8, 8)"))
    source = source_of(RESIZE, "resize", inputs=inputs)
    others = (InputConfiguration(name="recorded", inputs=other),)
    task = capture_source(source.model_copy(update={"configurations": others}))
    assert task.call_constants == literals
    assert [argument.name for argument in task.arguments] == ["x"]
    assert any("bilinear" in node.op for node in task.forward.nodes)


STACK = """
class Stack(nn.Module):
    def __init__(self, widths, norm, act, options):
        super().__init__()
        self.layers = nn.Sequential(*[norm(width) for width in widths], act(**options))

    def forward(self, x):
        return self.layers(x)
"""


def test_constructors_take_sequences_classes_and_partials() -> None:
    init = {
        "widths": "[16, 16]",
        "norm": "functools.partial(torch.nn.LayerNorm, eps=0.5)",
        "act": "nn.LeakyReLU",
        "options": "{'negative_slope': 0.25}",
    }
    calls = {name: Construction(call=text) for name, text in init.items()}
    task = capture_text(STACK, "Stack", inputs=[tensor("x", 8, 16)], init=calls)
    values = [argument.value for argument in task.scalars]
    assert sorted(values) == [0.25, 0.5, 0.5]


def test_a_sibling_module_is_read_again_when_it_changed(tmp_path: Path) -> None:
    text = "from constants_here import FACTOR\n\n\ndef f(x):\n    return x * FACTOR"
    source = source_of(text, "f", inputs=[tensor("x", 4)], file=tmp_path / "act.py")
    for factor in (5, 70):
        (tmp_path / "constants_here.py").write_text(f"FACTOR = {factor}\n")
        assert capture_source(source).forward.nodes[0].arguments[1] == factor


def test_nothing_is_written_beside_the_file(tmp_path: Path) -> None:
    capture_source(source_of("def f(x):\n    return x * 2", "f", inputs=[tensor("x", 4)], file=tmp_path / "act.py"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["act.py"]


def test_a_file_named_like_a_library_does_not_replace_it(tmp_path: Path) -> None:
    source = source_of("def f(x):\n    return x * 2", "f", inputs=[tensor("x", 4)], file=tmp_path / "capture.py")
    assert capture_source(source).name == "f"
    source = source_of("def f(x):\n    return x * 2", "f", inputs=[tensor("x", 4)], file=tmp_path / "typing.py")
    assert capture_source(source).name == "f"


def test_the_working_folder_is_the_files_own(tmp_path: Path) -> None:
    (tmp_path / "scale.txt").write_text("2.5")
    text = "SCALE = float(open('scale.txt').read())\n\n\ndef f(x):\n    return x * SCALE"
    task = capture_source(source_of(text, "f", inputs=[tensor("x", 4)], file=tmp_path / "act.py"))
    assert task.forward.nodes[0].arguments[1] == 2.5


def test_a_recorded_call_with_another_tensor_is_not_covered() -> None:
    """Its tensors were paired by their place, and its mask was not seen: `check` said that it was served."""
    text = "def f(x, mask=None, scale=None):\n    x = x if mask is None else x * mask\n    return x.relu() * scale"
    x, mask, scale = tensor("x", 8, 16), tensor("mask", 8, 16), tensor("scale", 8, 16)
    source = source_of(text, "f", inputs=[x, scale])
    given = {"masked": (x, mask, scale), "plain": (tensor("x", 4, 16), tensor("scale", 4, 16))}
    others = tuple(InputConfiguration(name=name, inputs=inputs) for name, inputs in given.items())
    task = capture_source(source.model_copy(update={"configurations": others}))
    assert [each.name for each in task.configurations] == ["captured", "plain"]
    assert [(each.name, each.reason) for each in task.uncovered] == [("masked", "'mask' is a tensor there")]
