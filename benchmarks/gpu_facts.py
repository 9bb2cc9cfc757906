"""Which GPU, driver and torch a result was measured with."""

from __future__ import annotations

from kernel_lsp.evaluate.session import Session


async def gpu_facts(session: Session) -> dict[str, str]:
    """``{"gpu", "driver", "torch_version"}`` of an open session; empty where it uses no GPU."""
    device = await session.gpu_device()
    if device is None:
        return {}
    return {"gpu": device.facts.name, "driver": device.facts.driver, "torch_version": device.facts.torch_version}
