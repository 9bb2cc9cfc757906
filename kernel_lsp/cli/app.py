"""The commands and their options. Each is implemented in the module of the same name in this package."""

from pathlib import Path
from typing import Annotated

import typer

from kernel_lsp import __version__
from kernel_lsp.cli.groups import archive_app, judge_app
from kernel_lsp.cli.options import TARGET_HELP, Device, Json, Python, TargetGpu

app = typer.Typer(
    name="kernel-lsp",
    help="Optimize PyTorch to CUDA: translate, verify, evolve and measure kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich for help alone costs a third of the start-up
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def optimize(
    target: Annotated[str | None, typer.Argument(help=TARGET_HELP)] = None,
    device: Device = "auto",
    backward: Annotated[bool, typer.Option("--backward", help="Also generate and verify the backward.")] = False,
    generations: Annotated[int | None, typer.Option(min=1, help="Generations of the search.")] = None,
    proposals: Annotated[int | None, typer.Option(min=1, help="Candidates per generation.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the search and the inputs.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="[PURPOSE=]MODEL",
            help="Model that proposes: openai/..., ollama/..., manual, command:PROGRAM, ...",
        ),
    ] = None,
    budget: Annotated[float | None, typer.Option(min=0, metavar="USD", help="Maximum cost of models.")] = None,
    strategy: Annotated[str | None, typer.Option(help="evolve, best-of-n, beam or agent, with models.")] = None,
    judges: Annotated[str | None, typer.Option(help="off or filter: models judge what goes to the GPU.")] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the models' replies, for --replay.")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Recorded replies answer in place of the models.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the result files. Default: kernels/ next to the source.")
    ] = None,
    seed_kernel: Annotated[
        list[Path] | None,
        typer.Option("--seed-kernel", metavar="KERNEL.cu", help="A kernel to start from, and to beat; repeatable."),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Write the files even if PyTorch should be kept.")] = False,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Continue a run; `last` is the newest.")] = None,
    gpu: TargetGpu = None,
    python: Python = None,
    as_json: Json = False,
) -> None:
    """Turn a PyTorch function or module into a verified CUDA kernel and a PyTorch operator.

    Exit status: 0 a verified kernel was found, 1 none was found, 2 it could not run, 130 interrupted (resumable).
    """
    from kernel_lsp.cli import console

    if resume is None and target is not None and not console.can_read(target):  # the next import takes two seconds
        raise typer.Exit(console.EXIT_COULD_NOT)
    import kernel_lsp.cli.optimize as command

    overrides = {
        "device": device,
        "generations": generations,
        "proposals": proposals,
        "seed": seed,
        "models": tuple(model) if model else None,
        "budget_usd": budget,
        "strategy": strategy,
        "judges": judges,
        "out_directory": out,
        "target_gpu": gpu,
        "python": python,
    }
    recordings = command.Recordings(record, replay)
    raise typer.Exit(
        command.main(target, resume, backward, overrides, as_json, recordings, seed_kernel or (), applies_anyway=apply)
    )


