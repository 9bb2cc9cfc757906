"""All settings, each declared once: its name, type, default, bounds, description and scope.

Later sources override earlier ones: defaults, ``[tool.kernel-lsp]`` of the nearest pyproject.toml,
``KERNEL_LSP_<NAME>`` in the environment, the caller's overrides (command-line options).
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from kernel_lsp.core.model import Noun
from kernel_lsp.errors import SettingError

ENVIRONMENT_PREFIX = "KERNEL_LSP_"
PYPROJECT_TABLE = "kernel-lsp"
FOLDER_NAME = ".kernel-lsp"
"""Folder of a workspace with its runs and its recording."""

Scope = Literal["machine", "workspace"]
"""Scope of a setting: `machine` settings depend on this computer and do not belong in a shared file."""


def _setting(default: Any, description: str, scope: Scope = "workspace", **bounds: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"scope": scope}, **bounds)


def default_cache_directory() -> Path:
    """Return ``$XDG_CACHE_HOME/kernel-lsp``, by default ``~/.cache/kernel-lsp`` (XDG Base Directory Specification)."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if os.path.isabs(root) else Path("~/.cache").expanduser()) / "kernel-lsp"


def _split(value: Any) -> Any:
    """Split a list written as words: ``a b`` or ``a, b``."""
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_split)]
Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
Temperatures = Annotated[tuple[Temperature, ...], BeforeValidator(_split)]
Deadline = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]

ToleranceName = Literal["strict", "torch", "kernelbench", "robust-kbench"]
ToleranceSetting = Literal["strict", "torch", "kernelbench", "robust-kbench", "all"]


