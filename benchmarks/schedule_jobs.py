"""Write tasks with random schedules as job folders of `kernel_variants.py`, to measure what a cost model learns from.

    python benchmarks/schedule_jobs.py OUT --kernelbench KernelBench [--synthesized DIR] [--schedules 14] [--seed 0]
    python benchmarks/kernel_variants.py bind OUT
    python benchmarks/kernel_variants.py time OUT --target-s 0.03 --out times.json      # on a GPU
    python benchmarks/schedule_jobs.py OUT --join times.json --out benchmarks/results/schedule_times-GPU-DATE.json

KernelBench files are taken with smaller sizes (`SIZES`), so that a slow schedule of a task takes milliseconds. Each
task's folder holds `task.py`, `task.json` (the captured task), a text per schedule, and `schedules.json`: the choices
of each text. Two words beside the sizes vary a task: `bf16` converts the model and its inputs, `backward` also times
gradients. `--join` writes one file of what was measured, with the features of each schedule.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernel_lsp.config import load_settings
from kernel_lsp.core.task import Task
from kernel_lsp.errors import KernelLspError
from kernel_lsp.generate.program import plan_program
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.training.features import draw_schedules, family, graph_hash, nonzero, schedule_features, task_features
from kernel_lsp.training.table import ScheduleTable, TimedSchedule, TimedTask
from kernel_lsp.verify.session.session import Session

SIZES: dict[str, tuple[str, ...]] = {
    "level1/2_": (
        "M=1024 K=1024 N=512",
        "M=512 K=4096 N=256",
        "M=1024 K=1024 N=512 bf16",
        "M=1024 K=512 N=512 backward",
    ),
    "level1/4_": ("M=512 K=16384", "M=4096 K=4096"),
    "level1/6_": ("M=128 N=128 K=32768",),
    "level1/7_": ("M=2048 N=2048 K=64",),
    "level1/9_": ("M=8192 N=32",),
    "level1/10_": ("N=4 M=512 K=512 L=256",),
    "level1/12_": ("M=2048 N=2048",),
    "level1/17_": ("M=1024 K=512 N=1024",),
    "level1/19_": ("batch_size=2048 dim=4096", "batch_size=4096 dim=4096 bf16", "batch_size=2048 dim=4096 backward"),
    "level1/20_": ("batch_size=32", "batch_size=1"),
    "level1/23_": (
        "batch_size=32",
        "batch_size=4096 dim=4096",
        "batch_size=2048 dim=4096 bf16",
        "batch_size=2048 dim=4096 backward",
    ),
    "level1/24_": (
        "batch_size=2048 dim=8192",
        "batch_size=65536 dim=128",
        "batch_size=2048 dim=4096 bf16",
        "batch_size=2048 dim=4096 backward",
    ),
    "level1/26_": ("batch_size=64 dim=131072", "batch_size=1024 dim=8192 bf16", "batch_size=1024 dim=4096 backward"),
    "level1/27_": ("batch_size=1024 dim=8192",),
    "level1/33_": ("batch_size=8 dim1=128 dim2=128", "batch_size=8 dim1=64 dim2=64 backward"),
    "level1/34_": ("batch_size=8 dim1=256 dim2=256", "batch_size=8 dim1=64 dim2=64 backward"),
    "level1/35_": ("batch_size=8 dim1=128 dim2=128",),
    "level1/36_": (
        "batch_size=8 dim1=256 dim2=256",
        "batch_size=8 dim1=128 dim2=128 bf16",
        "batch_size=8 dim1=64 dim2=64 backward",
    ),
    "level1/37_": ("batch_size=4 dim1=256 dim2=256",),
    "level1/38_": ("batch_size=256", "batch_size=8192 dim=1024"),
    "level1/39_": ("batch_size=512 dim=16384", "batch_size=2048 dim=4096 bf16", "batch_size=1024 dim=4096 backward"),
    "level1/40_": ("batch_size=4 dim1=128 dim2=128", "batch_size=4 dim1=64 dim2=64 backward"),
    "level1/41_": ("batch_size=16 sequence_length=8192",),
    "level1/42_": ("batch_size=4 height=256 width=256",),
    "level1/43_": ("batch_size=4 dim1=32 dim2=32 dim3=32",),
    "level1/44_": ("batch_size=16 input_length=8192",),
    "level1/45_": ("batch_size=2 height=512 width=512",),
    "level1/46_": ("batch_size=4 depth=32 height=32 width=32",),
    "level1/47_": ("batch_size=8 dim1=1024 dim2=1023",),
    "level1/48_": ("batch_size=8 dim1=512 dim2=512", "batch_size=8 dim1=512 dim2=512 bf16"),
    "level1/49_": ("batch_size=32 dim1=512 dim2=511",),
    "level1/50_": ("batch_size=8",),
    "level1/51_": ("batch_size=8 dim1=1024 dim2=1023",),
    "level1/52_": ("batch_size=8 dim1=512 dim2=511",),
    "level1/53_": ("batch_size=8 dim1=512 dim2=511",),
    "level1/54_": ("batch_size=2 depth=16 width=32 height=32",),
    "level1/57_": ("batch_size=2 height=128 width=128",),
    "level1/63_": ("batch_size=2 width=256 height=256",),
    "level1/67_": ("batch_size=4 length=16384",),
    "level1/82_": ("batch_size=4 width=256 height=256",),
    "level1/84_": ("batch_size=4 width_in=256 height_in=128",),
    "level1/87_": ("batch_size=2 width=256 height=256",),
    "level1/88_": ("batch_size=1024 dim=8192",),
    "level1/89_": ("batch_size=512 input_shape=(8192,)",),
    "level1/90_": ("batch_size=4096 input_shape=(1024,)",),
    "level1/91_": ("batch_size=1024 input_shape=(8192,)",),
    "level1/92_": ("batch_size=1024 input_shape=(8192,)",),
    "level1/93_": ("batch_size=1024 input_shape=(8192,)",),
    "level1/94_": ("batch_size=1024 input_shape=(8192,)", "batch_size=1024 input_shape=(4096,) backward"),
    "level1/95_": ("batch_size=4096 num_classes=1024", "batch_size=4096 num_classes=1024 backward"),
    "level1/96_": ("batch_size=1024 input_shape=(4096,)",),
    "level1/97_": (
        "batch_size=4 num_heads=8 sequence_length=512 embedding_dimension=64",
        "batch_size=4 num_heads=8 sequence_length=512 embedding_dimension=64 bf16",
    ),
    "level1/98_": ("batch_size=2048 input_shape=(4096,)",),
    "level1/99_": ("batch_size=2048 input_shape=(2048,)",),
    "level1/100_": ("batch_size=4096 input_shape=(4096,)",),
    "level2/1_": ("batch_size=4 height=64",),
    "level2/6_": ("batch_size=8",),
    "level2/7_": ("batch_size=2 depth=16",),
    "level2/8_": ("batch_size=4",),
    "level2/9_": ("batch_size=256 in_features=1024 out_features=1024",),
    "level2/12_": (
        "batch_size=256 in_features=1024 out_features=1024",
        "batch_size=1024 in_features=256 out_features=4096",
    ),
    "level2/14_": ("batch_size=256 input_size=1024 hidden_size=1024",),
    "level2/18_": ("batch_size=256 in_features=1024 out_features=1024",),
    "level2/22_": ("batch_size=256 input_size=1024 hidden_size=1024",),
    "level2/24_": ("batch_size=4",),
    "level2/28_": ("batch_size=512 in_features=1024 out_features=1024",),
    "level2/29_": ("batch_size=128 in_features=2048 out_features=512",),
    "level2/30_": ("batch_size=256 in_features=1024 out_features=2048",),
    "level2/33_": ("batch_size=512 in_features=1024 out_features=1024",),
    "level2/37_": ("batch_size=1024 in_features=512 out_features=1024",),
    "level2/40_": ("batch_size=1024 in_features=1024 out_features=1024",),
    "level2/41_": ("batch_size=512 in_features=512 out_features=1024",),
    "level2/45_": ("batch_size=1024 input_size=512 hidden_size=1024 output_size=256",),
    "level2/51_": ("batch_size=256 in_features=1024 out_features=1024",),
    "level2/57_": ("batch_size=8",),
    "level2/59_": (
        "batch_size=256 in_features=1024 out_features=1024",
        "batch_size=256 in_features=1024 out_features=1024 bf16",
    ),
    "level2/62_": ("batch_size=256 input_size=1024 hidden_size=1024 num_groups=64",),
    "level2/63_": ("batch_size=256 in_features=1024 out_features=1024",),
    "level2/64_": ("batch_size=256 in_features=1024 out_features=1024",),
    "level2/66_": ("batch_size=64 in_features=2048 out_features=2048",),
    "level2/70_": (
        "batch_size=256 input_size=1024 hidden_size=1024",
        "batch_size=256 input_size=1024 hidden_size=1024 bf16",
    ),
    "level2/71_": ("batch_size=4",),
    "level2/76_": (
        "batch_size=256 in_features=1024 out_features=1024",
        "batch_size=256 in_features=1024 out_features=1024 bf16",
    ),
    "level2/79_": ("batch_size=8",),
    "level2/81_": ("batch_size=256 in_features=1024 out_features=1024",),
    "level2/85_": ("batch_size=4",),
    "level2/86_": ("batch_size=256 input_size=1024 output_size=1024",),
    "level2/88_": ("batch_size=256 in_features=1024 out_features=1024 num_groups=32",),
    "level2/95_": ("batch_size=256 in_features=1024 out_features=1024",),
    "level2/97_": ("batch_size=256 in_features=1024 out_features=1024",),
    "level2/99_": (
        "batch_size=256 in_features=1024 out_features=2048",
        "batch_size=256 in_features=1024 out_features=1024 bf16",
    ),
}
"""Smaller sizes by the beginning of a KernelBench file's name: one task for each text of assignments and variations."""
VARIATIONS = ("bf16", "backward")
IN_BF16 = """

_get_f32_inputs = get_inputs


def get_inputs():
    return [x.bfloat16() if torch.is_tensor(x) and x.is_floating_point() else x for x in _get_f32_inputs()]
"""
MAX_PARTS_OF_NAME = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kernelbench", type=Path, help="the folder that holds level1 and level2")
    parser.add_argument("--synthesized", type=Path, help="a folder of kernel-lsp synthesize")
    parser.add_argument("--only", nargs="+", metavar="PART", help="KernelBench files by the beginning of their names")
    parser.add_argument("--without", nargs="+", type=Path, default=(), help="tables whose tasks are left out")
    parser.add_argument("--schedules", type=int, default=14)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--join", type=Path, help="what kernel_variants.py measured")
    parser.add_argument("--out", type=Path, default=Path("schedule_times.json"), help="where --join writes")
    arguments = parser.parse_args()
    return join(arguments) if arguments.join else asyncio.run(_write_all(arguments))


