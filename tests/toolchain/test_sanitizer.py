"""compute-sanitizer's reports as an H200's wrote them (2025.3.1, of `tests/verify/profiles/faults.cu`), clang-tidy's
as its documentation has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.toolchain.tools.clang_tidy import parse_tidy, tidy_command
from kernel_lsp.toolchain.tools.sanitizer import TOOLS, SanitizerTool, parse_sanitizer, sanitizer_command

RECORDED = Path(__file__).parent.parent / "verify" / "profiles" / "recorded"


def findings(tool: SanitizerTool, name: str = "") -> tuple[Finding, ...]:
    return parse_sanitizer(tool, (RECORDED / f"{name or tool}.xml").read_text())


@pytest.mark.parametrize(
    ("tool", "code", "line", "words"),
    [
        ("memcheck", "invalid-access", 13, "Invalid __global__ write of size 4 bytes is out of bounds"),
        ("initcheck", "uninitialised-read", 23, "Uninitialized __global__ memory read of size 4 bytes"),
        ("synccheck", "barrier-error", 27, "Barrier error: Divergent thread(s) in warp"),
        (
            "racecheck",
            "race",
            18,
            "Race condition: a write here and a read on line 19 without a barrier between them",
        ),
    ],
)
def test_each_tool_finds_its_fault_on_its_line(tool: SanitizerTool, code: str, line: int, words: str) -> None:
    (finding,) = findings(tool)
    assert (finding.code, finding.line, finding.file, finding.message) == (code, line, "faults.cu", words)
    assert finding.severity is Severity.ERROR


def test_the_same_fault_in_many_threads_is_one_finding() -> None:
    (finding,) = findings("initcheck")
    assert finding.n_occurrences == 3
    assert finding.thread == (0, 0, 0)


def test_what_the_host_met_is_no_finding_on_the_kernel() -> None:
    text = (RECORDED / "memcheck.xml").read_text()
    assert "CUDA_ERROR_LAUNCH_FAILED" in text
    assert len(parse_sanitizer("memcheck", text)) == 1


def test_a_clean_run_has_no_findings() -> None:
    assert findings("memcheck", "clean") == ()


def test_a_torn_report_is_no_clean_one() -> None:
    with pytest.raises(ValueError, match="not a report of memcheck"):
        parse_sanitizer("memcheck", (RECORDED / "memcheck.xml").read_text()[:200])


@pytest.mark.parametrize("tool", TOOLS)
def test_a_report_is_saved_and_errors_have_a_status(tool: SanitizerTool) -> None:
    command = [str(part) for part in sanitizer_command(Path("cs"), tool, Path("r.xml"), ["program"])]
    assert command[command.index("--save") + 1] == "r.xml"
    assert int(command[command.index("--error-exitcode") + 1]) != 0


TIDY = """\
/cache/abc.cu:12:9: warning: the value of 'x' is never read [clang-analyzer-deadcode.DeadStores]
/usr/local/cuda/include/crt/host.h:3:1: warning: something [bugprone-macro]
/cache/abc.cu:1:1: error: unknown type name '__half' [clang-diagnostic-error]
12 warnings generated.
"""


def test_lint_of_the_kernels_own_lines_is_read_and_nothing_else() -> None:
    (finding,) = parse_tidy(TIDY, Path("/cache/abc.cu"))
    assert (finding.line, finding.column) == (12, 9)
    assert finding.code == "clang-analyzer-deadcode.DeadStores"
    assert finding.message == "the value of 'x' is never read"


def test_lint_reads_the_file_as_device_code() -> None:
    command = [str(part) for part in tidy_command(Path("clang-tidy"), Path("k.cu"), [Path("/cuda/include")])]
    assert "--cuda-device-only" in command
    assert "-I/cuda/include" in command
