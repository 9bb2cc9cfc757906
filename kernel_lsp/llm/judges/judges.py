"""Three judges: compilation, memory, numerics. Each gets the function, the sizes, the plan, the code without comments
and strings, and the reports of the real compiler and the executor."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernel_lsp.llm.judges.calibration import JUDGES, Calibration, Judgement, JudgeName, NoJudgement
from kernel_lsp.llm.prompts import Prompts
from kernel_lsp.llm.request import ModelFailed, ModelRequest, Replied
from kernel_lsp.plan.parser import parse
from kernel_lsp.plan.printer import print_plan
from kernel_lsp.toolchain.integrity.masking import mask_literals

JUDGE_TEMPERATURE = 0.0
JUDGE_MAX_TOKENS = 4096
MAX_REPORT_CHARACTERS = 2000

_PROBABILITY = re.compile(r"^PROBABILITY:[ \t]*(?P<value>[01](?:\.\d+)?|\.\d+)[ \t]*$", re.MULTILINE)

Ask = Callable[[ModelRequest, int], Awaitable[Replied | ModelFailed]]
"""Sends a request to the judges' model of that index."""


@dataclass(frozen=True)
class Case:
    """The candidate to judge. `task` is the prompts' view of the task; `compiler` and `checks` are reports of what
    ran."""

    task: Any
    text: str
    compiler: str
    checks: str


class Panel:
    """The judges with their models; every model acts as every judge."""

    def __init__(self, prompts: Prompts, ask: Ask, model_names: Sequence[str], calibration: Calibration) -> None:
        self._prompts, self._ask = prompts, ask
        self._models, self._calibration = tuple(model_names), calibration

    async def judge(
        self, case: Case, sample: int = 0, judges: Sequence[JudgeName] = JUDGES
    ) -> tuple[Judgement | NoJudgement, ...]:
        """Return one judgement per judge and model, in order. `judges` restricts them to the applicable ones."""
        calls = [self._one(judge, model, case, sample) for judge in judges for model in range(len(self._models))]
        return tuple(await asyncio.gather(*calls))

    async def _one(self, judge: JudgeName, model: int, case: Case, sample: int) -> Judgement | NoJudgement:
        request = judge_request(self._prompts, judge, case, sample)
        name = self._models[model]
        outcome = await self._ask(request, model)
        if isinstance(outcome, ModelFailed):
            return NoJudgement(judge=judge, model=name, problem=outcome.message)
        said = read_probability(outcome.text)
        if said is None:
            return NoJudgement(judge=judge, model=name, problem="the reply does not end with one PROBABILITY line")
        probability = self._calibration.calibrated(judge, name, said)
        return Judgement(
            judge=judge,
            model=name,
            said=said,
            probability=probability,
            request_key=request.key,
            prompt_hash=request.prompt_hash,
        )


def judge_request(prompts: Prompts, judge: JudgeName, case: Case, sample: int = 0) -> ModelRequest:
    """Return the prompt for one judge."""
    name = f"judge_{judge}"
    inputs = {
        "task": case.task,
        "plan": _plan(case.text),
        "code": without_prose(case.text),
        "compiler": case.compiler[:MAX_REPORT_CHARACTERS],
        "checks": case.checks[:MAX_REPORT_CHARACTERS],
    }
    rendered = prompts.render(name, inputs)
    return ModelRequest(
        purpose="judge",
        messages=rendered.messages,
        sample=sample,
        temperature=JUDGE_TEMPERATURE,
        max_tokens=JUDGE_MAX_TOKENS,
        prompt=name,
        prompt_hash=rendered.hash,
    )


def without_prose(text: str) -> str:
    """Remove comments, strings and the resulting blank lines from the code: prose must not influence the judge."""
    lines = (line.rstrip() for line in mask_literals(text).splitlines())
    return "\n".join(line for line in lines if line)


def read_probability(reply: str) -> float | None:
    """Return the number of the last PROBABILITY line, if it is the reply's last line, else None."""
    found = list(_PROBABILITY.finditer(reply.strip()))
    if not found or found[-1].end() != len(reply.strip()):
        return None
    value = float(found[-1]["value"])
    return value if 0.0 <= value <= 1.0 else None


def passes(judgements: Sequence[Judgement | NoJudgement], threshold: float) -> bool:
    """Return True when no judge's mean probability is below the threshold, or none answered. One judge is enough to
    hold a kernel back: most faulty kernels have one kind of fault, which judges of other kinds do not see."""
    has_answer = any(isinstance(each, Judgement) for each in judgements)
    return not has_answer or probability_right(judgements) >= threshold


def probability_right(judgements: Sequence[Judgement | NoJudgement]) -> float:
    """Return the lowest of the judges' mean probabilities: one fault is enough. 0.5 without any answer."""
    means = []
    for judge in JUDGES:
        given = [j.probability for j in judgements if isinstance(j, Judgement) and j.judge == judge]
        if given:
            means.append(sum(given) / len(given))
    return min(means, default=0.5)


def _plan(text: str) -> str:
    """Print the parsed plan again, without prose between its lines and without its `task:` line."""
    plan = parse(text).plan
    if plan is None:
        return "(it cannot be read)"
    lines = print_plan(plan).splitlines()
    return "\n".join(line for line in lines if not line.startswith("// task:"))
