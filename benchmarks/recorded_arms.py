"""Ask a model the same question in several ways: kernels in order, in random order, and without a profile.

    python benchmarks/recorded_arms.py prompts STATE PROFILES FOLDER  # write FOLDER/TASK.ARM/prompt_K.txt
    python benchmarks/recorded_arms.py keep STATE PROFILES FOLDER     # reply_K.txt beside them, into recorded_runs/
    python benchmarks/recorded_arms.py judge VERDICTS                 # on the CPU executor, of the kernels kept
    python benchmarks/recorded_arms.py texts STATE FOLDER             # for `kernel_variants.py bind` and `time`
    python benchmarks/recorded_arms.py settle TIMES VERDICTS...       # outcomes and times, into recorded_runs/

STATE is that of `recorded_search.py`, whose archives hold the kernels with their times on the GPU. PROFILES holds
``TASK.json``: digests of the kernels that prompts describe, by candidate id. Prompt K shows the same five kernels in
every arm, drawn with seed K among the ten fastest that are not faster than FASTEST_SHOWN_US, and asks for a faster one
with the product's own template (`improve`), without a hint. Each of the N_PARENTS fastest is the best of two prompts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recorded_replay import KEPT, judged_alone
from recorded_tasks import RecordedTask, read_tasks

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.task import Task
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.propose.feedback import ProfileDigest
from kernel_lsp.evolve.propose.model_search import SEED_SLOT, score_us
from kernel_lsp.evolve.propose.population import N_CONTEXT, Member, Plan, ranked
from kernel_lsp.evolve.propose.prompt_builder import Questions, assemble
from kernel_lsp.evolve.run.task_text import describe_task, task_floor_us
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.llm.manual import prompt_text
from kernel_lsp.llm.prompts import OVERRIDES_FOLDER_NAME, PROMPTS_FOLDER, Prompts
from kernel_lsp.llm.recording import RecordedReply, write_recording
from kernel_lsp.llm.replies import BadReply, ParsedReply, parse_rewrite
from kernel_lsp.llm.request import ModelRequest, Replied
from kernel_lsp.plan.parser import parse_or_raise

ARMS = ("ordered", "random", "no_profile")
FASTEST_SHOWN_US = {"top_k": 166.0, "kl_divergence": 256.0, "normalize_image": 35.94}
"""Minimum device times on an H200 of the kernels shown, 1.36, 1.09 and 1.10 times the best known: room to improve."""
TIMED = ("correct", "timed_out")
"""Outcomes with times. What exceeds the executor's instructions was compared with fp64 at the measured size alone."""
MAX_ERROR = 1e-5
"""Maximum relative L2 error of f32 results on the GPU; those of correct kernels are below 1e-6."""
N_POPULATION = 10
N_PARENTS = 4
N_DRAWS = 8
PROMPTS_OF_CONVERSATION = {"top_k": 4, "kl_divergence": N_DRAWS, "normalize_image": N_DRAWS}
"""Prompts of an arm that one conversation answered, in order."""
GPU = "H200"
SEARCHES = ("evolve", "best-of-n")
MAX_TOKENS = 16_384
TEMPERATURE = 0.7
NO_PROFILE = " "
"""Blank but not empty: an empty profile would be replaced by a summary of the verdict."""
RANDOM_ORDER = {
    "Kernels that are right, from the slowest to the fastest:": "Kernels that are right, in random order:",
    "What is known about the last one:": "What is known about the fastest one:",
}

TASK_FILE = """import torch
from torch.nn import functional as F


def get_init_inputs():
    return []


"""
TASK_FILES = {
    "top_k": """class Model(torch.nn.Module):
    def forward(self, x):
        return torch.topk(x, 8, -1)


def get_inputs():
    return [torch.randn(4096, 32000)]
""",
    "kl_divergence": """class Model(torch.nn.Module):
    def forward(self, student, teacher):
        return F.kl_div(F.log_softmax(student, -1), F.softmax(teacher, -1), reduction="batchmean")


def get_inputs():
    return [torch.randn(4096, 32000), torch.randn(4096, 32000)]
""",
    "normalize_image": """class Model(torch.nn.Module):
    def forward(self, image, mean, std_):
        return ((image.to(mean.dtype) / 255 - mean) / std_).permute(0, 3, 1, 2).contiguous()


def get_inputs():
    return [torch.randint(0, 256, (32, 512, 512, 3), dtype=torch.uint8), torch.rand(3), torch.rand(3) + 0.5]
""",
}
"""The tasks as `kernel_variants.py` reads them."""


@dataclass(frozen=True)
class RandomPlan(Plan):
    """A plan whose members are in random order. `fastest` is the parent."""

    fastest: Member | None = None

    @property
    def parent(self) -> Member | None:
        return self.fastest


