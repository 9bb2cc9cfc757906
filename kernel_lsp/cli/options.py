"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

TARGET_HELP = (
    "file.py::symbol (function, nn.Module or Class.method), a KernelBench file, or a robust-kbench task folder."
)

Device = Annotated[
    str,
    typer.Option(
        help="auto, cpu (the PTX executor), cuda, cuda:N, cuda:all, ssh://[USER@]HOST[:PORT], ray or ray://HOST:PORT."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; everything else goes to stderr.")]
Python = Annotated[Path | None, typer.Option(help="Python interpreter with your torch. Default: the active one.")]
TargetGpu = Annotated[str | None, typer.Option("--gpu", help="Target GPU of estimates, e.g. H200, L40S, L4.")]
