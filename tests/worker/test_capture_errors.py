"""Bad files: a clear error with file, line and next step, and a worker that goes on or is known to be gone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernel_lsp.core.task import TargetSource, Task
from kernel_lsp.errors import EnvironmentProblem, KernelLspError, TargetError
from kernel_lsp.process.interpreter import find_python
from kernel_lsp.process.worker_client import Worker
from tests.worker.capturing import capture_source, capture_text, source_of, tensor

X = tensor("x", 4, 8)


def fails(text: str, symbol: str = "f", *, line: str | None = None, inputs: object = (X,), **source: object) -> str:
    """Capture a text that cannot be captured; the error must name the file, the line that holds `line`, a next step."""
    made = source_of(text, symbol, inputs=None if inputs is None else list(inputs), **source)  # type: ignore[call-overload, arg-type]
    with pytest.raises(TargetError) as caught:
        capture_source(made)
    error = caught.value
    assert error.file == made.file
    assert error.next_step
    if line is not None:
        assert error.line is not None
        assert line in Path(made.file).read_text().splitlines()[error.line - 1]
    return error.message


def test_a_file_that_raises_on_import() -> None:
    message = fails("value = {}['missing']\ndef f(x):\n    return x", line="value =")
    assert message == "importing the file raised KeyError: 'missing'"


def test_a_file_with_a_syntax_error() -> None:
    assert "SyntaxError" in fails("def f(x):\n    return x +", line="return x +")


def test_an_import_that_is_not_installed() -> None:
    assert "ModuleNotFoundError" in fails("import no_such_package\ndef f(x): return x", line="no_such_package")


def test_a_file_that_exits() -> None:
    assert "exit code 3" in fails("import sys\nsys.exit(3)\ndef f(x): return x", line="sys.exit")


def test_a_file_that_parses_arguments_or_writes_is_told_to_do_that_in_its_main_program() -> None:
    parses = "import argparse\nargparse.ArgumentParser().parse_args(['--no'])\ndef f(x): return x"
    writes = "raise PermissionError(13, 'Permission denied', 'outputs')\ndef f(x): return x"
    for text, named in ((parses, "parse_args()"), (writes, "writes files")):
        with pytest.raises(TargetError) as caught:
            capture_text(text, "f", inputs=[X])
        assert caught.value.next_step.startswith("move what ")
        assert named in caught.value.next_step
        assert "__main__" in caught.value.next_step


def test_a_file_that_ends_the_process() -> None:
    assert "ended the interpreter (exit code 3)" in fails("import os\nos._exit(3)\ndef f(x): return x")


def test_a_file_that_is_killed() -> None:
    text = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\ndef f(x): return x"
    assert "killed by signal 11" in fails(text)


def test_a_worker_that_is_killed_from_outside_names_memory_as_the_next_step() -> None:
    made = source_of("import os\nos.kill(os.getpid(), 9)\ndef f(x): return x", "f", inputs=[X])
    with pytest.raises(TargetError, match="killed by signal 9") as caught:
        capture_source(made)
    assert "memory" in caught.value.next_step
    assert "os._exit" not in caught.value.next_step


def test_prints_do_not_disturb_the_answer() -> None:
    text = "import os\nprint('{\"task\": 1}')\nos.write(1, b'noise')\ndef f(x):\n    print(x)\n    return x * 2"
    assert isinstance(capture_text(text, "f", inputs=[X]), Task)


def test_reading_stdin_gives_its_end() -> None:
    assert "EOFError" in fails("input('name? ')\ndef f(x): return x", line="input(")


async def test_a_file_that_hangs() -> None:
    source = source_of("while True:\n    pass\ndef f(x): return x", "f", inputs=[X])
    async with Worker(await find_python(None), capture_deadline_s=8) as worker:
        with pytest.raises(TargetError, match="did not finish within 8 s") as caught:
            await worker.capture(source, with_backward=False)
        assert caught.value.file == source.file
        assert "KERNEL_LSP_CAPTURE_DEADLINE_S" in caught.value.next_step
        assert not worker.is_alive


def test_a_symbol_that_is_missing_at_run_time() -> None:
    assert "'f' does not exist" in fails("if False:\n    def f(x):\n        return x")


def test_a_symbol_that_is_no_function() -> None:
    assert "is a int" in fails("f = 3")


def test_a_forward_that_raises() -> None:
    message = fails("def f(x):\n    y = x * 2\n    return y @ torch.ones(3, 3)", line="torch.ones(3, 3)")
    assert message.startswith("running the target on its inputs raised RuntimeError")


def test_a_constructor_that_needs_arguments() -> None:
    text = "class Net(nn.Module):\n    def __init__(self, dim, eps=1e-6):\n        super().__init__()"
    source = source_of(text, "Net", inputs=[X])
    with pytest.raises(TargetError, match="constructing Net raised TypeError") as caught:
        capture_source(source)
    assert "# kernel-lsp: init: dim=64" in caught.value.next_step


def test_get_inputs_that_raises() -> None:
    text = "def f(x):\n    return x\n\n\ndef get_inputs():\n    raise ValueError('no data')"
    assert fails(text, line="raise", inputs=None) == "calling get_inputs() raised ValueError: no data"


def test_get_inputs_without_tensors() -> None:
    assert "no tensor" in fails("def f(x):\n    return x\n\n\ndef get_inputs():\n    return [1, 2]", inputs=None)


def test_nothing_says_the_shapes() -> None:
    source = source_of("def f(x):\n    return x", "f")
    with pytest.raises(TargetError, match="shapes") as caught:
        capture_source(source)
    assert source.example_pragma in caught.value.next_step


def test_a_branch_on_values() -> None:
    assert "depends on the values" in fails(
        "def f(x):\n    if x.sum() > 0:\n        return x\n    return -x", line="if x.sum()"
    )


def test_a_value_taken_out_of_a_tensor() -> None:
    assert "depends on values" in fails("def f(x):\n    return x * x.sum().item()", line=".item()")


def test_a_size_that_depends_on_values() -> None:
    assert "depends on values" in fails("def f(x):\n    return x[x > 0]", line="x[x > 0]")


def test_random_code() -> None:
    assert "random" in fails("def f(x):\n    return x[torch.randperm(4)]", line="randperm")
    assert "random" in fails("def f(x):\n    return torch.bernoulli(x.sigmoid())", line="bernoulli")


def test_an_input_changed_in_place() -> None:
    assert "changed in place" in fails("def f(x):\n    x.add_(1)\n    return x * 2", line="x.add_(1)")
    assert "changed in place" in fails("def f(x):\n    x[:, 0] = 0\n    return x", line="x[:, 0] = 0")


def test_a_conversion_to_numpy_is_named() -> None:
    text = "def f(x):\n    return torch.from_numpy(x.numpy() * 2)"
    assert "converts a tensor to NumPy" in fails(text, line="numpy")


def test_an_operator_with_side_effects_is_named() -> None:
    text = "def f(x):\n    return torch.linalg.solve(x @ x.T, x)"
    assert "aten._linalg_check_errors.default has side effects" in fails(text, line="solve")


def test_complex_numbers() -> None:
    assert "complex" in fails("def f(x):\n    return torch.fft.fft(x).abs()", line="fft")
    text = "def f(x):\n    return x.abs()\n\n\ndef get_inputs():\n    return [torch.ones(2, dtype=torch.complex64)]"
    assert "input 'x' is complex" in fails(text, inputs=None)


def test_float8() -> None:
    text = "def f(x):\n    return x.float()\n\n\ndef get_inputs():\n    return [torch.ones(2).to(torch.float8_e4m3fn)]"
    assert "float8" in fails(text, inputs=None)


def test_sparse_inputs() -> None:
    text = "def f(x):\n    return x.to_dense()\n\n\ndef get_inputs():\n    return [torch.eye(3).to_sparse()]"
    assert "sparse" in fails(text, inputs=None)


def test_zero_size_inputs() -> None:
    assert "no elements" in fails("def f(x):\n    return x * 2", inputs=[tensor("x", 0, 8)])


def test_outputs_that_are_no_tensors() -> None:
    assert "returns no tensor" in fails("def f(x):\n    return 3.0")
    assert "output 'out_1' is a Python number" in fails("def f(x):\n    return x, x.shape[0]")
    assert "returns no tensor" in fails("def f(x):\n    return 'text'")
    assert "returns no tensor" in fails("def f(x):\n    return None")


def test_a_result_whose_class_cannot_be_called_with_its_parts() -> None:
    """An operator that calls it would make a working program fail."""
    text = "from collections import defaultdict\n\n\ndef f(x):\n    return defaultdict(list, a=x * 2)"
    assert "returns a defaultdict that cannot be made again" in fails(text)


def test_an_object_that_cannot_be_called() -> None:
    assert "cannot be called" in fails("class Net:\n    pass", "Net")


async def test_the_worker_goes_on_after_an_error() -> None:
    async with Worker(await find_python(None)) as worker:
        for text in ("def f(x):\n    raise ValueError", "def f(x):\n    return x"):
            source = source_of(text, "f", inputs=[X])
            try:
                task = await worker.capture(source, with_backward=False)
            except KernelLspError:
                task = None
        assert task is not None


# --- the interpreter


def other_python(folder: Path, text: str) -> Path:
    """A program that stands for an interpreter."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


