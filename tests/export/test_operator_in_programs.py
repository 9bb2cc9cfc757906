"""An operator in the programs of others: copied, pickled, trained in processes, in two modes, under two names."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import pickle
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernel_lsp.export.python.operator import write_operator
from tests.generate.harness import plan_text
from tests.worker.capturing import tensor as sized

from .fake_driver import FakeDriver, install
from .loading import load_operator
from .other_samples import RMS_NORM, RMS_NORM_MODULE
from .samples import VERIFICATION, fresh_name, plan_of
from .test_operator_launches import rms_norm_driver

FOLDER = Path(__file__).parent
TIMEOUT_S = 240
pytestmark = pytest.mark.filterwarnings("ignore:.*computed by PyTorch.*", "ignore:.*CUDA is not available.*")


class RMSNorm(torch.nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps, self.act = eps, torch.nn.Identity()
        self.weight = torch.nn.Parameter(torch.rand(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Network(torch.nn.Module):
    """Uses an operator deep inside."""

    def __init__(self, norm: torch.nn.Module, activation: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.norm, self.activation = norm, activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.norm(x), torch.ones(x.shape[-1]))


def by_hand(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def load_module_operator(directory: Path, **settings: object) -> ModuleType:
    """Write and load the operator of `RMSNorm` as it would be captured."""
    name = fresh_name("rms_norm_module")
    task = RMS_NORM_MODULE.task(name)
    code = {"": "RMSNorm.forward", "act": "Identity"}
    task = task.model_copy(update={"module_settings": {**task.module_settings, **settings}, "module_code": code})
    return load_operator(task, RMS_NORM_MODULE.cu_text(name), directory)


def load_function_operator(directory: Path) -> ModuleType:
    name = fresh_name("rms_norm")
    return load_operator(RMS_NORM.task(name), RMS_NORM.cu_text(name), directory)


def use(operator: ModuleType) -> Callable[..., object]:
    return getattr(operator, f"use_{operator.__name__}")


@pytest.fixture
def network(tmp_path: Path) -> Network:
    module, function = load_module_operator(tmp_path), load_function_operator(tmp_path)
    return Network(use(module)(RMSNorm(8)), use(function)(by_hand))  # type: ignore[arg-type]


@contextlib.contextmanager
def warned() -> Iterator[list[str]]:
    """List the fallback's warnings."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    messages += [str(warning.message) for warning in caught if "computed by PyTorch" in str(warning.message)]


def check_same(found: torch.nn.Module, network: Network) -> None:
    """Values are those of the network, and the operator is asked in it."""
    x = torch.randn(3, 8)
    assert torch.equal(found(x), network(x))
    assert type(found.norm) is type(network.norm)
    assert type(found.norm) is not RMSNorm


LINEAR = """
class Net(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.fc = nn.Linear(dim, 8)

    def forward(self, x):
        return self.fc(x)
"""
TRAINER = """
class Trainer:
    def __init__(self, scale=2.0):
        self.scale = scale

    def penalty(self, x):
        return (x * self.scale).sum(-1)
"""


def test_an_object_of_other_settings_uses_its_own_method(tmp_path: Path) -> None:
    program = plan_text(TRAINER, inputs=[sized("x", 4, 8)], symbol="Trainer.penalty")
    name = fresh_name("trainer_penalty")
    task = program.task.model_copy(update={"name": name})
    text = program.render({}).replace("op: trainer_penalty(", f"op: {name}(")
    task = task.model_copy(update={"reference_source": task.reference_source.replace("trainer_penalty", name)})
    operator = load_operator(task, text, tmp_path)
    names: dict[str, Any] = {}
    exec(TRAINER, names)
    module = operator.OPERATOR.module
    assert module.why_not(names["Trainer"]()) == ""
    assert module.why_not(names["Trainer"](3.0)).startswith("scale is 3.0, and the kernels were made for 2.0")


# --- copies


def test_a_network_that_uses_it_is_copied(network: Network) -> None:
    copied = copy.deepcopy(network)
    check_same(copied, network)
    with torch.no_grad():
        copied.norm.weight.mul_(2.0)
    assert not torch.equal(copied.norm(torch.ones(1, 8)), network.norm(torch.ones(1, 8)))


def test_a_network_that_uses_it_is_pickled(network: Network) -> None:
    check_same(pickle.loads(pickle.dumps(network)), network)


