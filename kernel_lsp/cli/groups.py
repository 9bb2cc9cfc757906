"""The commands of two words: `judge calibrate`, `archive merge`."""

from pathlib import Path
from typing import Annotated

import typer

from kernel_lsp.cli.options import Device, Json, Python

judge_app = typer.Typer(help="Judges: models that order and filter what goes to the GPU.", no_args_is_help=True)


@judge_app.command("calibrate")
def judge_calibrate(
    corpus: Annotated[Path, typer.Argument(help="A folder of .cu files with `task:` lines.")],
    model: Annotated[list[str] | None, typer.Option("--model", metavar="MODEL", help="Who judges.")] = None,
    budget: Annotated[float | None, typer.Option(min=0, metavar="USD", help="The most that judging may cost.")] = None,
    record: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the replies, for --replay.")] = None,
    replay: Annotated[Path | None, typer.Option(metavar="FILE", help="Recorded replies answer.")] = None,
    device: Device = "auto",
    python: Python = None,
    as_json: Json = False,
) -> None:
    """Calibrate judges, blind, on kernels that the whole pipeline labels; print and store their scores.

    Exit status: 0 it was measured, 2 it could not be.
    """
    import kernel_lsp.cli.judge as command

    overrides = {"models": tuple(model) if model else None, "budget_usd": budget, "device": device, "python": python}
    raise typer.Exit(command.main(corpus, overrides, as_json, record, replay))


archive_app = typer.Typer(help="Archives of runs.", no_args_is_help=True)


@archive_app.command("merge")
def archive_merge(
    sources: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Workspaces with runs.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Workspace of the merged archive.")],
    as_json: Json = False,
) -> None:
    """Merge the runs of several people or machines into one archive, which notes where each comes from.

    Exit status: 0 merged, 2 it could not be.
    """
    import kernel_lsp.cli.archive as command

    raise typer.Exit(command.main(sources, out, as_json))
