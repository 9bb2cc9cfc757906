"""Show the PTX or SASS of the function at a line of a kernel file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from kernel_lsp.config import Settings, load_settings
from kernel_lsp.core.finding import Severity
from kernel_lsp.core.verdict import BuildFailed, Built, TimedOut
from kernel_lsp.engine.messages import GetMachineCode, MachineCode
from kernel_lsp.gpu.specs import GPUS, find_gpu
from kernel_lsp.process.confinement import SandboxLevel, sandbox_level
from kernel_lsp.process.interpreter import named_python, site_packages
from kernel_lsp.source.cuda import device_functions, kernel_line_ranges
from kernel_lsp.source.plan_draft import assumed_arguments
from kernel_lsp.toolchain.nvrtc.discovery import find_toolchain
from kernel_lsp.toolchain.tools.listing import (
    ListedLine,
    Listing,
    disassemble,
    find_nvdisasm,
    ptx_listings,
    sass_listings,
)
from kernel_lsp.verify.session.plain_build import build_with_nvcc, build_with_nvrtc, find_nvcc, instances

ARCHITECTURES = tuple(dict.fromkeys(gpu.architecture.name for gpu in GPUS))
"""Architectures to choose from: those of the GPUs with known figures."""
MAX_SHOWN = 4
"""Maximum functions in one text: instances of a template, or kernels that inline a device function."""
NO_FUNCTION = "no kernel or device function at the cursor"
NOT_COMPILED = (
    "no code for this function: a template without a launch in this file, or a device function that no kernel calls"
)


async def machine_code(request: GetMachineCode) -> MachineCode:
    """Compile the text and return the code of one function. Raises EnvironmentProblem, SettingError."""
    settings = load_settings(request.directory, request.settings)
    architecture = request.architecture or find_gpu(settings.target_gpu).architecture.name
    found = MachineCode(form=request.form, architecture=architecture, architectures=ARCHITECTURES)
    place = _function_at(request.text, request.line)
    if place is None:
        return found.model_copy(update={"problem": NO_FUNCTION})
    found = found.model_copy(update={"first_line": place[0], "last_line": place[1]})
    level = sandbox_level(settings.sandbox)
    found, listings, built = await _compiled(request, found, place, level, settings)
    return _shown(found, listings, built) if built is not None and listings else found


async def _compiled(
    request: GetMachineCode, found: MachineCode, place: tuple[int, int], level: SandboxLevel, settings: Settings
) -> tuple[MachineCode, list[Listing], Built | None]:
    """Compile what the file launches; where that leaves the function out, an assumed instance of its template."""
    assumed = _assumed_instance(request.text, place)
    for names in [(), (assumed,)] if assumed else [()]:
        built = await _build(request, names, found.architecture, level, settings)
        if not isinstance(built, Built):
            return found.model_copy(update={"problem": _problem_of(built)}), [], None
        listings = _of_function(ptx_listings(built.ptx, request.kernel.name), place)
        if listings and request.form == "sass":
            listings = _of_function(await _disassembled(request, built, level, settings), place)
        if listings:
            return found.model_copy(update={"architecture": built.architecture}), listings, built
    return found.model_copy(update={"problem": NOT_COMPILED}), [], None


def _function_at(text: str, line: int) -> tuple[int, int] | None:
    """Return the first and last line of the kernel, else the device function, at a 1-based line."""
    kernels = ((kernel.first_line, kernel.last_line) for kernel in kernel_line_ranges(text))
    return next((each for each in (*kernels, *device_functions(text)) if each[0] <= line <= each[1]), None)


def _assumed_instance(text: str, place: tuple[int, int]) -> str:
    """Return an instance of the template kernel in these lines; empty for another function."""
    name = next((each.name for each in kernel_line_ranges(text) if each.first_line == place[0]), "")
    arguments = assumed_arguments(text).get(name.rpartition("::")[2], ())
    return f"{name}<{', '.join(arguments)}>" if arguments else ""


async def _build(
    request: GetMachineCode, names: tuple[str, ...], architecture: str, level: SandboxLevel, settings: Settings
) -> Built | BuildFailed | TimedOut:
    """Compile the device code with NVRTC, which is fast; what it refuses, as a whole with nvcc where it is found."""
    kernel, text = request.kernel, request.text
    toolchain = find_toolchain(settings.cuda_directory, user_site_packages=_user_packages(settings))
    names = names or instances(text)
    built = await build_with_nvrtc(kernel, text, names, toolchain, architecture, level, settings)
    tools = await find_nvcc() if isinstance(built, BuildFailed) else None
    if tools is None:
        return built
    whole = await build_with_nvcc(kernel, text, tools, architecture, level, settings)
    return whole if isinstance(whole, Built) else built


def _user_packages(settings: Settings) -> tuple[Path, ...]:
    python = named_python(settings.python)
    return site_packages(python) if python is not None else ()


async def _disassembled(
    request: GetMachineCode, built: Built, level: SandboxLevel, settings: Settings
) -> tuple[Listing, ...]:
    program = find_nvdisasm(_user_packages(settings))
    codes = [base64.b64decode(code) for code in built.cubins]
    texts = [await disassemble(code, program, level) for code in codes]
    return tuple(each for text in texts for each in sass_listings(text, request.kernel.name))


def _of_function(listings: Sequence[Listing], place: tuple[int, int]) -> list[Listing]:
    return [listing for listing in listings if listing.n_lines_of(*place)]


def _shown(found: MachineCode, listings: Sequence[Listing], built: Built) -> MachineCode:
    """Return the listings as one text, each below a comment that names it."""
    names = {facts.symbol: facts.kernel for facts in built.kernels}
    lines: list[ListedLine] = []
    for listing in listings[:MAX_SHOWN]:
        name = names.get(listing.symbol, listing.symbol)
        lines += [ListedLine(f"// {found.architecture} {found.form.upper()} of {name}", None), *listing.lines]
        lines.append(ListedLine("", None))
    if len(listings) > MAX_SHOWN:
        lines.append(ListedLine(f"// and {len(listings) - MAX_SHOWN} more", None))
    return found.model_copy(
        update={
            "function": ", ".join(names.get(listing.symbol, listing.symbol) for listing in listings),
            "text": "\n".join(line.text for line in lines),
            "lines": tuple(line.source or 0 for line in lines),
        }
    )


def _problem_of(failed: BuildFailed | TimedOut) -> str:
    if isinstance(failed, TimedOut):
        return failed.message
    first = next((found for found in failed.findings if found.severity is Severity.ERROR), failed.findings[0])
    return f"line {first.line}: {first.message}" if first.line else first.message