def main() -> int:
    options = _options()
    names = options.only or tuple(FASTEST_SHOWN_US)
    tasks = [task for task in read_tasks() if task.name in names]
    if options.command in ("prompts", "keep"):
        state, profiles, folder = options.paths
        with tempfile.TemporaryDirectory() as overrides:
            asked = Asked(state, profiles, write_random_template(Path(overrides)))
            for task in tasks:
                (write_prompts if options.command == "prompts" else keep)(asked, task, folder)
    elif options.command == "texts":
        state, folder = options.paths
        for task in tasks:
            write_texts(task, state, folder)
    elif options.command == "judge":
        asyncio.run(judge(tasks, *options.paths, *options.part))
    else:
        settle(tasks, *options.paths)
    return 0


# --- prompts and replies


@dataclass(frozen=True)
class Asked:
    """The folders of what prompts are made of: archives, digests of profiles, and the template in random order."""

    state: Path
    profiles: Path
    overrides: Path


def write_prompts(asked: Asked, task: RecordedTask, folder: Path) -> None:
    """Write the prompts of every arm of a task."""
    for arm, number, request, _ in requests(asked, task.name):
        path = folder / f"{task.name}.{arm}" / f"prompt_{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(prompt_text(request))


def keep(asked: Asked, task: RecordedTask, folder: Path) -> None:
    """Keep the replies that were written as recordings, and their kernels, without outcomes as yet."""
    kept: dict[str, tuple[list[RecordedReply], list[dict[str, Any]]]] = {arm: ([], []) for arm in ARMS}
    for arm, number, request, parent in requests(asked, task.name):
        path = folder / f"{task.name}.{arm}" / f"reply_{number}.txt"
        if not path.is_file():
            continue
        replied = Replied(model="manual", text=path.read_text())
        parsed = parse_rewrite(replied)
        replies, kernels = kept[arm]
        replies.append(RecordedReply(key=request.key, model="manual", request=request, outcome=replied))
        conversation = 1 + (number - 1) // PROMPTS_OF_CONVERSATION[task.name]
        kernels.append(kernel_row(number, conversation, parent, parsed))
    for arm, (replies, kernels) in kept.items():
        write_recording(task.recording(arm), (), replies)
        task.kernels(arm).write_text(json.dumps(kernels, indent=1) + "\n")
        print(f"{task.name}.{arm}: kept {len(kernels)} replies")


def kernel_row(number: int, conversation: int, parent: Member, parsed: ParsedReply | BadReply) -> dict[str, Any]:
    """Return what is kept of a reply, as of a search's; `parent` is the fastest kernel that its prompt shows."""
    row = dict.fromkeys(KEPT) | {"slot": number - 1, "round": 0, "operator": "improve", "feedback": ""}
    row |= {"best_before_us": parent.time_us, "parent": parent.candidate.id, "conversation": conversation}
    if isinstance(parsed, BadReply):
        return row | {"name": "", "outcome": "unreadable", "feedback": parsed.problem, "kernel": ""}
    plan = parse_or_raise(parent.candidate.text, parent.candidate.id)
    return row | {"name": parsed.name, "outcome": "", "kernel": assemble(parsed.text, plan.task or "")}


def requests(asked: Asked, name: str) -> Iterator[tuple[str, int, ModelRequest, Member]]:
    """Yield each arm, the prompt's number from 1, its request and the fastest kernel that it shows. Raises KeyError
    where that has no profile."""
    members, task = population(asked.state, name)
    digests = json.loads((asked.profiles / f"{name}.json").read_text())
    gpu = find_gpu(GPU)
    text, floor_us = describe_task(task, gpu), task_floor_us(task, gpu)
    prompts = {arm: Prompts(asked.overrides if arm == "random" else None) for arm in ARMS}
    questions = {arm: Questions(prompts[arm], text, (), floor_us, MAX_TOKENS) for arm in ARMS}
    for number in range(1, N_DRAWS + 1):
        drawn, shuffled = draw(members, number), random.Random(f"{name}:order:{number}")
        profile = ProfileDigest.model_validate(digests[drawn[0].candidate.id]["digest"]).summary
        mixed = list(drawn)
        while mixed == drawn:
            shuffled.shuffle(mixed)
        plans = {arm: Plan("improve", members=tuple(drawn)) for arm in ARMS}
        plans["random"] = RandomPlan("improve", members=tuple(mixed), fastest=drawn[0])
        for arm in ARMS:
            shown = NO_PROFILE if arm == "no_profile" else profile
            yield arm, number, questions[arm].first(plans[arm], "", shown, number, TEMPERATURE).request, drawn[0]