def test_a_function_that_its_operator_replaces_is_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = use(load_function_operator(tmp_path))(by_hand)
    assert pickle.loads(pickle.dumps(used)) is not used  # a copy beside the function
    monkeypatch.setattr(sys.modules[by_hand.__module__], by_hand.__name__, used)
    assert pickle.loads(pickle.dumps(used)) is used
    assert copy.deepcopy(used) is used


def test_a_network_that_uses_it_is_saved_and_loaded(network: Network) -> None:
    stored = io.BytesIO()
    torch.save(network, stored)
    stored.seek(0)
    check_same(torch.load(stored, weights_only=False), network)


def test_state_dicts_are_those_of_the_module_without_it(network: Network) -> None:
    assert RMSNorm(8).state_dict().keys() == network.norm.state_dict().keys()
    RMSNorm(8).load_state_dict(network.norm.state_dict())


# --- settings and modes


def test_settings_that_change_later_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, driver = on_fake_gpu(tmp_path, monkeypatch)
    module = use(operator)(RMSNorm(8))
    module(torch.randn(3, 8))  # type: ignore[operator]
    module.eps = 0.5  # type: ignore[attr-defined]
    with warned() as messages:
        check_by_hand(module, 0.5)
    assert len(messages) == 1
    assert "eps is 0.5" in messages[0]
    assert len(driver.launches) == 1


@pytest.mark.parametrize("captured", [True, False])
def test_the_other_mode_falls_back_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captured: bool
) -> None:
    operator, driver = on_fake_gpu(tmp_path, monkeypatch, training=captured)
    module = RMSNorm(8).train(captured)
    use(operator)(module)
    check_by_hand(module)
    assert len(driver.launches) == 1
    with warned() as messages:
        for _ in range(2):
            check_by_hand(module.train(not captured))
    assert len(messages) == 1
    assert f"made for {'training' if captured else 'eval'} mode" in messages[0]
    assert len(driver.launches) == 1


def test_a_frozen_submodule_is_expected_to_stay_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, driver = on_fake_gpu(tmp_path, monkeypatch, training=True, **{"frozen.training": False})
    module = RMSNorm(8)
    module.frozen = torch.nn.Identity().eval()
    check_by_hand(use(operator)(module))
    assert len(driver.launches) == 1
    module.frozen.train()
    with warned() as messages:
        check_by_hand(module)
    assert (len(driver.launches), len(messages)) == (1, 1)


def test_one_operator_serves_both_modes_where_they_compute_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, driver = on_fake_gpu(tmp_path, monkeypatch)
    module = use(operator)(RMSNorm(8))
    for mode in (True, False):
        check_by_hand(module.train(mode))  # type: ignore[attr-defined]
    assert len(driver.launches) == 2


def on_fake_gpu(directory: Path, monkeypatch: pytest.MonkeyPatch, **settings: object) -> tuple[ModuleType, FakeDriver]:
    operator = load_module_operator(directory, **settings)
    driver = rms_norm_driver()
    install(monkeypatch, operator, driver)
    own = operator.OPERATOR
    monkeypatch.setattr(own, "call", lambda *arguments: own.on_gpu(own.forward, *arguments))
    return operator, driver


def check_by_hand(module: object, eps: float = 1e-6) -> None:
    x = torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(module(x), by_hand(x, module.weight, eps))  # type: ignore[operator,attr-defined]


# --- what it says


def test_calls_tell_how_often_kernels_and_pytorch_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, _ = on_fake_gpu(tmp_path, monkeypatch)
    module = use(operator)(RMSNorm(8))
    for shape in ((3, 8), (5, 8), (2, 3, 8)):
        module(torch.randn(*shape))  # type: ignore[operator]
    use(operator)(RMSNorm(8, eps=0.5))
    calls = operator.calls()
    assert calls["kernels"] == {operator.__name__: 2}
    assert calls["fallback"] == {"x is not a non-empty f32[B, D]: record a run with such inputs, and optimize again": 1}


def test_a_report_says_what_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    operator, _ = on_fake_gpu(tmp_path, monkeypatch)
    use(operator)(RMSNorm(8), report=True)(torch.randn(3, 8))  # type: ignore[operator]
    use(operator)(RMSNorm(8, eps=0.5), report=True)
    name = operator.__name__
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == [f"{name}: RMSNorm uses its CUDA kernels", f"{name}: computed by its CUDA kernels"]
    assert said[2].startswith(f"{name}: computed by PyTorch, not by its CUDA kernels: eps is 0.5")