@app.command()
def check(
    kernel: Annotated[Path, typer.Argument(help="A .cu with a launch plan, a torch extension, or a ModelNew file.")],
    task: Annotated[
        str | None, typer.Option("--task", metavar="TARGET", help="What it computes. Default: its `task:` line.")
    ] = None,
    device: Device = "auto",
    gpu: TargetGpu = None,
    python: Python = None,
    tolerance: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="For host code: strict (default), torch, kernelbench, robust-kbench, all."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Build a kernel, check it against PyTorch, and report errors with their lines.

    A kernel with host code that fails at sizes other than its task's is correct, with a warning.

    Exit status: 0 correct, 1 incorrect or unsafe, 2 it could not be checked.
    """
    import kernel_lsp.cli.check as command

    overrides = {"device": device, "target_gpu": gpu, "python": python, "tolerance": tolerance}
    raise typer.Exit(command.main(kernel, task, overrides, as_json))


@app.command()
def plan(
    kernel: Annotated[Path, typer.Argument(help="A .cu file without a launch plan.")],
    write: Annotated[bool, typer.Option("--write", help="Insert the plan at the top of the file.")] = False,
    task: Annotated[str | None, typer.Option("--task", metavar="TARGET", help="What the kernel computes.")] = None,
    name: Annotated[
        str | None, typer.Option("--kernel", metavar="NAME", help="Default: the task's, else the last launched.")
    ] = None,
) -> None:
    """Draft a launch plan from a file's kernels and launches. A comment in it names what to complete.

    Exit status: 0 drafted, 2 it could not be.
    """
    import kernel_lsp.cli.plan as command

    raise typer.Exit(command.main(kernel, task, name, write))


@app.command()
def profile(
    kernel: Annotated[Path, typer.Argument(help="A .cu file with a launch plan.")],
    task: Annotated[
        str | None, typer.Option("--task", metavar="TARGET", help="What it computes. Default: its `task:` line.")
    ] = None,
    device: Device = "auto",
    gpu: TargetGpu = None,
    python: Python = None,
    as_json: Json = False,
) -> None:
    """Profile a kernel: its bottleneck, its distance from the speed of light, its costliest lines, and advice.

    Exit status: 0 profiled, 2 it could not be.
    """
    import kernel_lsp.cli.profile as command

    raise typer.Exit(command.main(kernel, task, {"device": device, "target_gpu": gpu, "python": python}, as_json))


@app.command()
def estimate(
    target: Annotated[str, typer.Argument(metavar="TARGET|KERNEL.cu", help=TARGET_HELP)],
    gpu: TargetGpu = None,
    python: Python = None,
    as_json: Json = False,
) -> None:
    """Predict the time on a GPU, with its interval. An estimate, never a measurement."""
    import kernel_lsp.cli.estimate as command

    raise typer.Exit(command.main(target, {"target_gpu": gpu, "python": python}, as_json))


@app.command()
def bench(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(help="Targets, folders of tasks, folders with suite.toml. Default: the project's examples."),
    ] = None,
    device: Device = "auto",
    backward: Annotated[bool, typer.Option("--backward", help="Also the backward of each.")] = False,
    sample: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only N tasks, drawn by --seed.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of --sample, the search and the inputs.")] = 0,
    every_configuration: Annotated[
        bool, typer.Option("--every-configuration", help="One row for each configuration of a task folder.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the rows of the last start, run the others.")] = False,
    deadline: Annotated[float, typer.Option(min=1, metavar="S", help="Time limit per task, in seconds.")] = 900.0,
    write_docs: Annotated[
        Path | None, typer.Option(metavar="FILE.md", help="Write the table into this Markdown page.")
    ] = None,
    rows: Annotated[
        list[Path] | None,
        typer.Option(metavar="REPORT.json", help="Show the rows of such reports together; nothing runs. Repeatable."),
    ] = None,
    generations: Annotated[int | None, typer.Option(min=1)] = None,
    proposals: Annotated[int | None, typer.Option(min=1)] = None,
    gpu: TargetGpu = None,
    python: Python = None,
    as_json: Json = False,
) -> None:
    """Optimize several tasks and print one table; `bench filter TASK...` tests the tasks themselves.

    Each row has our time, PyTorch's and other libraries', and the share of the speed of light. .kernel-lsp/bench/ holds
    the HTML report and all data.

    Exit status: 0 every task ended verified (passes every filter), 1 otherwise, 2 it could not run, 130 interrupted.
    """
    overrides = {
        "device": device,
        "seed": seed,
        "generations": generations,
        "proposals": proposals,
        "target_gpu": gpu,
        "python": python,
    }
    import kernel_lsp.cli.bench as command

    options = command.BenchOptions(
        backward=backward,
        sample=sample,
        seed=seed,
        every_configuration=every_configuration,
        resume=resume,
        deadline_s=deadline,
        write_docs=write_docs,
        rows=tuple(rows or ()),
        as_json=as_json,
    )
    if tasks and tasks[0] == "filter":
        raise typer.Exit(command.run_filters(tasks[1:], options, overrides))
    raise typer.Exit(command.main(tasks or [], options, overrides))


@app.command()
def export(
    source: Annotated[str, typer.Argument(metavar="RUN|KERNEL.cu", help="A run (`last` is the newest), or a kernel.")],
    package: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a project that pip installs: C++ operator, tests, README.")
    ] = None,
    operator: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the kernel and its operator, a .cu and a .py file.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--format", metavar="jsonl|parquet", help="Write what models were asked and earned.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where --format writes. A DIR for parquet gets splits and a card."),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Profile and lint the kernels of a Parquet DIR: seconds for each.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="What the package is imported as. Default: OPERATOR_cuda.")] = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="TARGET", help="What a .cu computes. Default: its `task:` line.")
    ] = None,
    device: Device = "auto",
    gpu: TargetGpu = None,
    python: Python = None,
    as_json: Json = False,
) -> None:
    """Write a verified kernel in a form to keep or to ship, or the rows of a run (`all`: of every run) as a dataset.

    A .cu file is checked first, and must pass. Exit status: 0 it was written, 2 it could not be.
    """
    import kernel_lsp.cli.export as command

    overrides = {"device": device, "target_gpu": gpu, "python": python}
    if dataset is not None:
        out, profiled = out or Path(f"dataset.{dataset}"), overrides if profile else None
        raise typer.Exit(command.export_dataset(source, out, dataset, profiled, as_json))
    forms = {"package": package, "operator": operator}
    raise typer.Exit(command.main(source, forms, task, name, overrides, as_json))


@app.command()
def use(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run's id, or its target; `last` is the newest here.")
    ] = "last",
    revert: Annotated[bool, typer.Option("--revert", help="Take every use back.")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Write the files. Default: print the diff.")] = False,
    as_json: Json = False,
) -> None:
    """Use a run's operator at every call of its target in the workspace's Python files, or take that back.

    Exit status: 0 there are such calls, 1 there are none, 2 it could not run.
    """
    import kernel_lsp.cli.use as command

    raise typer.Exit(command.main(run, as_json, reverts=revert, applies=apply))


@app.command()
def report(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run's id, or its target; `last` is the newest here.")
    ] = "last",
    html: Annotated[bool, typer.Option("--html", help="Write one offline page and print where it is.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where the page goes. Default: beside the run's archive.")] = None,
    as_json: Json = False,
) -> None:
    """Show what a run found: in words, as an HTML page, or as JSON. Also of a run that goes on or was interrupted."""
    import kernel_lsp.cli.report as command

    raise typer.Exit(command.main(run, html, out, as_json))


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def record(
    command: Annotated[list[str] | None, typer.Argument(metavar="-- PROGRAM [ARGUMENT]...")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="End the program after so many steps.")] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="End the program so long after torch is imported.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the last recording instead.")] = False,
    as_json: Json = False,
) -> None:
    """Run a program, and note what it calls your functions and modules with, how often, and their share of a step.

    E.g. `kernel-lsp record -- python train.py --epochs 1`, or pytest. Later commands and editors use the recording.

    Exit status: the program's; 0 where --steps or --seconds ended it, 2 it could not be started.
    """
    import kernel_lsp.cli.record as implementation

    raise typer.Exit(implementation.main(command or (), steps, seconds, show, as_json))


@app.command()
def mcp(
    target: Annotated[str, typer.Argument(help=TARGET_HELP)],
    backward: Annotated[bool, typer.Option("--backward", help="Also the backward.")] = False,
    device: Device = "auto",
    gpu: TargetGpu = None,
    python: Python = None,
) -> None:
    """Serve an agent's tools on one target (compile, check, time, profile) over MCP, on stdin and stdout."""
    import kernel_lsp.cli.agents as command

    raise typer.Exit(command.serve(target, backward, {"device": device, "target_gpu": gpu, "python": python}))


@app.command()
def workspace(
    target: Annotated[str, typer.Argument(help=TARGET_HELP)],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    backward: Annotated[bool, typer.Option("--backward", help="Also the backward.")] = False,
    device: Device = "auto",
    gpu: TargetGpu = None,
    python: Python = None,
) -> None:
    """Write a folder for a coding agent: a skill, the task, and the tools over MCP, which it cannot tamper with."""
    import kernel_lsp.cli.agents as command

    overrides = {"device": device, "target_gpu": gpu, "python": python}
    raise typer.Exit(command.write(target, directory, backward, overrides))


@app.command()
def synthesize(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the tasks; an interrupted synthesis resumes.")],
    number: Annotated[int, typer.Option("-n", "--tasks", min=1, help="Tasks to write.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
    held_out: Annotated[
        list[str] | None,
        typer.Option("--held-out", metavar="PATH", help="Tasks to stay unlike, e.g. KernelBench; repeatable."),
    ] = None,
    operators: Annotated[int, typer.Option(min=1, max=5, help="Maximum operators of a task.")] = 5,
    compiler: Annotated[
        str, typer.Option(metavar="BACKEND", help="Of torch.compile. Default: inductor on a GPU, aot_eager without.")
    ] = "",
    scale: Annotated[str, typer.Option(metavar="cpu|cuda", help="Sizes and time bounds of the tasks.")] = "cpu",
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one per core.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PURPOSE=]MODEL", help="propose=M composes every second task, judge=M judges baselines, M both."
        ),
    ] = None,
    budget: Annotated[float | None, typer.Option(min=0, metavar="USD", help="Maximum cost of models.")] = None,
    python: Python = None,
    as_json: Json = False,
) -> None:
    """Synthesize tasks from torch's operators: KernelBench files that passed every filter, and a Parquet index.

    Exit status: 0 all were written, 1 too few passed, 2 it could not run, 130 interrupted (resumable).
    """
    import kernel_lsp.cli.synthesize as command

    request = command.SynthesisRequest(
        seed=seed,
        scale=scale,
        max_operators=operators,
        compiler=compiler,
        held_out=tuple(held_out or ()),
        models=tuple(model or ()),
    )
    overrides = {"python": python, "budget_usd": budget}
    raise typer.Exit(command.main(number, out, request, jobs, overrides, as_json))