class Settings(Noun):
    """All settings of one run."""

    device: str = _setting(
        "auto",
        "Device that checks and times candidates: auto, cpu (the PTX executor), cuda, cuda:N, cuda:all, ssh://HOST, "
        "ray or ray://HOST:PORT.",
        pattern=r"^(auto|cpu|cuda(:(\d{1,3}|all))?|ssh://\S+|ray(://\S+)?(\?\S*)?)$",
    )
    target_gpu: str = _setting("H200", "Target GPU of estimates; every estimate names it.", min_length=1)
    python: Path | None = _setting(
        None, "Python interpreter with your torch; default: that of the active environment.", "machine"
    )
    cuda_directory: Path | None = _setting(None, "Root of the CUDA toolkit; default: found automatically.", "machine")
    generations: int = _setting(4, "Generations of the search.", ge=1, le=1000)
    proposals: int = _setting(8, "Candidates proposed per generation.", ge=1, le=1000)
    seed: int = _setting(0, "Seed of the search and of the inputs.", ge=0, lt=1 << 63)
    capture_deadline_s: Deadline = _setting(120.0, "Capture timeout (seconds), for importing and capturing the target.")
    compile_deadline_s: Deadline = _setting(60.0, "Compile timeout (seconds), per compilation.")
    baseline_wait_s: float = _setting(
        0.0,
        "Baseline timeout (seconds): how long a timing waits for torch.compile's modes; 0 takes those that are ready.",
        ge=0,
        le=3600,
    )
    run_deadline_s: Deadline = _setting(3600.0, "Run time limit (seconds), after which no further candidate starts.")
    cache_directory: Path = Field(
        default_factory=default_cache_directory,
        description="Folder that caches compiled kernels between runs.",
        json_schema_extra={"scope": "machine"},
    )
    models: Words = _setting(
        (),
        "Models that propose kernels, e.g. openai/gpt-5, ollama/qwen3, manual, judge=NAME; none: the generator alone.",
    )
    model_base_url: str | None = _setting(None, "Base URL of a server with OpenAI's protocol.", "machine")
    model_prices: str | None = _setting(
        None, "Price of models without a known price: PROMPT:REPLY, US dollars per million tokens.", "machine"
    )
    budget_usd: float | None = _setting(
        None, "Maximum cost of a run's models (US dollars), never exceeded.", "machine", ge=0, allow_inf_nan=False
    )
    model_deadline_s: Deadline = _setting(600.0, "Reply timeout (seconds), per reply of a model.")
    model_idle_deadline_s: Deadline = _setting(
        120.0, "Idle timeout (seconds) between parts of a model's streamed reply."
    )
    manual_wait_s: float = _setting(
        86_400.0,
        "Manual reply timeout (seconds), for the model `manual`; the run then stops, and can be resumed.",
        ge=0,
        le=31_536_000,
    )
    model_max_tokens: int = _setting(16_384, "Maximum tokens of one reply.", ge=256, le=1_000_000)
    model_concurrency: int = _setting(8, "Maximum concurrent requests to one model.", ge=1, le=256)
    model_requests_per_minute: float | None = _setting(None, "Maximum requests to one model per minute.", gt=0, le=1e6)
    temperatures: Temperatures = _setting((0.3, 0.7, 1.0), "Sampling temperatures of proposals.", min_length=1)
    strategy: Literal["evolve", "best-of-n", "beam", "agent"] = _setting(
        "evolve", "Search strategy of models' proposals; agent: each works in several turns, with tools."
    )
    ensemble: Literal["bandit", "uniform"] = _setting("bandit", "Selection of models, temperatures and hints.")
    repair_rounds: int = _setting(3, "Maximum repairs of a translation by a model.", ge=0, le=20)
    islands: int = _setting(2, "Populations that evolve separately and exchange their best members.", ge=1, le=64)
    early_stop: Literal["on", "off"] = _setting(
        "on", "Stop a search near the speed of light (roofline bound), or when it gains nothing more."
    )
    judges: Literal["off", "filter"] = _setting("off", "Let models filter candidates before they reach the hardware.")
    judge_threshold: float = _setting(0.35, "Probability of correctness below which a judge votes no.", ge=0, le=1)
    out_directory: Path | None = _setting(None, "Folder of the result files; default: next to the target's file.")
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "warning", "Minimum level of log messages on stderr."
    )
    sandbox: Literal["auto", "off", "limits", "landlock", "landlock+seccomp", "bwrap"] = _setting(
        "auto",
        "Sandbox of compilers, the executor and workers: auto selects the strongest that this machine supports.",
        "machine",
    )
    tolerance: ToleranceSetting = _setting(
        "strict",
        "Tolerance for kernels with host code of their own: strict, or another benchmark's; all: strict decides, and "
        "the verdict under each is shown.",
    )
    diagnostics: bool = _setting(True, "In an editor: show the rules' findings while you type.")
    code_lens: bool = _setting(True, "In an editor: show commands and the last result above each target.")
    inlay_hints: bool = _setting(False, "In an editor: show each line's share of the estimated time at its end.")
    estimate_on_hover: bool = _setting(
        True, "In an editor: estimate a target when you hover over it; imports its file, in a trusted workspace."
    )
    check_on_save: bool = _setting(
        True, "In an editor: compile and check a kernel when you save it, in a trusted workspace."
    )
    measure_on_save: bool = _setting(
        False, "In an editor: also run and time a kernel on the GPU when you save it, in a trusted workspace."
    )


class SettingDescription(Noun):
    """One setting, as shown by help and editors."""

    name: str
    type: str
    default: str
    description: str
    scope: Scope
    environment_variable: str


def describe_settings() -> tuple[SettingDescription, ...]:
    """Return all settings in the order of declaration."""
    schema = Settings.model_json_schema()["properties"]
    return tuple(_describe(name, schema[name]) for name in Settings.model_fields)