def _files(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each task that is not in the tables of `--without`."""
    known = {task.name for path in arguments.without for task in ScheduleTable.read(path).tasks}
    for beginning, sizes in SIZES.items() if arguments.kernelbench else ():
        if arguments.only and beginning not in arguments.only:
            continue
        path = next(arguments.kernelbench.glob(f"{beginning}*.py"))
        for place, text in enumerate(sizes):
            name = "_".join(path.stem.split("_")[: MAX_PARTS_OF_NAME + 1])
            varied = "_".join(word for word in text.split() if word in VARIATIONS)
            name = f"{path.parent.name.replace('level', 'L')}_{name}_{varied or place}"
            if name not in known:
                yield name, resized(path.read_text(), text)
    for path in sorted((arguments.synthesized / "tasks").glob("*.py")) if arguments.synthesized else ():
        yield f"S_{path.stem}", path.read_text()


def resized(text: str, sizes: str) -> str:
    """Return a KernelBench file with other numbers in its assignments. Raises ValueError for a name that has none."""
    words = sizes.split()
    if "bf16" in words:
        text = (
            re.sub(r"\n( +)def forward\(", r"\n\1\1self.to(torch.bfloat16)\n\n\1def forward(", text, count=1) + IN_BF16
        )
    for name, value in (word.split("=") for word in words if word not in VARIATIONS):
        text, n_found = re.subn(
            rf"^((?:\w+ *= *)*{name} *= *(?:[a-z]\w* *= *)*)[^#;\n=]+", rf"\g<1>{value}", text, flags=re.MULTILINE
        )
        if n_found == 0:  # several at once: depth, height, width = 16, 32, 32
            text, n_found = _resized_in_tuple(text, name, value)
        if n_found == 0:
            raise ValueError(f"the file assigns no {name}")
    return text


def _resized_in_tuple(text: str, name: str, value: str) -> tuple[str, int]:
    for line in text.splitlines():
        left, _, right = line.partition("=")
        names, values = left.replace(" ", "").split(","), right.replace(" ", "").split(",")
        if name in names and len(names) == len(values):
            values[names.index(name)] = value
            return text.replace(line, f"{', '.join(names)} = {', '.join(values)}"), 1
    return text, 0


async def _write_all(arguments: argparse.Namespace) -> int:
    """Write the folders. Tasks that cannot be captured or lowered are named and left out; returns 1 then."""
    n_failed = 0
    async with Session(load_settings(ROOT, {"device": "cpu"})) as session:
        for name, text in _files(arguments):
            folder = arguments.folder / name
            if (folder / "schedules.json").exists():
                continue
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "task.py").write_text(text, encoding="utf-8")
            try:
                source = read_target(str(folder.resolve() / "task.py"), folder.resolve())
                has_backward = name.endswith("backward")
                task = await session.capture(source, with_backward=has_backward)
                if has_backward:
                    (folder / "BACKWARD").touch()
                found = draw_schedules(plan_program(task), arguments.schedules, f"{arguments.seed}:{name}")
            except KernelLspError as error:
                print(f"{name}: {error}")
                shutil.rmtree(folder)
                n_failed += 1
                continue
            schedules: dict[str, Any] = {}
            for place, realized in enumerate(found):
                label = f"s{place:02}" if place else "default"
                (folder / f"{label}.cu").write_text(realized.text, encoding="utf-8")
                schedules[label] = dict(realized.schedule)
            (folder / "task.json").write_text(task.model_dump_json(), encoding="utf-8")
            (folder / "schedules.json").write_text(json.dumps(schedules, indent=1), encoding="utf-8")
            print(f"{name}: {len(found)} schedules", flush=True)
    return int(n_failed > 0)


# --- join: what was measured, with features


def join(arguments: argparse.Namespace) -> int:
    """Write one table of all tasks that were measured."""
    measured = json.loads(arguments.join.read_text(encoding="utf-8"))
    rows = dict[tuple[str, str], dict[str, Any]]()
    for row in measured["rows"]:
        rows[row["task"], row["subject"]] = _both(rows.get((row["task"], row["subject"])), row)
    tasks = []
    for folder in sorted(path.parent for path in arguments.folder.glob("*/schedules.json")):
        if (folder.name, "default") in rows:
            tasks.append(_timed_task(folder, rows))
            print(f"{folder.name}: {len(tasks[-1].correct)} of {len(tasks[-1].schedules)} correct", flush=True)
    command = (
        "benchmarks/schedule_jobs.py, benchmarks/kernel_variants.py time --target-s 0.03: "
        "cold L2, TF32 off; forward, and backward where a task's name says so"
    )
    ScheduleTable(gpu=measured["gpu"], torch=measured["torch"], command=command, tasks=tuple(tasks)).write(
        arguments.out
    )
    print(f"{len(tasks)} tasks, {sum(len(task.schedules) for task in tasks)} schedules: {arguments.out}")
    return 0


def _both(forward: dict[str, Any] | None, row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of both directions of a subject: the sum of times and the larger error, where both succeeded."""
    if forward is None or "time_us" not in row:
        return row
    if "time_us" not in forward:
        return forward
    error = max(forward["error"], row["error"])
    return {**row, "time_us": forward["time_us"] + row["time_us"], "error": error}


def _timed_task(folder: Path, rows: dict[tuple[str, str], dict[str, Any]]) -> TimedTask:
    task = Task.model_validate_json((folder / "task.json").read_text(encoding="utf-8"))
    program = plan_program(task)
    schedules = []
    for label, schedule in json.loads((folder / "schedules.json").read_text(encoding="utf-8")).items():
        row = rows.get((folder.name, label), {})
        realized = program.realize(schedule)
        if realized.text != (folder / f"{label}.cu").read_text(encoding="utf-8"):
            print(f"{folder.name}: the generator prints another text for {label} today; it is left out")
            continue
        try:
            features = schedule_features(realized, task)
        except KernelLspError:  # a contract that excludes the captured sizes
            features = {}
        schedules.append(
            TimedSchedule(
                schedule=schedule,
                time_us=round(row["time_us"], 3) if "time_us" in row and features else None,
                error=row.get("error", 0.0),
                features=features,
            )
        )
    baselines = {
        subject: row["time_us"] for (name, subject), row in rows.items() if name == folder.name and subject == "eager"
    }
    return TimedTask(
        name=folder.name,
        graph=graph_hash(task),
        family=family(task),
        features=nonzero(task_features(task)),
        baselines_us={name: round(value, 3) for name, value in baselines.items()},
        schedules=tuple(schedules),
    )


if __name__ == "__main__":
    sys.exit(main())