@app.command()
def train(
    tables: Annotated[list[Path] | None, typer.Argument(metavar="[TABLE]...", help="Tables of measured times.")] = None,
    workspaces: Annotated[
        list[Path] | None,
        typer.Option("--archive", metavar="DIR", help="Workspace whose measured searches count too; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Default: the file that searches use.")
    ] = None,
    order: Annotated[str, typer.Option(metavar="cost_model|policy", help="Model that searches use.")] = "policy",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the training.")] = 0,
    live: Annotated[
        list[str] | None,
        typer.Option("--live", metavar="TARGET", help="Also train on this task's rewards on --device; repeatable."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of live episodes.")] = 8,
    deadline: Annotated[float, typer.Option(min=1.0, metavar="S", help="Seconds for live rewards.")] = 600.0,
    journal: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Live results, which a repeated command reads.")
    ] = None,
    device: Device = "auto",
    gpu: TargetGpu = None,
    python: Python = None,
) -> None:
    """Learn an order of the generator's schedules from measured times: searches try promising ones first.

    With --live the policy goes on with rewards of a device: measured times, on the CPU estimates. Without a table it
    begins with the installed models. Exit status: 0 written, 2 there is too little to learn from, or no device.
    """
    import kernel_lsp.cli.train as command

    overrides = {"device": device, "target_gpu": gpu, "python": python}
    request = command.LiveRequest(tuple(live or ()), rounds, deadline, journal, overrides)
    raise typer.Exit(command.main(tables or (), workspaces or (), out, order, seed, request))


app.add_typer(judge_app, name="judge")
app.add_typer(archive_app, name="archive")


@app.command()
def doctor(
    python: Python = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Everything that was found, and every fix.")] = False,
    as_json: Json = False,
) -> None:
    """Report the tools found, what each enables, and how to fix the rest."""
    import kernel_lsp.cli.machine as command

    raise typer.Exit(command.main({"python": python}, as_json, verbose))


@app.command()
def serve() -> None:
    """Run the language server on stdin and stdout; editors start it."""
    from kernel_lsp.server.main import serve

    raise typer.Exit(serve())


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Optimize PyTorch to CUDA: translate, verify, evolve and measure kernels."""
    if version:
        typer.echo(f"kernel-lsp {__version__}")
        raise typer.Exit
