"""Prompts are files: Jinja, strict, with a front matter that says their name, version and inputs.

    ---
    name: improve
    version: 1
    inputs: task, parents, hint, rules
    ---
    what the system message says
    --- user ---
    what the user message says

Ours lie in `prompts/`; a workspace's `.kernel-lsp/prompts/` overrides them file by file, and its `.kernel-lsp/rules.md`
is included in every one. Templates run in Jinja's sandbox: a workspace's files are not ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kernel_lsp.core.digest import SHORT_DIGITS, sha256_of
from kernel_lsp.errors import UserError
from kernel_lsp.llm.request import Message

PROMPTS_FOLDER = Path(__file__).resolve().parent.parent / "prompts"
OVERRIDES_FOLDER_NAME = "prompts"
RULES_NAME = "rules.md"
SUFFIX = ".jinja"
MAX_RULES_CHARACTERS = 20_000

_FRONT_MATTER = re.compile(r"\A---\n(?P<fields>.*?)\n---\n(?P<body>.*)\Z", re.DOTALL)
_USER_PART = re.compile(r"^--- user ---\n", re.MULTILINE)
_REFERENCE = re.compile(r"{%-?\s*(?:include|import|from|extends)\s+[\"']([^\"']+)[\"']")


@dataclass(frozen=True)
class RenderedPrompt:
    """`hash` covers the template and its includes, not the inputs."""

    name: str
    version: int
    hash: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class _Template:
    name: str
    version: int
    inputs: frozenset[str]
    system: str
    user: str


class Prompts:
    """The prompts of one workspace. `kernel_lsp_folder` is its `.kernel-lsp`; None uses only the built-in ones."""

    def __init__(self, kernel_lsp_folder: Path | None = None) -> None:
        folders = [PROMPTS_FOLDER]
        if kernel_lsp_folder is not None:
            folders.insert(0, kernel_lsp_folder / OVERRIDES_FOLDER_NAME)
        self._loader = jinja2.FileSystemLoader(folders)
        self._environment = ImmutableSandboxedEnvironment(
            loader=jinja2.FunctionLoader(self._body),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,  # the result is a prompt, not HTML
        )
        self.rules = _read_rules(kernel_lsp_folder)

    def render(self, name: str, inputs: Mapping[str, Any]) -> RenderedPrompt:
        """Render the prompt with its inputs; `rules` is added automatically. Raises UserError naming the file."""
        template = self._template(name)
        given = {**inputs, "rules": self.rules} if "rules" in template.inputs else dict(inputs)
        if template.inputs != given.keys():
            wrong = ", ".join(sorted(template.inputs ^ given.keys()))
            raise self._error(name, f"its inputs and what it is given differ in: {wrong}")
        try:
            system, user = (
                self._environment.from_string(part).render(given) for part in (template.system, template.user)
            )
        except jinja2.TemplateError as error:
            raise self._error(name, str(error), getattr(error, "lineno", None)) from None
        messages = (Message(role="system", content=system.strip()), Message(role="user", content=user.strip()))
        return RenderedPrompt(name, template.version, self._hash(name), messages)

    def names(self) -> tuple[str, ...]:
        """Return the names of all prompts, without include files."""
        found = (name for name in self._loader.list_templates() if name.endswith(SUFFIX) and not name.startswith("_"))
        return tuple(name.removesuffix(SUFFIX) for name in found)

    def _template(self, name: str) -> _Template:
        match = _FRONT_MATTER.match(self._source(name + SUFFIX))
        if match is None:
            raise self._error(name, "it does not begin with a front matter", 1)
        fields = dict(line.split(":", 1) for line in match["fields"].splitlines() if ":" in line)
        parts = _USER_PART.split(match["body"])
        if len(parts) != 2:
            raise self._error(name, "it needs one line `--- user ---` between the system and the user message")
        try:
            version = int(fields["version"])
            inputs = frozenset(word.strip() for word in fields["inputs"].split(",") if word.strip())
        except (KeyError, ValueError) as error:
            raise self._error(name, f"its front matter lacks a good {error}", 1) from None
        if fields.get("name", "").strip() != name:
            raise self._error(name, f"its front matter names it '{fields.get('name', '').strip()}'", 1)
        self._check_inputs(name, match["body"], inputs)
        return _Template(name, version, inputs, parts[0], parts[1])

    def _check_inputs(self, name: str, body: str, inputs: frozenset[str]) -> None:
        """Require that every variable, also of includes, is declared, and every declared one is used."""
        used: set[str] = set()
        for text in (body, *(self._source(part) for part in self._parts(body))):
            try:
                used |= meta.find_undeclared_variables(self._environment.parse(text))
            except jinja2.TemplateSyntaxError as error:
                raise self._error(name, str(error), error.lineno) from None
        if used != inputs:
            raise self._error(name, f"declared and used inputs differ in: {', '.join(sorted(used ^ inputs))}", 1)

    def _parts(self, body: str) -> tuple[str, ...]:
        found: dict[str, None] = {}
        pending = _REFERENCE.findall(body)
        while pending:
            part = pending.pop(0)
            if part not in found:
                found[part] = None
                pending += _REFERENCE.findall(self._source(part))
        return tuple(found)

    def _hash(self, name: str) -> str:
        text = self._source(name + SUFFIX)
        whole = "\0".join([text, *(self._source(part) for part in self._parts(text))])
        return sha256_of(whole, SHORT_DIGITS)

    def _source(self, file_name: str) -> str:
        try:
            return self._loader.get_source(self._environment, file_name)[0]
        except (jinja2.TemplateNotFound, UnicodeDecodeError) as error:
            raise self._error(file_name.removesuffix(SUFFIX), f"it cannot be read: {error}") from None

    def _body(self, file_name: str) -> str:
        return self._source(file_name)

    def _error(self, name: str, problem: str, line: int | None = None) -> UserError:
        folder = next(
            (folder for folder in self._loader.searchpath if (Path(folder) / (name + SUFFIX)).exists()),
            self._loader.searchpath[0],
        )
        return UserError(
            f"the prompt '{name}': {problem}",
            file=str(Path(folder) / (name + SUFFIX)),
            line=line,
            next_step="correct the file, or remove it from .kernel-lsp/prompts to use ours",
        )


def _read_rules(folder: Path | None) -> str:
    path = None if folder is None else folder / RULES_NAME
    if path is None or not path.exists():
        return ""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", file=str(path), next_step="write it as UTF-8 text") from None
    if len(text) > MAX_RULES_CHARACTERS:
        raise UserError(
            f"has {len(text)} characters, and {MAX_RULES_CHARACTERS} fit",
            file=str(path),
            next_step="shorten it: it is sent with every prompt",
        )
    return text
