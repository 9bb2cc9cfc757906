"""Write the rows of a suite as job folders of `kernel_variants.py`, to time them all in one call.

    python benchmarks/suite_jobs.py benchmarks/suite OUT [--only PART]... [--skip PART]...

Each row becomes `OUT/NAME/task.py` in KernelBench's form, with the sizes that the row is captured at, and the file
`BACKWARD` where the suite asks for it. Rows that cannot be captured are named and left out.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernel_lsp.config import load_settings
from kernel_lsp.core.task import Task, TaskTensor
from kernel_lsp.errors import KernelLspError
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.source.suite import BenchTask, expand_tasks
from kernel_lsp.verify.session.session import Session

DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "i64": "int64",
    "i32": "int32",
    "i8": "int8",
    "u8": "uint8",
    "bool": "bool",
}
HEADER = '''"""{target}"""

import importlib.util
import inspect
import sys
from pathlib import Path

import torch
from torch import nn

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "{file}").exists())


def load(path):
    spec = importlib.util.spec_from_file_location("_".join(Path(path).with_suffix("").parts[-2:]), ROOT / path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


source = load("{file}")
'''
FUNCTION = """

class Model(nn.Module):
    def forward(self, {names}):
        return source.{symbol}({names})


def get_inputs():
    return [
        {draws}
    ]


def get_init_inputs():
    return []
"""
MODULE = """

def named(function):
    settings = {settings}
    return {{name: settings[name] for name in inspect.signature(function).parameters if name in settings}}


class Model(source.Model, nn.Module):
    def __init__(self):
        super().__init__(**named(source.Model.__init__))

    def forward(self, {names}):
        return super().forward({names})


def get_inputs():
    return source.get_inputs(**named(source.get_inputs))


def get_init_inputs():
    return []
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--skip", action="append", default=[])
    arguments = parser.parse_args()
    rows = [row for row in expand_tasks([arguments.suite], Path.cwd(), False) if _is_wanted(row, arguments)]
    return asyncio.run(_write_all(rows, arguments.out))


def _is_wanted(row: BenchTask, arguments: argparse.Namespace) -> bool:
    wanted = not arguments.only or any(part in row.target for part in arguments.only)
    return wanted and not any(part in row.target for part in arguments.skip)


async def _write_all(rows: list[BenchTask], out: Path) -> int:
    n_failed = 0
    async with Session(load_settings(ROOT, {"device": "cpu"})) as session:
        for row in rows:
            try:
                task = await session.capture(read_target(row.target, Path.cwd()), with_backward=False)
            except KernelLspError as error:
                print(f"{row.target}: {error.message}", flush=True)
                n_failed += 1
                continue
            folder = out / row.target.rpartition("/")[2].replace(".py::", "_")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "task.py").write_text(task_text(row, task), encoding="utf-8")
            peers = "\n".join(peer.removeprefix(f"{ROOT}/") for peer in row.peers)
            (folder / "peers.txt").write_text(peers, encoding="utf-8")
            if row.backward:
                (folder / "BACKWARD").touch()
    return int(n_failed > 0)


def task_text(row: BenchTask, task: Task) -> str:
    """Return the row as a file in KernelBench's form, which loads the suite's own file."""
    path, _, symbol = row.target.partition("::")
    if symbol:
        tensors = [argument for argument in task.arguments if isinstance(argument, TaskTensor)]
        shapes = task.configurations[0].shapes
        draws = ",\n        ".join(_draw(tensor, shapes[tensor.name]) for tensor in tensors)
        names = ", ".join(tensor.name for tensor in tensors)
        text = FUNCTION.format(names=names, symbol=symbol, draws=draws)
        return HEADER.format(target=row.target, file=path) + text
    inputs = (argument.name for argument in task.arguments if getattr(argument, "role", "") == "input")
    text = MODULE.format(settings=task.configurations[0].settings, names=", ".join(inputs))
    return HEADER.format(target=row.target, file=f"{path}/func_forward.py") + text


def _draw(tensor: TaskTensor, shape: tuple[int, ...]) -> str:
    dtype = f"torch.{DTYPES[tensor.type.dtype.value]}"
    if tensor.integer_range is not None:
        low, high = tensor.integer_range
        return f"torch.randint({low}, {high}, {shape}, dtype={dtype})"
    return f"torch.randn({shape}).to({dtype})"


if __name__ == "__main__":
    sys.exit(main())
