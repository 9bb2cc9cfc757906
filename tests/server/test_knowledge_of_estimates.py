"""What the server knows of estimates, by itself."""

from __future__ import annotations

from typing import cast

from kernel_lsp.server.knowledge import Knowledge, KnownEstimate

URI = "file:///w/model.py"


def test_estimates_are_forgotten_with_the_settings_that_they_were_made_with() -> None:
    knowledge = Knowledge()
    knowledge.learn_estimate(URI, "Net", cast("KnownEstimate", object()))
    assert knowledge.estimate(URI, "Net") is not None
    knowledge.forget_estimates()
    assert knowledge.estimate(URI, "Net") is None
