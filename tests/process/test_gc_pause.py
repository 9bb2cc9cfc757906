"""The collector rests only inside."""

from __future__ import annotations

import gc

import pytest

from kernel_lsp.process.gc_pause import paused_collection


def fail_inside() -> None:
    with paused_collection():
        assert not gc.isenabled()
        raise ValueError("inside")


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_is_as_before_also_after_an_error(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        with pytest.raises(ValueError, match="inside"):
            fail_inside()
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
