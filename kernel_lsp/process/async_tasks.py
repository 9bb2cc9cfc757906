"""End asyncio's tasks."""

from __future__ import annotations

import asyncio
from typing import Any


async def end_tasks(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks and wait for their end; None stands for one that never began. Their errors were reported to those
    who waited for them, or matter to nobody any more."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
