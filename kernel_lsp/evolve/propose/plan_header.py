"""A model's code as a candidate's text: its plan says which task it is of, whatever the model wrote there."""

from __future__ import annotations

import re

_VERSION = re.compile(r"^//[ \t]*kernel-lsp[ \t]*:[^\n]*\n", re.MULTILINE)
_TASK = re.compile(r"^//[ \t]*task[ \t]*:[^\n]*\n(?://[ ]{3,}[^\n]*\n)*", re.MULTILINE)
_CODE = re.compile(r"^(?!//)", re.MULTILINE)


def assemble(code: str, target: str) -> str:
    """The file's text with `target` on its `task:` line, lines ending in newlines, one at the end. Code without a plan
    stays as it is: the evaluation says what it lacks."""
    text = "\n".join(line.rstrip() for line in code.replace("\r\n", "\n").split("\n")).strip("\n") + "\n"
    version = _VERSION.search(text)
    if version is None:
        return text
    end = _CODE.search(text, version.end())
    plan_end = end.start() if end is not None else len(text)
    plan = _TASK.sub("", text[version.end() : plan_end])
    return f"{text[: version.end()]}// task: {target}\n{plan}{text[plan_end:]}"
