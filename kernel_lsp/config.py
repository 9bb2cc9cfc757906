"""Every setting, once: its name, type, default, bounds, description and scope.

Later wins: defaults, ``[tool.kernel-lsp]`` of the nearest pyproject.toml, ``KERNEL_LSP_<NAME>`` in the environment,
what the caller overrides (command-line options).
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from kernel_lsp.core.model import Noun
from kernel_lsp.errors import SettingError

ENVIRONMENT_PREFIX = "KERNEL_LSP_"
PYPROJECT_TABLE = "kernel-lsp"
GIB = 1 << 30

Scope = Literal["machine", "workspace"]
"""Who may set it: `machine` settings say where things are on this computer and do not belong into a shared file."""


def _setting(default: Any, description: str, scope: Scope = "workspace", **bounds: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"scope": scope}, **bounds)


def default_cache_directory() -> Path:
    """``$XDG_CACHE_HOME/kernel-lsp``, by default ``~/.cache/kernel-lsp`` (XDG Base Directory Specification)."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if os.path.isabs(root) else Path("~/.cache").expanduser()) / "kernel-lsp"


def _split(value: Any) -> Any:
    """Lists may be written as words: ``a b`` or ``a, b``."""
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_split)]
Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
Temperatures = Annotated[tuple[Temperature, ...], BeforeValidator(_split)]
Deadline = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]

ToleranceName = Literal["strict", "torch", "kernelbench", "robust-kbench"]


