"""Compare what the pipeline proposes for each kernel of the corpora with the record in tests/ledger.

    python scripts/ledger.py [--write] [--only WORD] [--verdicts FILE]

Tasks are captured and kernels compiled; nothing runs on a device. The exit status is 1 for a difference, unless
`--write` (or LEDGER=write) accepts it. With `--verdicts`, outcomes that `run_corpora.py --json FILE` wrote are compared
instead.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.corpora import Kernel, read_kernels
from tests.ledger.entry import Entry, differences, printed, read
from tests.ledger.recorder import recorded
from tests.ledger.verdicts import comparable, entries_of, record_for

CORPORA = ("attacks", "benign")
LEDGER = ROOT / "tests" / "ledger"


def main() -> int:
    arguments = _arguments()
    started = time.monotonic()
    n_different = sum(_compared(*each, arguments) for each in _found(arguments))
    print(f"{n_different} kernels {'written' if arguments.write else 'differ'}, in {time.monotonic() - started:.0f} s")
    return 1 if n_different and not arguments.write else 0


def _found(arguments: argparse.Namespace) -> Iterator[tuple[Path, list[Entry]]]:
    """The entries of today, and the file that has those of before."""
    if arguments.verdicts is not None:
        entries = [entry for entry in entries_of(arguments.verdicts) if arguments.only in entry.name]
        yield LEDGER / record_for(arguments.verdicts), entries
        return
    for corpus in CORPORA:
        kernels = [kernel for kernel in read_kernels(ROOT / "tests" / corpus) if arguments.only in kernel.file.name]
        yield LEDGER / f"{corpus}.txt", asyncio.run(_recorded(kernels))


async def _recorded(kernels: Sequence[Kernel]) -> list[Entry]:
    return [entry async for entries in recorded(kernels) for entry in entries]


def _compared(file: Path, found: Sequence[Entry], arguments: argparse.Namespace) -> int:
    """Return the number of kernels that differ from the file; print them, and write them where asked for."""
    kept = read(file.read_text(encoding="utf-8")) if file.exists() else []
    looked_at = [entry for entry in kept if arguments.only in entry.name]
    changes = list(differences(looked_at, found if arguments.verdicts is None else comparable(found, looked_at)))
    print("\n".join([f"{file.name}: {len(found)} kernels", *changes]), flush=True)
    if arguments.write:
        file.write_text(printed([*(entry for entry in kept if entry not in looked_at), *found]), encoding="utf-8")
    return sum(not line.startswith(" ") for line in changes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="compare proposed cases with the record")
    parser.add_argument("--write", action="store_true", default=os.environ.get("LEDGER") == "write", help="accept all")
    parser.add_argument("--only", default="", help="only files whose name holds this")
    parser.add_argument("--verdicts", type=Path, help="what run_corpora.py --json wrote")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