def load_settings(directory: Path | None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Load the settings for `directory` (default: the current one). An override of None is ignored.

    Raises SettingError for an unknown name, with similar ones, and for an invalid value, with its source.
    """
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    return _Layers().add_pyproject(directory or Path.cwd()).add_environment().add(given, "the command line").settings()


def find_workspace(directory: Path) -> Path:
    """Return the nearest folder, from `directory` up, that holds `.kernel-lsp`, `.git` or `pyproject.toml`; else
    `directory`.

    Folders that everybody may write to (`/tmp`) are not workspaces of what lies below them: others' runs and settings
    would be taken for the user's.
    """
    for folder in (directory, *directory.parents):
        if any((folder / mark).exists() for mark in (FOLDER_NAME, ".git", "pyproject.toml")):
            return folder if not folder.stat().st_mode & stat.S_IWOTH else directory
    return directory


class _Layers:
    """Values by setting, with the source of each."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._origins: dict[str, tuple[str, int | None]] = {}

    def add(self, values: Mapping[str, Any], origin: str) -> _Layers:
        for spelled, value in values.items():
            self._put(spelled, value, (origin, None))
        return self

    def add_pyproject(self, directory: Path) -> _Layers:
        path = _nearest_pyproject(directory)
        if path is None:
            return self
        text, table = _read_table(path)
        for spelled, value in table.items():
            name = self._put(spelled, value, (str(path), _line_of(spelled, text)))
            self._values[name] = _relative_to(path.parent, name, value)
        return self

    def add_environment(self) -> _Layers:
        for variable in sorted(os.environ):
            if variable.startswith(ENVIRONMENT_PREFIX):
                name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
                self._put(name, os.environ[variable], (f"${variable}", None))
        return self

    def settings(self) -> Settings:
        try:
            settings = Settings(**self._values)
        except ValidationError as problem:
            raise self._bad_value(problem) from None
        paths = {name: value.expanduser() for name, value in settings if isinstance(value, Path)}
        return settings.model_copy(update=paths)

    def _put(self, spelled: str, value: Any, origin: tuple[str, int | None]) -> str:
        name = spelled.replace("-", "_")
        if name not in Settings.model_fields:
            raise SettingError(
                f"there is no setting '{spelled}'", file=origin[0], line=origin[1], next_step=_near(name)
            )
        self._values[name], self._origins[name] = value, origin
        return name

    def _bad_value(self, problem: ValidationError) -> SettingError:
        error = problem.errors()[0]
        name = str(error["loc"][0])
        file, line = self._origins.get(name, ("defaults", None))
        field = Settings.model_fields[name]
        return SettingError(
            f"{name} = {error['input']!r}: {_reason(error)}",
            file=file,
            line=line,
            next_step=f"correct {name} (default: {field.get_default(call_default_factory=True)}): {field.description}",
        )


def _reason(error: Mapping[str, Any]) -> str:
    """Return why a value is refused. The next step describes the values of a setting that has a pattern."""
    message = str(error["msg"])
    return "not one of its values" if error["type"] == "string_pattern_mismatch" else message[0].lower() + message[1:]


def _nearest_pyproject(directory: Path) -> Path | None:
    directory = directory.absolute()
    return next(
        (path for folder in (directory, *directory.parents) if (path := folder / "pyproject.toml").is_file()), None
    )


def _read_table(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text).get("tool", {}).get(PYPROJECT_TABLE, {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise SettingError(f"cannot be read: {problem}", file=str(path), next_step="correct the file") from problem
    if not isinstance(table, dict):
        raise SettingError(f"tool.{PYPROJECT_TABLE} is not a table", file=str(path), next_step="write it as a table")
    return text, table


def _line_of(key: str, text: str) -> int | None:
    """Return the line of `key = ` below the table's heading."""
    heading = re.search(rf"^\s*\[\s*tool\s*\.\s*[\"']?{PYPROJECT_TABLE}[\"']?\s*\]", text, re.MULTILINE)
    start = heading.end() if heading else 0
    match = re.compile(rf"^\s*[\"']?{re.escape(key)}[\"']?\s*=", re.MULTILINE).search(text, start)
    return text.count("\n", 0, match.end()) + 1 if match else None


def _relative_to(directory: Path, name: str, value: Any) -> Any:
    """Resolve a path in a settings file relative to that file."""
    is_path = "Path" in str(Settings.model_fields[name].annotation)
    return directory / Path(value).expanduser() if is_path and isinstance(value, str) else value


def _near(name: str) -> str:
    near = difflib.get_close_matches(name, Settings.model_fields, n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"the settings are {', '.join(Settings.model_fields)}"


def _describe(name: str, schema: Mapping[str, Any]) -> SettingDescription:
    field = Settings.model_fields[name]
    default = field.get_default(call_default_factory=True)
    return SettingDescription(
        name=name,
        type=_type_text(schema),
        default="" if default is None else str(default),
        description=str(field.description),
        scope=schema["scope"],
        environment_variable=ENVIRONMENT_PREFIX + name.upper(),
    )


def _type_text(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(schema["enum"])
    variants = [variant for variant in schema.get("anyOf", [schema]) if variant.get("type") != "null"]
    return str(variants[0].get("format") or variants[0]["type"])