def test_a_report_says_at_once_that_the_dtype_is_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It said that the module uses the kernels, and the opposite at the first call."""
    use(load_module_operator(tmp_path))(RMSNorm(8).double(), report=True)
    (said,) = capsys.readouterr().out.splitlines()
    says = "weight is f64[8], and the kernels take f32[D]: optimize this module, too"
    assert f"computed by PyTorch, not by its CUDA kernels: {says}" in said


def test_a_report_says_at_once_that_the_width_is_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = plan_text(LINEAR, inputs=[sized("x", 4, 8)], symbol="Net")
    operator = load_operator(program.task, program.render({}), tmp_path)
    names: dict[str, Any] = {"nn": torch.nn}
    exec(LINEAR, names)
    operator.use_net(names["Net"](), report=True)
    operator.use_net(names["Net"](16), report=True)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "net: Net uses its CUDA kernels"
    assert "fc.weight is f32[8, 16], and the kernels take f32[8, 8]: optimize this module, too" in said[1]


def test_compiled_code_reads_the_classes_of_submodules(tmp_path: Path) -> None:
    module = use(load_module_operator(tmp_path))(RMSNorm(8))
    hooked = torch.nn.Identity()
    hooked.register_forward_hook(lambda *given: given[-1])
    acts = (
        (torch.nn.Identity(), "the tensors are on cpu"),
        (torch.nn.ReLU(), "act is not Identity"),
        (hooked, "act has hooks"),
    )
    for act, says in acts:
        module.act = act
        torch._dynamo.reset()  # compiled code has no guards on hooks
        with warned() as messages:
            torch.compile(module, fullgraph=True, backend="eager")(torch.randn(3, 8))
        assert len(messages) == 1
        assert says in messages[0]


def test_compiled_code_warns_too(tmp_path: Path) -> None:
    """Check modules of two settings: the compiler makes a symbol of a float that it has seen with another value."""
    for eps in (0.25, 0.375):
        module = use(load_module_operator(tmp_path, eps=0.125))(RMSNorm(8, eps=eps))
        compiled = torch.compile(module, fullgraph=True, backend="eager")
        with warned() as messages:
            for _ in range(2):
                compiled(torch.randn(3, 8))
        assert len(messages) == 1
        assert "eps is not 0.125, as in these kernels: optimize" in messages[0]


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_a_step_under_autocast_is_that_of_the_module_without_it(network: Network, is_compiled: bool) -> None:
    used = copy.deepcopy(network.norm)
    plain = copy.deepcopy(network.norm)
    plain.__class__ = RMSNorm
    call = torch.compile(used, fullgraph=True, backend="aot_eager") if is_compiled else used
    x = torch.randn(3, 8)
    for module, forward in ((used, call), (plain, plain)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            forward(x).square().sum().backward()
        assert module.weight.grad is not None
    torch.testing.assert_close(used.weight.grad, plain.weight.grad)


def test_other_numbers_with_gradients_run_the_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference under autograd has the captured number in it."""
    operator = load_function_operator(tmp_path)
    install(monkeypatch, operator, rms_norm_driver())
    x = torch.randn(3, 8, requires_grad=True)
    use(operator)(by_hand)(x, torch.ones(8), 0.5).sum().backward()  # type: ignore[attr-defined]
    assert operator.calls()["fallback"] == {"eps is not 1e-06, the captured value, which gradients need": 1}


# --- programs of their own


def test_two_processes_train_it_with_ddp(tmp_path: Path) -> None:
    name = write_package(tmp_path)
    program = f"""
    import os, sys, torch, torch.distributed as dist
    from kernels.{name} import use_{name}
    from network import RMSNorm

    rank = int(sys.argv[1])
    dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(use_{name}(RMSNorm(8)))
    x = torch.full((4, 8), rank + 1.0)
    model(x).square().sum().backward()
    alone = RMSNorm(8)
    alone.load_state_dict(model.module.state_dict())
    loss = sum(alone(torch.full((4, 8), r + 1.0)).square().sum() for r in range(2)) / 2
    loss.backward()
    torch.testing.assert_close(model.module.weight.grad, alone.weight.grad)
    print("trained")
    dist.destroy_process_group()
    """
    outputs = run_all(tmp_path, program, ["0"], ["1"])
    assert [output.strip() for output in outputs] == ["trained", "trained"]


