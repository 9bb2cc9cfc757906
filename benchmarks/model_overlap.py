"""Measure how long a device waits for models: 80 proposals, a model that takes 2 s, evaluations of 1 s, one device.

    python benchmarks/model_overlap.py [--model-s 2] [--evaluation-s 1] [--strategy evolve] [--scale 1.0]

Model and device are timers: what is measured is the search's own scheduling, on no GPU. `--scale 0.1` runs it ten times
faster. Idle is the part of the time, from the first evaluation's start to the last one's end, without an evaluation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernel_lsp.evolve.run.request import ModelChoices
from tests.evolve.test_model_search import faster_each_time
from tests.evolve.world import FakeDevice, World
from tests.scripted_model import ScriptedModel

N_GENERATIONS, N_PROPOSALS = 10, 8


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how long the device is idle.")
    parser.add_argument("--model-s", type=float, default=2.0)
    parser.add_argument("--evaluation-s", type=float, default=1.0)
    parser.add_argument("--strategy", default="evolve")
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(_measure(Path(folder), options))
    print(json.dumps(result, indent=1))
    return 0


async def _measure(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    choices = ModelChoices(early_stop="off", repair_rounds=0, strategy=options.strategy)
    device = FakeDevice(1, options.evaluation_s * options.scale)
    world = World(folder, N_GENERATIONS, N_PROPOSALS, choices, device)
    await world.search(ScriptedModel(faster_each_time, delay_s=options.model_s * options.scale))
    assert device.first_s is not None
    whole_s = device.last_s - device.first_s
    return {
        "what": "device idle during a search with models; model and device are timers",
        "model_s": options.model_s * options.scale,
        "evaluation_s": options.evaluation_s * options.scale,
        "strategy": options.strategy,
        "n_proposals": N_GENERATIONS * N_PROPOSALS,
        "n_evaluations": len(device.asked),
        "elapsed_s": round(whole_s, 2),
        "idle": round(1 - device.busy_s / whole_s, 4),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


if __name__ == "__main__":
    sys.exit(main())
