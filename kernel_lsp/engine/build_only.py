"""Verdict on a kernel without a declared task: compiler findings only."""

from __future__ import annotations

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.plan import LaunchPlan
from kernel_lsp.core.verdict import Built, Unsupported, Verdict
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.process.confinement import sandbox_level
from kernel_lsp.process.interpreter import find_python, site_packages
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.toolchain.nvrtc.cache import BuildCache
from kernel_lsp.toolchain.nvrtc.compile import Compiler
from kernel_lsp.toolchain.nvrtc.discovery import find_toolchain
from kernel_lsp.verify.build.building import names_without_sizes, request_of

COMPILER = "NVRTC"
"""Device named in such a verdict."""
NO_TASK = "no task declared: to check and time this kernel, add `// task: model.py::symbol` to the plan"


async def build_only(text: str, plan: LaunchPlan, settings: Settings) -> Verdict:
    """Compile the launched kernels whose names depend on no size. Raises EnvironmentProblem or SettingError for a
    missing tool."""
    gpu = find_gpu(settings.target_gpu)
    toolchain = find_toolchain(
        settings.cuda_directory, user_site_packages=site_packages(await find_python(settings.python))
    )
    async with Compiler(
        toolchain,
        cache=BuildCache(settings.cache_directory),
        n_processes=1,
        deadline_s=settings.compile_deadline_s,
        sandbox=sandbox_level(settings.sandbox),
    ) as compiler:
        names = names_without_sizes(plan, kernel_signatures(text))
        built = await compiler.compile(request_of(text, names, gpu, None))
    candidate = Candidate(text=text, origin=Origin(proposer="user", description="an editor's text"))
    if not isinstance(built, Built):
        return Verdict(candidate_id=candidate.id, device=COMPILER, outcome=built)
    return Verdict(
        candidate_id=candidate.id,
        device=COMPILER,
        outcome=Unsupported(message=NO_TASK),
        findings=built.warnings,
        kernels=built.kernels,
    )