class Settings(Noun):
    """All settings of one run."""

    device: str = _setting(
        "auto",
        "Where candidates are checked and timed: auto, cpu (the PTX executor), cuda, or cuda:N.",
        pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$",
    )
    target_gpu: str = _setting("H200", "The GPU that estimates are for; every estimate names it.", min_length=1)
    python: Path | None = _setting(
        None, "The interpreter that has your torch; by default that of the active environment.", "machine"
    )
    cuda_directory: Path | None = _setting(
        None, "Root of the CUDA toolkit to use; by default it is searched for.", "machine"
    )
    generations: int = _setting(4, "Generations of the search.", ge=1, le=1000)
    proposals: int = _setting(8, "Candidates proposed per generation.", ge=1, le=1000)
    seed: int = _setting(0, "Seed of the search and of the inputs.", ge=0, lt=1 << 63)
    capture_deadline_s: Deadline = _setting(120.0, "Seconds that importing and capturing the target may take.")
    compile_deadline_s: Deadline = _setting(60.0, "Seconds that one compile may take.")
    case_deadline_s: Deadline = _setting(60.0, "Seconds that one correctness case may take.")
    baseline_wait_s: float = _setting(
        0.0, "Seconds that a timing waits for torch.compile's modes; 0 takes those that are ready.", ge=0, le=3600
    )
    run_deadline_s: Deadline = _setting(3600.0, "Seconds after which a run starts no further candidate.")
    memory_limit_bytes: int = _setting(8 * GIB, "Memory that a worker process may use.", ge=GIB // 4)
    max_case_instructions: int = _setting(
        20_000_000_000, "Instructions, counted per thread, that the executor may run for one case.", ge=1_000_000
    )
    cache_directory: Path = Field(
        default_factory=default_cache_directory,
        description="Where compiled kernels are kept between runs.",
        json_schema_extra={"scope": "machine"},
    )
    models: Words = _setting(
        (),
        "Models that propose kernels, e.g. openai/gpt-5, ollama/qwen3, manual, judge=NAME; none: the generator alone.",
    )
    model_base_url: str | None = _setting(None, "Address of a server that speaks OpenAI's protocol.", "machine")
    model_prices: str | None = _setting(
        None, "PROMPT:REPLY, US dollars per million tokens, for models whose price is not known.", "machine"
    )
    budget_usd: float | None = _setting(
        None, "US dollars that a run may spend on models; it never spends more.", "machine", ge=0, allow_inf_nan=False
    )
    model_deadline_s: Deadline = _setting(600.0, "Seconds that one reply of a model may take.")
    model_idle_deadline_s: Deadline = _setting(120.0, "Seconds that a model may say nothing while it replies.")
    manual_wait_s: float = _setting(
        86_400.0,
        "Seconds that a run waits for a person's reply (model `manual`); then it stops, and can be resumed.",
        ge=0,
        le=31_536_000,
    )
    model_max_tokens: int = _setting(16_384, "Tokens that one reply may have.", ge=256, le=1_000_000)
    model_concurrency: int = _setting(8, "Requests to one model at a time.", ge=1, le=256)
    model_requests_per_minute: float | None = _setting(None, "Requests to one model per minute.", gt=0, le=1e6)
    temperatures: Temperatures = _setting((0.3, 0.7, 1.0), "Temperatures that proposals are drawn with.", min_length=1)
    strategy: Literal["evolve", "best-of-n", "beam", "agent"] = _setting(
        "evolve", "How models' proposals build on each other; agent: each works in turns, with tools."
    )
    ensemble: Literal["bandit", "uniform"] = _setting("bandit", "How models, temperatures and hints are drawn.")
    repair_rounds: int = _setting(3, "Times that a model may correct a translation.", ge=0, le=20)
    islands: int = _setting(2, "Populations that evolve apart and exchange their best.", ge=1, le=64)
    early_stop: Literal["on", "off"] = _setting(
        "on", "Whether a search ends at the floor, or when it gains nothing more."
    )
    judges: Literal["off", "filter"] = _setting("off", "Whether models judge what may go to the hardware.")
    judge_threshold: float = _setting(0.35, "Probability of being right below which a judge votes no.", ge=0, le=1)
    out_directory: Path | None = _setting(None, "Where the two result files go; by default beside the target's file.")
    log_level: Literal["debug", "info", "warning", "error"] = _setting("warning", "What is logged to stderr.")
    sandbox: Literal["auto", "off", "limits", "landlock", "landlock+seccomp", "bwrap"] = _setting(
        "auto",
        "How compilers, the executor and workers are confined: auto takes the strongest that this machine has.",
        "machine",
    )
    tolerance: ToleranceName = _setting(
        "strict", "Tolerance for kernels with host code of their own; the others are those of other benchmarks."
    )
    diagnostics: bool = _setting(True, "In an editor: show what the rules find while you type.")
    code_lens: bool = _setting(True, "In an editor: show what can be done, and the last result, above each target.")
    inlay_hints: bool = _setting(False, "In an editor: show each line's share of the estimated time at its end.")
    estimate_on_hover: bool = _setting(
        True, "In an editor: estimate a target when you hover over it. That imports its file, in a trusted workspace."
    )
    check_on_save: bool = _setting(
        True, "In an editor: compile and check a kernel when you save it, in a trusted workspace."
    )
    measure_on_save: bool = _setting(
        False, "In an editor: when you save a kernel, also run and time it on the GPU, in a trusted workspace."
    )


class SettingDescription(Noun):
    """One setting as help and editors show it."""

    name: str
    type: str
    default: str
    description: str
    scope: Scope
    environment_variable: str


def describe_settings() -> tuple[SettingDescription, ...]:
    """All settings in the order they are declared."""
    schema = Settings.model_json_schema()["properties"]
    return tuple(_describe(name, schema[name]) for name in Settings.model_fields)


def load_settings(directory: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings that hold in `directory` (default: the current one). An override of None counts as not given.

    Raises SettingError for a name that is no setting, with the names near it, and for a value that a setting cannot
    have, with where it was set.
    """
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    return _Layers().add_pyproject(directory or Path.cwd()).add_environment().add(given, "the command line").settings()


# --- below: the layers


class _Layers:
    """Values by setting, and where each came from."""

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
        return SettingError(
            f"{name} = {error['input']!r}: {error['msg'][0].lower()}{error['msg'][1:]}",
            file=file,
            line=line,
            next_step=str(Settings.model_fields[name].description),
        )


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
    """The line of `key = ` below the table's heading."""
    heading = re.search(rf"^\s*\[\s*tool\s*\.\s*[\"']?{PYPROJECT_TABLE}[\"']?\s*\]", text, re.MULTILINE)
    start = heading.end() if heading else 0
    match = re.compile(rf"^\s*[\"']?{re.escape(key)}[\"']?\s*=", re.MULTILINE).search(text, start)
    return text.count("\n", 0, match.end()) + 1 if match else None


def _relative_to(directory: Path, name: str, value: Any) -> Any:
    """A path in a file is relative to the file."""
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