def test_a_process_loads_what_another_one_saved(tmp_path: Path) -> None:
    name = write_package(tmp_path)
    load = 'import torch\nprint(type(torch.load("m.pt", weights_only=False)).__mro__[1].__name__)'
    save = f"""
    import torch
    from kernels.{name} import use_{name}
    from network import RMSNorm
    torch.save(use_{name}(RMSNorm(8)), "m.pt")
    """
    run_all(tmp_path, save, [])
    assert run_all(tmp_path, load, []) == ["RMSNorm\n"]


def test_a_script_and_a_package_import_it(tmp_path: Path) -> None:
    package = tmp_path / "project"
    package.mkdir()
    (package / "__init__.py").touch()
    name = write_package(package)
    model = f"""
    try:
        from .kernels.{name} import {name}
    except ImportError:  # run as a script
        from kernels.{name} import {name}
    import torch
    print({name}(torch.ones(2, 4), torch.ones(4)).sum().item() > 7)
    """
    (package / "model.py").write_text(textwrap.dedent(model))
    for command, folder in ((["model.py"], package), (["-m", "project.model"], tmp_path)):
        assert run_python(folder, *command) == "True\n"


def test_an_installed_package_of_the_folders_name_does_not_hide_it(tmp_path: Path) -> None:
    (tmp_path / "site" / "kernels").mkdir(parents=True)
    (tmp_path / "site" / "kernels" / "__init__.py").touch()
    name = write_package(tmp_path)
    program = f"import sys; sys.path.append('site'); from kernels.{name} import {name}; print('found')"
    assert run_all(tmp_path, program, []) == ["found\n"]


def test_one_file_under_two_names_and_two_of_one_name_live_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    name = write_package(tmp_path)
    write_package(tmp_path / "other", name)
    program = f"""
    import sys
    sys.path.append("kernels")
    import kernels.{name}, {name}, other.kernels.{name}
    modules = [kernels.{name}, {name}, other.kernels.{name}]
    print(len(set(module.OPERATOR.registered for module in modules)))
    """
    assert run_all(tmp_path, program, []) == ["3\n"]


def write_package(folder: Path, name: str = "rms_norm") -> str:
    """Write an operator into ``kernels`` below the folder, and `RMSNorm` beside it."""
    task, cu_text = RMS_NORM_MODULE.task(name), RMS_NORM_MODULE.cu_text(name)
    write_operator(task, cu_text, plan_of(cu_text), folder / "kernels", verification=VERIFICATION)
    source = (FOLDER / "test_operator_in_programs.py").read_text()
    own = source[source.index("class RMSNorm") : source.index("class Network")]
    (folder / "network.py").write_text(f"import torch\n\n\n{own}")
    return name


def run_all(folder: Path, program: str, *arguments: list[str]) -> list[str]:
    """Run a program at once with each list of arguments; return what each printed."""
    (folder / "program.py").write_text(textwrap.dedent(program))
    started = [start_python(folder, "program.py", *each) for each in arguments]
    return [finish(process) for process in started]


def run_python(folder: Path, *command: str) -> str:
    return finish(start_python(folder, *command))


def start_python(folder: Path, *command: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, stderr
    return stdout


# --- a GPU's


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: a CUDA graph captures real launches")
def test_a_cuda_graph_replays_it(tmp_path: Path) -> None:
    module = use(load_module_operator(tmp_path))(RMSNorm(8).cuda())
    held = torch.randn(3, 8, device="cuda")
    with torch.no_grad():
        module(held)  # type: ignore[operator]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = module(held)  # type: ignore[operator]
        held.copy_(torch.randn(3, 8))
        graph.replay()
        torch.testing.assert_close(found, RMSNorm.forward(module, held))  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: NVRTC's kernels run there")
def test_the_kernels_are_counted_on_a_gpu(tmp_path: Path) -> None:
    operator = load_module_operator(tmp_path)
    module = use(operator)(RMSNorm(8).cuda())
    module(torch.randn(3, 8, device="cuda"))  # type: ignore[operator]
    assert operator.calls() == {"kernels": {operator.__name__: 1}, "fallback": {}}