async def unusable(python: Path) -> EnvironmentProblem:
    with pytest.raises(EnvironmentProblem) as caught:
        await find_python(python)
    assert caught.value.next_step
    return caught.value


async def test_an_interpreter_that_does_not_exist(tmp_path: Path) -> None:
    assert "does not exist" in str(await unusable(tmp_path / "python"))


async def test_a_file_that_is_no_interpreter(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("hello")
    assert "is not a program" in str(await unusable(tmp_path / "python"))
    assert "is not a Python interpreter" in str(await unusable(other_python(tmp_path, "echo hello")))


async def test_an_interpreter_without_torch(tmp_path: Path) -> None:
    python = other_python(tmp_path, f'exec "{sys.executable}" -I -S "$@"')
    error = await unusable(python)
    assert "has no torch" in error.message
    assert "pip install torch" in error.next_step


async def test_a_worker_without_torch_says_so(tmp_path: Path) -> None:
    source: TargetSource = source_of("def f(x):\n    return x", "f", inputs=[X])
    async with Worker(other_python(tmp_path, f'exec "{sys.executable}" -S "$@"')) as worker:
        with pytest.raises(EnvironmentProblem, match="cannot import torch"):
            await worker.capture(source, with_backward=False)


async def test_a_worker_that_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(EnvironmentProblem, match="the cache cannot be written") as caught:
        async with Worker(await find_python(None), cache=tmp_path / "cache"):
            pass
    assert "KERNEL_LSP_CACHE_DIRECTORY" in caught.value.next_step
    with pytest.raises(EnvironmentProblem, match="cannot be started"):
        async with Worker(tmp_path / "nothing"):
            pass


async def test_the_active_environment_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setenv("VIRTUAL_ENV", str(Path(sys.prefix)))
    assert await find_python(None) == Path(sys.prefix) / "bin" / "python"
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "gone"))
    with pytest.raises(EnvironmentProblem, match="VIRTUAL_ENV"):
        await find_python(None)


async def test_describe_names_versions() -> None:
    async with Worker(await find_python(None)) as worker:
        interpreter = await worker.describe()
    assert interpreter.torch_version.split(".")[0].isdigit()
    assert interpreter.has_cuda == bool(interpreter.devices)


def test_a_constant_is_not_a_target() -> None:
    with pytest.raises(TargetError, match="depends on no input"):
        capture_text("def f(x):\n    return torch.zeros(8) + torch.arange(8)", "f", inputs=[tensor("x", 8)])
