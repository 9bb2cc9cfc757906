"""A table of made-up times: fast where threads are 256 and vectors wide, in tasks of several sizes."""

from __future__ import annotations

import math
import random

from kernel_lsp.training.table import ScheduleTable, TimedSchedule, TimedTask

THREADS, VECTORS = (32, 64, 128, 256, 512), (1, 2, 4)


def time_us(size: int, threads: int, vector: int) -> float:
    return size * (1.0 + abs(math.log2(threads) - 8) + (4 - vector) / 2)


def timed(size: int, threads: int, vector: int, noise: float = 1.0) -> TimedSchedule:
    features = {"knob.threads": math.log2(threads), "knob.vector": math.log2(1 + vector)}
    schedule: dict[str, int | str] = {"task.threads": threads, "task.vector": vector}
    return TimedSchedule(schedule=schedule, time_us=noise * time_us(size, threads, vector), features=features)


def made_up_table(n_tasks: int = 12, seed: int = 0) -> ScheduleTable:
    draw = random.Random(seed)
    tasks = []
    for number in range(n_tasks):
        size = 2 ** draw.randrange(3, 9)
        others = [(t, v) for t in THREADS for v in VECTORS if (t, v) != (64, 1)]
        chosen = [(64, 1), *draw.sample(others, 9)]
        schedules = tuple(timed(size, t, v, draw.uniform(0.98, 1.02)) for t, v in chosen)
        tasks.append(
            TimedTask(
                name=f"task{number}",
                graph=f"graph{number // 2}",
                family="pointwise" if number % 3 else "product",
                features={"task.inputs": math.log2(size)},
                baselines_us={"eager": 4.0 * size},
                schedules=schedules,
            )
        )
    return ScheduleTable(gpu="made up", tasks=tuple(tasks))
