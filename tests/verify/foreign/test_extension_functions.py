"""Find the function of a torch extension that computes the task."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from kernel_lsp.worker.foreign import module

from .harness import ARGUMENTS, SOURCE


@pytest.mark.parametrize(
    ("defined", "functions"),
    [
        (("forward", "other"), ["forward"]),
        (("scale", "other"), ["forward"]),
        (("my_scale",), ["forward"]),
        (("my_scale", "backward"), ["forward", "backward"]),
        (("backward",), ["backward"]),
        (("first", "second"), []),
    ],
)
def test_it_is_forward_the_one_of_the_tasks_name_or_the_only_one(
    monkeypatch: pytest.MonkeyPatch, defined: tuple[str, ...], functions: list[str]
) -> None:
    def import_library(*_: str) -> Any:
        return SimpleNamespace(**dict.fromkeys(defined, lambda x, _eps: x), __doc__="")

    monkeypatch.setattr(module, "import_library", import_library)
    request = {"kind": "extension", "device": "cpu", "arguments": ARGUMENTS, "gradients": [], "source": SOURCE}
    opened = module.open_foreign({**request, "library": "", "module_name": ""})
    assert opened == {"status": "opened", "functions": functions, "defined": sorted(defined)}
