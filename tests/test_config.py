"""Settings: their layers, and what is refused."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.config import Settings, describe_settings, load_settings
from kernel_lsp.errors import SettingError


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("KERNEL_LSP_")]:
        monkeypatch.delenv(name)


def write(directory: Path, table: str) -> Path:
    path = directory / "pyproject.toml"
    path.write_text(f"[project]\nname = 'x'\n\n[tool.kernel-lsp]\n{table}\n")
    return path


def check(directory: Path, overrides: dict[str, Any] | None = None, **expected: Any) -> None:
    settings = load_settings(directory, overrides)
    assert {name: getattr(settings, name) for name in expected} == expected


def check_refused(directory: Path, *parts: str, overrides: dict[str, Any] | None = None) -> SettingError:
    with pytest.raises(SettingError) as refused:
        load_settings(directory, overrides)
    text = str(refused.value)
    assert all(part in text for part in parts), text
    return refused.value


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    assert load_settings(tmp_path) == Settings()


def test_pyproject_sets_with_dashes_or_underscores(tmp_path: Path) -> None:
    write(tmp_path, 'target-gpu = "A100 80GB"\nlog_level = "info"')
    check(tmp_path, target_gpu="A100 80GB", log_level="info")


def test_the_nearest_pyproject_holds_in_a_subdirectory(tmp_path: Path) -> None:
    write(tmp_path, "generations = 7")
    (tmp_path / "a" / "b").mkdir(parents=True)
    check(tmp_path / "a" / "b", generations=7)


def test_the_environment_wins_over_pyproject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "generations = 7")
    monkeypatch.setenv("KERNEL_LSP_GENERATIONS", "8")
    check(tmp_path, generations=8)


def test_the_caller_wins_over_all_and_none_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_LSP_GENERATIONS", "8")
    check(tmp_path, {"generations": 9, "device": None}, generations=9, device="auto")


def test_a_path_in_pyproject_is_relative_to_it(tmp_path: Path) -> None:
    write(tmp_path, 'python = ".venv/bin/python"')
    (tmp_path / "sub").mkdir()
    check(tmp_path / "sub", python=tmp_path / ".venv/bin/python")


def test_a_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    check(tmp_path, {"cache_directory": Path("~/c")}, cache_directory=tmp_path / "c")


def test_the_cache_is_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    check(tmp_path, cache_directory=tmp_path / "kernel-lsp")


def test_an_unknown_key_names_the_near_ones_and_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "seed = 1\ntaget-gpu = 'H200'")
    refused = check_refused(tmp_path, "no setting 'taget-gpu'", "did you mean target_gpu?")
    assert (refused.file, refused.line) == (str(path), 6)


def test_a_bad_value_names_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, "generations = 0")
    refused = check_refused(tmp_path, "generations = 0", "greater than or equal to 1")
    assert (refused.file, refused.line) == (str(path), 5)
    assert refused.next_step == "correct generations (default: 4): Generations of the search."


def test_a_bad_variable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_LSP_SEED", "many")
    check_refused(tmp_path, "$KERNEL_LSP_SEED", "integer")


@pytest.mark.parametrize(
    ("name", "value"), [("device", "gpu"), ("run_deadline_s", float("nan")), ("seed", -1), ("log_level", "loud")]
)
def test_values_out_of_bounds_are_refused(tmp_path: Path, name: str, value: object) -> None:
    check_refused(tmp_path, name, "the command line", overrides={name: value})


@pytest.mark.parametrize("device", ["cudda", "ssh://", "ray://"])
def test_a_value_of_no_pattern_shows_the_values_and_no_pattern(tmp_path: Path, device: str) -> None:
    with pytest.raises(SettingError) as raised:
        load_settings(tmp_path, {"device": device})
    assert raised.value.message == f"device = '{device}': not one of its values"
    assert "ssh://HOST" in (raised.value.next_step or "")


def test_a_broken_pyproject_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text("[tool.kernel-lsp\n")
    check_refused(tmp_path, str(path), "cannot be read")


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool]\nkernel-lsp = 3\n")
    check_refused(tmp_path, "is not a table")


def test_every_setting_is_described() -> None:
    described = describe_settings()
    assert [entry.name for entry in described] == list(Settings.model_fields)
    assert all(entry.description.endswith(".") for entry in described)


def test_every_setting_is_read_somewhere() -> None:
    """The memory limit of a worker was documented, and nothing limited it."""
    package = Path(__file__).parent.parent / "kernel_lsp"
    trees = [ast.parse(file.read_text()) for file in package.rglob("*.py") if file.name != "config.py"]
    read = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert set(Settings.model_fields) <= read