def population(state: Path, name: str) -> tuple[list[Member], Task]:
    """Return the kernels that prompts may show, the fastest first, and their task."""
    found: list[Member] = []
    for search in SEARCHES:
        with Archive(state / search / name) as archive:
            run = archive.run("last")
            task = Task.model_validate_json(run.task_json or "")
            candidates = {candidate.id: candidate for candidate in archive.candidates(run.run_id)}
            for verdict in archive.verdicts(run.run_id):
                time_us = score_us(verdict)
                if verdict.is_correct and verdict.measurement is not None and time_us:
                    found.append(Member(SEED_SLOT, 0, candidates[verdict.candidate_id], verdict, time_us))
    slow = [member for member in ranked(found) if member.time_us >= FASTEST_SHOWN_US[name]]
    return slow[:N_POPULATION], task


def draw(members: list[Member], number: int) -> list[Member]:
    """Return the parent of prompt `number` and other members that are slower, the fastest first."""
    parent = (number - 1) % N_PARENTS
    others = random.Random(f"kernels:{number}").sample(range(parent + 1, len(members)), N_CONTEXT - 1)
    return [members[place] for place in (parent, *sorted(others))]


def write_random_template(folder: Path) -> Path:
    """Write the template of arm `random` where `Prompts(folder)` finds it. Raises LookupError for a changed one."""
    text = (PROMPTS_FOLDER / "improve.jinja").read_text()
    for line, other in RANDOM_ORDER.items():
        if line not in text:
            raise LookupError(f"the template has no line '{line}'")
        text = text.replace(line, other)
    (folder / OVERRIDES_FOLDER_NAME).mkdir()
    (folder / OVERRIDES_FOLDER_NAME / "improve.jinja").write_text(text)
    return folder


# --- outcomes and times


async def judge(tasks: Sequence[RecordedTask], verdicts: Path, part: int, n_parts: int) -> None:
    """Judge one part of the kernels kept on the CPU executor; write each outcome by candidate id when it is known."""
    known: dict[str, str] = {}
    for task in tasks:
        texts = {candidate_id(kernel): kernel for kernel in _kept(task)}
        async for kernel in judged_alone(task, list(texts.values())[part::n_parts]):
            known[candidate_id(kernel)] = kernel["outcome"]
            verdicts.write_text(json.dumps(known, indent=1) + "\n")


def write_texts(task: RecordedTask, state: Path, folder: Path) -> None:
    """Write `task.py` and the texts, by candidate id, for `kernel_variants.py`: those of some prompts in one folder,
    with the kernels that these prompts ask to improve on."""
    parents = {member.candidate.id: member.candidate.text for member in population(state, task.name)[0]}
    for first in range(0, N_DRAWS, N_PARENTS // 2):
        own = folder / f"{task.name}_{first}"
        own.mkdir(parents=True, exist_ok=True)
        (own / "task.py").write_text(TASK_FILE + TASK_FILES[task.name])
        for kernel in _kept(task):
            if first <= kernel["slot"] < first + N_PARENTS // 2:
                (own / f"{candidate_id(kernel)}.cu").write_text(kernel["kernel"])
                (own / f"{kernel['parent']}.cu").write_text(parents[kernel["parent"]])


def settle(tasks: Sequence[RecordedTask], times: Path, *verdicts: Path) -> None:
    """Write outcomes and times into the kernels kept. `best_before_us` becomes the parent's time of the same run."""
    rows = {row["subject"]: row for row in json.loads(times.read_text())["rows"] if "time_us" in row}
    outcomes = {key: outcome for path in verdicts for key, outcome in json.loads(path.read_text()).items()}
    for task in tasks:
        for arm in ARMS:
            kernels = json.loads(task.kernels(arm).read_text())
            for kernel in kernels:
                identity = candidate_id(kernel)
                row, outcome = rows.get(identity, {}), outcomes.get(identity, kernel["outcome"])
                kernel["outcome"] = "mismatch" if row.get("error", 0.0) > MAX_ERROR else outcome
                kernel["time_us"] = row.get("time_us") if kernel["outcome"] in TIMED else None
                kernel["time_kind"] = "measured" if kernel["time_us"] else None
                kernel["best_before_us"] = rows[kernel["parent"]]["time_us"]
            task.kernels(arm).write_text(json.dumps(kernels, indent=1) + "\n")


def candidate_id(kernel: dict[str, Any]) -> str:
    return Candidate(text=kernel["kernel"], origin=Origin(proposer="user")).id


def _kept(task: RecordedTask) -> list[dict[str, Any]]:
    """Return the readable kernels of all arms."""
    return [each for arm in ARMS for each in json.loads(task.kernels(arm).read_text()) if each["kernel"]]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("prompts", "keep", "judge", "texts", "settle"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="TASK")
    parser.add_argument("--part", nargs=2, type=int, default=(0, 1), metavar=("I", "N"), help="judge every Nth kernel")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
