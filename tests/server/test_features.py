"""Hovers, lenses, hints and actions, from an analysis and what jobs told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types

from kernel_lsp.core.finding import Finding, RelatedPlace, Severity
from kernel_lsp.core.measurement import Comparison, Measurement
from kernel_lsp.core.profile import Advice, KernelProfile, LineProfile, ProfileReport
from kernel_lsp.core.recording import RecordedConfiguration, RecordedTarget
from kernel_lsp.core.verdict import BuildFailed, Correct, Crashed, KernelFacts, Unsupported, Verdict
from kernel_lsp.server.analysis.analysis_client import Known
from kernel_lsp.server.analysis.analysis_types import EMPTY, Analysis
from kernel_lsp.server.analysis.analysis_worker import analyse, scan
from kernel_lsp.server.documents.documents import Change, Document, Documents
from kernel_lsp.server.features.code_actions import CodeActions
from kernel_lsp.server.features.code_lens import cuda_lenses, line_hints, profile_hints, python_lenses
from kernel_lsp.server.features.diagnostics import check_diagnostics, diagnostics_of
from kernel_lsp.server.features.formatting import recorded_text
from kernel_lsp.server.features.hover import _floor_text, cuda_hover, python_hover
from kernel_lsp.server.knowledge import Knowledge, KnownCheck, KnownEstimate, KnownProfile, NoEstimate
from kernel_lsp.server.protocol.handshake import REWRITE_KIND, client_features
from kernel_lsp.source.call_sites import OPERATOR_MARK
from kernel_lsp.source.recorded import write_recording
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest
from tests.record.programs import recording_of

from .client import MINIMAL, VSCODE
from .samples import (
    CALL_LINE,
    KERNEL,
    KERNEL_LINE,
    NET_FORWARD_LINE,
    NET_LINE,
    SCALE,
    SCALE_LINE,
    SHIFTED_LINE,
    STORE_LINE,
    run_of_scale,
    target_estimate,
)

COMPILED_AS = "kernel.cu"
FACTS = KernelFacts(
    kernel="scale",
    symbol="_Z5scale",
    n_registers=20,
    spill_store_bytes=0,
    spill_load_bytes=0,
    stack_bytes=0,
    shared_bytes=64,
)


class Opened:
    """One document with its analysis, and knowledge to add to."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.document: Document = Documents("utf-16").open(path.as_uri(), "", 1, text)
        self.knowledge = Knowledge()
        self.known = Known(analyse(self.document.language, str(path), text), 0, 0)

    @property
    def analysis(self) -> Analysis:
        return self.known.now(self.document)

    def edit(self, line: int, text: str) -> None:
        """Insert before a line; the analysis is then of an older text."""
        self.document.apply([Change(text, (line, 0), (line, 0))], 2)

    def hover(self, line: int, pending: str = "") -> str:
        if self.document.language == "cuda":
            return cuda_hover(self.document, self.analysis, self.knowledge, line, "H200")
        return python_hover(self.document, self.analysis, self.knowledge, line, pending)

    def lenses(self) -> list[tuple[int, str]]:
        make = cuda_lenses if self.document.language == "cuda" else python_lenses
        lenses = make(self.document, self.analysis, self.knowledge)
        return [(lens.range.start.line, lens.command.title) for lens in lenses if lens.command]

    def actions(self, line: int, *only: str, client: dict[str, Any] = VSCODE) -> dict[str, types.CodeAction]:
        made = CodeActions(self.document, self.known, self.knowledge, client_features(client))
        return {action.title: action for action in made.between(line, line, only)}

    def diagnostics(self) -> list[types.Diagnostic]:
        return diagnostics_of(self.document, self.analysis, self.knowledge.check(self.document.uri))

    def learn_estimate(self) -> None:
        target = self.analysis.target("scale")
        assert target is not None
        known = KnownEstimate(target_estimate(self.path), target.digest, self.document.serial)
        self.knowledge.learn_estimate(self.document.uri, "scale", known)

    def learn_check(self, outcome: Any, *findings: Finding, **more: Any) -> None:
        known = {"candidate_id": "x", "device": "PTX executor (CPU)", "kernels": (FACTS,)} | more
        verdict = Verdict(outcome=outcome, findings=findings, **known)
        self.knowledge.learn_check(self.document.uri, KnownCheck(verdict, self.document.serial))

    def applied(self, action: types.CodeAction) -> str:
        """The text after an action's edit."""
        assert action.edit is not None
        assert action.edit.document_changes is not None
        (change,) = action.edit.document_changes
        assert isinstance(change, types.TextDocumentEdit)
        assert change.text_document.version == self.document.version
        copy = Documents("utf-16").open(self.document.uri, "", 1, self.document.text)
        for edit in sorted(change.edits, key=lambda edit: (edit.range.start.line, edit.range.start.character))[::-1]:
            start, end = edit.range.start, edit.range.end
            copy.apply([Change(edit.new_text, (start.line, start.character), (end.line, end.character))], 2)  # type: ignore[union-attr]
        return copy.text


@pytest.fixture
def scale(tmp_path: Path) -> Opened:
    path = tmp_path / "scale.py"
    path.write_text(SCALE)
    return Opened(path, SCALE)


@pytest.fixture
def kernel(tmp_path: Path) -> Opened:
    return Opened(tmp_path / "scale.cu", KERNEL)


def check(text: str, *parts: str) -> None:
    assert not [part for part in parts if part not in text], text


# --- hovers


def test_a_target_without_an_estimate_says_what_is_going_on(scale: Opened) -> None:
    check(scale.hover(SCALE_LINE, "Being estimated"), "**scale**", "f32[64, 256]", "Being estimated")


def test_a_target_with_an_estimate_says_time_interval_kind_gpu_and_date(scale: Opened) -> None:
    scale.learn_estimate()
    check(scale.hover(SCALE_LINE), "**20 us** [10, 40], estimated on H200, 2026-11-21", "memory-bound", "3 launches")


def test_many_times_the_floor_are_a_plain_number() -> None:
    assert _floor_text(340.6, 1.0) == "341x the speed of light of 1 us"
    assert _floor_text(99.4, 1.0) == "99x the speed of light of 1 us"


def test_a_kernel_without_a_plan_says_what_it_lacks(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "a.cu", "__global__ void zero(float* x) { x[threadIdx.x] = 0.0f; }\n")
    check(opened.hover(0), "**zero**", "Not compiled yet: save the file", "*Add a launch plan*")


def test_a_target_says_how_far_from_the_floor_it_is(scale: Opened) -> None:
    scale.learn_estimate()
    check(scale.hover(SCALE_LINE), "4x the speed of light of 5 us")


def test_a_line_says_its_share(scale: Opened) -> None:
    scale.learn_estimate()
    check(
        scale.hover(SHIFTED_LINE), "**15 us** [7.5, 30], 75% of `scale`", "estimated on H200", "mul, add", "2 launches"
    )
    check(scale.hover(SHIFTED_LINE), "2 launches", "launch-bound", "60x the speed of light of 0.25 us")


def test_a_line_that_moved_keeps_its_share(scale: Opened) -> None:
    scale.learn_estimate()
    scale.edit(0, "# one more line\n")
    check(scale.hover(SHIFTED_LINE + 1), "75% of `scale`")


def test_a_changed_target_s_estimate_is_stale(scale: Opened) -> None:
    scale.learn_estimate()
    text = SCALE.replace("relu", "tanh")
    scale.document.apply([Change(text)], 2)
    scale.known.analysis, scale.known.serial = analyse("python", str(scale.path), text), scale.document.serial
    check(scale.hover(SCALE_LINE), "stale")
    check(scale.hover(SHIFTED_LINE), "stale")


def test_without_shapes_a_target_says_what_to_add(scale: Opened) -> None:
    check(scale.hover(NET_LINE), "No time: unknown input shapes", "# kernel-lsp: x=f32[")


def test_a_result_is_part_of_the_hover(scale: Opened) -> None:
    scale.knowledge.learn_runs(scale.path.parent, (run_of_scale(scale.path),))
    check(scale.hover(SCALE_LINE), "Optimized: 4x vs eager, estimated for H200, verified on PTX executor (CPU)")


def test_what_went_wrong_with_an_estimate_is_remembered_until_the_code_changes(scale: Opened) -> None:
    target = scale.analysis.target("scale")
    assert target is not None
    scale.knowledge.learn_no_estimate(scale.document.uri, "scale", NoEstimate("it raises", target.digest))
    assert scale.knowledge.why_no_estimate(scale.document.uri, target) == "it raises"
    assert scale.knowledge.why_no_estimate(scale.document.uri, replace(target, digest="another")) == ""


def test_outside_of_targets_there_is_no_hover(scale: Opened) -> None:
    assert scale.hover(0) == ""


def test_a_kernel_says_what_ptxas_says(kernel: Opened) -> None:
    kernel.learn_check(Correct(cases=()))
    check(
        kernel.hover(KERNEL_LINE),
        "20 registers, no spills, 64 B shared",
        "occupancy 100% on H200",
        "correct in 0 cases",
    )


def test_a_kernel_that_was_not_compiled_says_so(kernel: Opened) -> None:
    check(kernel.hover(KERNEL_LINE), "Not compiled yet")


def test_a_changed_kernel_s_facts_are_stale(kernel: Opened) -> None:
    kernel.learn_check(Correct(cases=()))
    kernel.edit(STORE_LINE, "    // more\n")
    check(kernel.hover(KERNEL_LINE), "stale")


def test_unsupported_is_not_called_clean(kernel: Opened) -> None:
    kernel.learn_check(Unsupported(message="an instruction"))
    check(kernel.hover(KERNEL_LINE), "could not be checked: an instruction")


# --- lenses and hints


def test_every_target_has_a_lens(scale: Opened) -> None:
    assert scale.lenses() == [(SCALE_LINE, "Optimize to CUDA"), (NET_LINE, "Optimize to CUDA")]


@pytest.mark.parametrize(
    ("text", "has_lens"),
    [
        ("def f(x, cap=30.0):\n    return cap * torch.tanh(x / cap)\n", True),
        ("def f(x):\n    return F.silu(x)\n", True),
        ("def f(x, t: float = 0.3):\n    return torch.lerp(x.relu(), x, t)\n", True),
        ("def f(n: int, t: float):\n    return torch.sin(torch.arange(n) * t)\n", False),
        ("def f(n):\n    return torch.zeros(n)\n", False),
        ("def f(path):\n    return torch.load(path)\n", False),
        ("def f(x):\n    torch.save(x, 'x.pt')\n", False),
        ("def f(model, x):\n    return torch.softmax(model(x), -1)\n", False),
        ("def f(net, x):\n    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n    return torch.exp(x)\n", False),
        ("def f(x):\n    a, b = x.chunk(2, -1)\n    return torch.cat((-b, a), -1)\n", True),
        ("def f(x):\n    half = x[..., : x.shape[-1] // 2]\n    return torch.exp(half)\n", True),
        ("def f(x):\n    n = x.shape[0]\n    return torch.arange(n)\n", False),
    ],
)
def test_a_function_without_annotations_is_a_target_where_torch_computes_its_result(text: str, has_lens: bool) -> None:
    text = f"import torch\nimport torch.nn.functional as F\n\n\n{text}"
    assert bool(analyse("python", "a.py", text).targets) == has_lens


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("def main(q, cos, sin):\n    return q * cos + turned(q) * sin\n", ["turned", "main"]),
        ("def main(q):\n    return twice(q)\n\n\ndef twice(q):\n    return turned(turned(q)) + turned(q)\n", None),
        ("def main(options):\n    return turned(options.x)\n", ["turned"]),
        ("def main(q):\n    return main(q)\n", ["turned"]),
    ],
)
def test_a_function_is_a_target_where_a_formula_of_its_file_computes_its_result(
    body: str, names: list[str] | None
) -> None:
    text = f"import torch\n\n\ndef turned(x):\n    return torch.cat((-x, x), -1)\n\n\n{body}"
    found = [target.symbol for target in analyse("python", "a.py", text).targets]
    assert found == (names or ["turned", "main", "twice"])


def test_lenses_move_with_the_text(scale: Opened) -> None:
    scale.edit(0, "\n\n")
    assert scale.lenses()[0] == (SCALE_LINE + 2, "Optimize to CUDA")


def test_a_target_with_a_result_shows_it(scale: Opened) -> None:
    scale.knowledge.learn_runs(scale.path.parent, (run_of_scale(scale.path),))
    titles = [title for line, title in scale.lenses() if line == SCALE_LINE]
    result = "4x vs eager, estimated for H200, verified on PTX executor (CPU)"
    assert titles == ["Optimize to CUDA", result, "Show kernel", "Compare", "Report"]


def test_a_recorded_target_shows_its_share_and_its_configurations(scale: Opened) -> None:
    seen = {"inputs": ("x=f32[64, 256], weight=f32[256]", "x=f32[5, 256], weight=f32[256]"), "share": 0.234}
    (scale.path.parent / ".kernel-lsp").mkdir()
    write_recording(scale.path.parent, recording_of(scale__scale=seen))
    assert scale.lenses()[0] == (SCALE_LINE, "Optimize to CUDA | 23 % of a step")
    check(scale.hover(SCALE_LINE), "**23 % of a step**", "| 9 | `x=f32[64, 256], weight=f32[256]` |", "| 8 | `x=f32[5")


def test_a_result_of_other_code_is_stale(scale: Opened) -> None:
    scale.knowledge.learn_run(scale.path.parent, run_of_scale(scale.path).model_copy(update={"digest": "another"}))
    assert any("(stale)" in title for _, title in scale.lenses())


def test_a_result_of_the_same_code_is_not_stale_however_new_the_file(scale: Opened) -> None:
    target = scale.analysis.target("scale")
    assert target is not None
    run = run_of_scale(scale.path).model_copy(update={"digest": target.digest, "started": "2020-01-01T00:00:00+00:00"})
    scale.knowledge.learn_runs(scale.path.parent, (run,))
    assert not any("(stale)" in title for _, title in scale.lenses())


def test_an_interrupted_run_can_be_resumed(scale: Opened) -> None:
    scale.knowledge.learn_runs(scale.path.parent, (run_of_scale(scale.path, "interrupted"),))
    assert any(title.startswith('Resume "scale" (started 20') for _, title in scale.lenses())


def test_a_run_of_another_file_shows_nowhere(scale: Opened) -> None:
    scale.knowledge.learn_runs(scale.path.parent, (run_of_scale(scale.path.with_name("other.py")),))
    assert len(scale.lenses()) == 2


def test_a_text_that_was_never_saved_offers_no_run() -> None:
    document = Documents("utf-16").open("untitled:Untitled-1", "python", 1, SCALE)
    assert python_lenses(document, analyse("python", "a", SCALE), Knowledge()) == []


def test_a_kernel_shows_its_facts_after_a_check(kernel: Opened) -> None:
    assert kernel.lenses() == [(0, "Check now"), (0, "Profile")]
    kernel.learn_check(BuildFailed(findings=()))
    assert kernel.lenses() == [
        (0, "Check now: does not compile"),
        (0, "Profile"),
        (KERNEL_LINE, "20 registers, no spills, 64 B shared"),
    ]


def test_a_hint_is_at_the_end_of_its_line(scale: Opened) -> None:
    scale.learn_estimate()
    (hint,) = line_hints(scale.document, scale.analysis, scale.knowledge, 0, 99)
    assert (hint.position.line, hint.position.character) == (SHIFTED_LINE, len("    shifted = x * weight + 1.0"))
    assert hint.label == "15 us est., 75%"


def test_hints_are_of_the_lines_asked_for(scale: Opened) -> None:
    scale.learn_estimate()
    assert line_hints(scale.document, scale.analysis, scale.knowledge, 0, SHIFTED_LINE - 1) == []


def test_a_line_that_was_edited_has_no_hint(scale: Opened) -> None:
    scale.learn_estimate()
    scale.document.apply([Change("y", (SHIFTED_LINE, 14), (SHIFTED_LINE, 15))], 2)
    assert line_hints(scale.document, scale.analysis, scale.knowledge, 0, 99) == []


# --- profiles and measured times


def profile_of(kernel: Opened) -> KnownProfile:
    """The store's line: half of the instructions, three in four sectors wasted, one thread in four takes part."""
    store = LineProfile(
        line=STORE_LINE + 1,
        kernel="scale",
        share=0.5,
        n_instructions=500,
        n_sectors=80,
        n_sectors_needed=20,
        threads_per_request=8,
    )
    index = LineProfile(line=KERNEL_LINE + 3, kernel="scale", share=0.5, n_instructions=500)
    launch = KernelProfile(
        kernel="scale",
        operation="scale",
        share=1.0,
        bound="memory",
        grid=(1, 1, 1),
        block=(256, 1, 1),
        lines=(index, store),
    )
    advice = Advice(title="Coalesce", evidence="it could.", gain=0.5, kernel="scale", line=STORE_LINE + 1)
    report = ProfileReport(
        kind="executor",
        file="scale.cu",
        device="H200",
        date="2026-11-21",
        shapes={"x": (64, 256)},
        time_us=5.0,
        floor_us=1.0,
        floor_basis="inputs and outputs once",
        kernels=(launch,),
        advice=(advice,),
    )
    return KnownProfile(report, kernel.document.serial)


def test_a_profiled_line_says_what_it_does(kernel: Opened) -> None:
    kernel.knowledge.learn_profile(kernel.document.uri, profile_of(kernel))
    hints = profile_hints(kernel.document, kernel.knowledge, 0, 99)
    assert [(hint.position.line, hint.label) for hint in hints] == [
        (KERNEL_LINE + 2, "50% of scale"),
        (STORE_LINE, "50% of scale, 75% of the global sectors are wasted, 8 of 32 threads take part"),
    ]
    check(
        kernel.hover(STORE_LINE), "8 of 32 threads", "Counted by the PTX executor", "2026-11-21", "Coalesce: it could."
    )


def test_an_edited_line_s_profile_is_gone_and_the_rest_stale(kernel: Opened) -> None:
    kernel.knowledge.learn_profile(kernel.document.uri, profile_of(kernel))
    kernel.document.apply([Change("x", (STORE_LINE, 0), (STORE_LINE, 0))], 2)
    (hint,) = profile_hints(kernel.document, kernel.knowledge, 0, 99)
    assert hint.label == "50% of scale (stale)"


def measured(time_us: float) -> Measurement:
    return Measurement(
        time_us=time_us,
        low_us=time_us,
        high_us=time_us,
        n_samples=100,
        gpu="NVIDIA H200",
        driver="1",
        torch_version="2",
        cache="cold",
        shapes={"x": (64, 256)},
        dtypes={"x": "f32"},
        date="2026-11-21",
    )


def comparisons() -> dict[str, Comparison]:
    ours = measured(10.0)
    return {
        "scale": Comparison(baseline_name="eager", baseline=measured(27.0), ours=ours),
        "scale vs compile": Comparison(baseline_name="compile", baseline=measured(13.0), ours=ours),
    }


def test_a_measured_result_names_each_baseline_and_the_gpu(scale: Opened) -> None:
    run = run_of_scale(scale.path).model_copy(update={"comparisons": comparisons()})
    scale.knowledge.learn_runs(scale.path.parent, (run,))
    assert (SCALE_LINE, "2.7x vs eager, 1.3x vs compile, H200, verified") in scale.lenses()
    check(scale.hover(SCALE_LINE), "**10 us** [10, 10], measured on NVIDIA H200, 2026-11-21; x f32[64, 256]")


def test_a_check_s_measured_times_are_shown_with_gpu_shapes_and_date_and_go_stale(kernel: Opened) -> None:
    kernel.learn_check(Correct(cases=()), times=comparisons())
    assert kernel.lenses()[0][1].endswith(", 2.7x vs eager, 1.3x vs compile, H200")
    check(kernel.hover(KERNEL_LINE), "measured on NVIDIA H200, 2026-11-21; x f32[64, 256]", "1.3x vs compile")
    kernel.edit(STORE_LINE, "\n")
    assert kernel.lenses()[0][1].endswith("H200 (stale)")
    check(kernel.hover(KERNEL_LINE), "f32[64, 256] *(stale")


# --- diagnostics


def test_a_rule_s_finding_has_code_documentation_and_source(scale: Opened) -> None:
    found = next(diagnostic for diagnostic in scale.diagnostics() if diagnostic.code == "KL101")
    assert found.range.start.line == CALL_LINE
    assert found.source == "kernel-lsp"
    assert found.code_description is not None
    assert found.code_description.href.endswith("docs/rules/pytorch.md#kl101")


def test_a_finding_moves_with_its_line(scale: Opened) -> None:
    scale.edit(0, "\n")
    assert CALL_LINE + 1 in {diagnostic.range.start.line for diagnostic in scale.diagnostics()}


def finding(source: str, line: int = STORE_LINE + 1, file: str | None = COMPILED_AS, **more: Any) -> Finding:
    known = {"code": "a-code", "severity": Severity.ERROR, "message": "it is wrong", "column": 16} | more
    return Finding(source=source, file=file, line=line, **known)


def test_a_check_s_findings_stand_at_their_lines(kernel: Opened) -> None:
    kernel.learn_check(BuildFailed(findings=(finding("nvrtc"),)))
    (found,) = kernel.diagnostics()
    assert (found.source, found.message) == ("nvrtc", "it is wrong")
    assert (found.range.start.line, found.range.start.character, found.range.end.character) == (STORE_LINE, 15, 18)


def test_the_plan_s_findings_are_the_rules_alone(kernel: Opened) -> None:
    kernel.learn_check(BuildFailed(findings=(finding("plan"),)))
    assert kernel.diagnostics() == []


def test_a_finding_is_said_once(kernel: Opened) -> None:
    kernel.learn_check(Crashed(message="it crashed", findings=(finding("executor"),)), finding("executor"))
    assert len(kernel.diagnostics()) == 1


def test_a_finding_in_a_header_names_the_header(kernel: Opened) -> None:
    kernel.learn_check(BuildFailed(findings=(finding("nvrtc", file="/usr/include/cuda_fp16.h", line=7),)))
    (found,) = kernel.diagnostics()
    assert found.range.start.line == 0
    assert found.message == "/usr/include/cuda_fp16.h:7: it is wrong"


def test_a_finding_of_an_edited_line_is_gone(kernel: Opened) -> None:
    kernel.learn_check(BuildFailed(findings=(finding("nvrtc"),)))
    kernel.document.apply([Change("x", (STORE_LINE, 0), (STORE_LINE, 0))], 2)
    assert kernel.diagnostics() == []


def test_what_could_not_be_checked_is_said_at_the_operation(kernel: Opened) -> None:
    kernel.learn_check(Unsupported(message="an instruction"))
    (found,) = kernel.diagnostics()
    assert (found.range.start.line, found.code) == (2, "unsupported")
    assert found.severity == types.DiagnosticSeverity.Information


def test_a_finding_under_any_bare_name_is_at_its_line(kernel: Opened) -> None:
    kernel.learn_check(Crashed(message="", findings=(finding("executor", file="scale_rows.cu", line=STORE_LINE + 1),)))
    (found,) = kernel.diagnostics()
    assert (found.range.start.line, found.source, found.message) == (STORE_LINE, "executor", "it is wrong")


def test_an_error_in_a_header_points_there_from_the_include(kernel: Opened) -> None:
    places = [RelatedPlace(message="no member", file="/usr/include/a.h", line=number) for number in (7, 9)]
    kernel.learn_check(
        BuildFailed(findings=tuple(finding("nvrtc", line=STORE_LINE + 1, related=(place,)) for place in places))
    )
    (found,) = kernel.diagnostics()
    assert found.range.start.line == STORE_LINE
    assert found.message == "it is wrong; 1 more in headers"
    related = found.related_information or []
    assert [(each.location.uri, each.location.range.start.line) for each in related] == [
        ("file:///usr/include/a.h", 6),
        ("file:///usr/include/a.h", 8),
    ]


def test_a_template_s_instantiation_is_related_or_in_the_message_and_never_both(kernel: Opened) -> None:
    message = 'bad type (detected during: instantiation of "f" at line 9)'
    place = RelatedPlace(message='instantiation of "f"', file=COMPILED_AS, line=STORE_LINE + 1)
    kernel.learn_check(BuildFailed(findings=(finding("nvrtc", message=message, related=(place,)),)))
    (found,) = kernel.diagnostics()
    assert found.message == "bad type"
    assert [each.location.uri for each in found.related_information or ()] == [kernel.document.uri]
    check_ = kernel.knowledge.check(kernel.document.uri)
    (plain,) = check_diagnostics(kernel.document, check_, shows_related=False)
    assert (plain.message, plain.related_information) == (message, None)


def test_a_text_is_compiled_under_a_bare_name() -> None:
    assert BuildRequest(text="", name_expressions=(), architecture="sm_90").file_name == COMPILED_AS


# --- actions


def test_a_target_can_be_optimized(scale: Opened) -> None:
    action = scale.actions(SCALE_LINE, "refactor")["Optimize to CUDA: scale"]
    assert action.kind == REWRITE_KIND
    assert action.command is not None
    assert action.command.arguments == [{"uri": scale.document.uri, "symbol": "scale"}]


def test_a_target_can_be_optimized_with_its_backward(scale: Opened) -> None:
    assert "Optimize to CUDA with backward: scale" in scale.actions(SHIFTED_LINE)


def test_only_the_kinds_asked_for_are_given(scale: Opened) -> None:
    assert {action.kind for action in scale.actions(CALL_LINE, REWRITE_KIND).values()} == {REWRITE_KIND}
    assert {action.kind for action in scale.actions(CALL_LINE, "quickfix").values()} == {"quickfix"}
    assert scale.actions(CALL_LINE, "source.organizeImports") == {}


def test_for_who_asks_for_quick_fixes_alone_adding_shapes_is_one(scale: Opened) -> None:
    (action,) = [a for title, a in scale.actions(NET_LINE, "quickfix").items() if title.startswith("Add shapes")]
    assert action.kind == "quickfix"
    assert [title for title in scale.actions(NET_LINE, "refactor") if title.startswith("Add shapes")]


def test_missing_shapes_can_be_added(scale: Opened) -> None:
    action = next(a for title, a in scale.actions(NET_LINE).items() if title.startswith("Add shapes"))
    lines = scale.applied(action).split("\n")
    assert lines[NET_FORWARD_LINE].startswith("    # kernel-lsp: x=f32[")
    assert lines[NET_FORWARD_LINE + 1].startswith("    def forward")
    assert analyse("python", "a.py", "\n".join(lines)).targets[1].inputs


def test_an_operator_that_was_written_for_the_user_has_neither_findings_nor_targets() -> None:
    assert analyse("python", "kernels/scale.py", OPERATOR_MARK + SCALE) == EMPTY


def test_a_function_without_arguments_is_no_target() -> None:
    text = "import torch\n\ndef main():\n    return torch.ones(3).sum().item()\n"
    assert analyse("python", "train.py", text).targets == ()


def test_a_folder_lists_no_operator_that_was_written_for_the_user(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "scale.py").write_text(f"{OPERATOR_MARK}operator 2): kernel 1, operator 2.\n{SCALE}")
    (tmp_path / "model.py").write_text(SCALE)
    assert {target["uri"] for target in scan(tmp_path)["targets"]} == {(tmp_path / "model.py").as_uri()}


def test_a_target_with_shapes_needs_none(scale: Opened) -> None:
    assert not [title for title in scale.actions(SCALE_LINE) if title.startswith("Add shapes")]


def test_a_finding_can_be_explained(scale: Opened) -> None:
    action = scale.actions(CALL_LINE)[
        "Explain this finding: KL101 " + next(f.name for f in scale.analysis.findings if f.code == "KL101")
    ]
    assert action.command is not None
    assert action.command.arguments == [{"code": "KL101"}]


def test_while_the_analysis_is_old_nothing_is_edited(scale: Opened) -> None:
    scale.edit(0, "\n")
    assert not [a for line in range(15) for a in scale.actions(line).values() if a.edit is not None]


def written_operator(opened: Opened, name: str = "scale") -> None:
    folder = opened.path.parent / "kernels"
    folder.mkdir()
    (folder / f"{name}.py").write_text(f"def use_{name}(original): ...\n")


def test_a_call_can_use_the_operator_and_come_back(scale: Opened) -> None:
    scale.knowledge.learn_runs(scale.path.parent, (run_of_scale(scale.path),))
    written_operator(scale)
    text = scale.applied(scale.actions(CALL_LINE)["Use the optimized operator here: scale"])
    check(
        text,
        "return use_scale(scale)(x, x) + x.sum().item()",
        "from kernels.scale import use_scale\n",
        "def scale(",
    )
    again = Opened(scale.path, text)
    assert again.applied(again.actions(CALL_LINE + 1)["Revert to PyTorch"]) == SCALE


def test_every_call_of_the_file_can_use_the_operator_at_once(scale: Opened) -> None:
    again = Opened(scale.path, f"{SCALE}\n\ndef twice(x):\n    return scale(x, x) * scale(x, scale(x, x))\n")
    again.knowledge.learn_runs(scale.path.parent, (run_of_scale(scale.path),))
    written_operator(again)
    text = again.applied(again.actions(SCALE_LINE)["Use the optimized operator in 4 calls of this file: scale"])
    check(
        text,
        "use_scale(scale)(x, x) * use_scale(scale)(x, use_scale(scale)(x, x))",
        "return use_scale(scale)(x, x) + x",
    )
    assert text.count("import use_scale") == 1


def test_a_module_can_use_the_operator_and_come_back(tmp_path: Path) -> None:
    text = SCALE + "\n\nnet = Net()\n"
    opened = Opened(tmp_path / "scale.py", text)
    opened.knowledge.learn_runs(tmp_path, (run_of_scale(opened.path, symbol="Net", name="net"),))
    written_operator(opened, "net")
    line = text.split("\n").index("net = Net()")
    used = opened.applied(opened.actions(line)["Use the optimized operator here: net"])
    check(used, "net = use_net(Net())\n", "from kernels.net import use_net\n")
    again = Opened(opened.path, used)
    assert again.applied(again.actions(line + 1)["Revert to PyTorch"]) == text


IN_A_CLASS = """import torch


class Net(torch.nn.Module):
    class Block(torch.nn.Module):
        # kernel-lsp: x=f32[4, 8]
        def forward(self, x):
            return torch.relu(x)

    def __init__(self):
        super().__init__()
        self.block = self.Block()

    # kernel-lsp: x=f32[4, 8]
    def forward(self, x):
        return self.block(x)
"""


def test_a_class_in_a_class_has_its_lens_and_hover_and_can_use_its_operator(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "net.py", IN_A_CLASS)
    assert opened.lenses() == [(3, "Optimize to CUDA"), (4, "Optimize to CUDA")]
    check(opened.hover(6), "**Net.Block**")
    check(opened.hover(14), "**Net**")
    assert "Optimize to CUDA: Net.Block" in opened.actions(7)
    opened.knowledge.learn_runs(tmp_path, (run_of_scale(opened.path, symbol="Net.Block", name="net_block"),))
    written_operator(opened, "net_block")
    used = opened.applied(opened.actions(11)["Use the optimized operator here: net_block"])
    check(used, "self.block = use_net_block(self.Block())\n", "from kernels.net_block import use_net_block\n")
    again = Opened(opened.path, used)
    assert again.applied(again.actions(12)["Revert to PyTorch"]) == IN_A_CLASS


def test_in_a_package_the_import_works_for_a_script_too(scale: Opened) -> None:
    check_import(scale, SCALE, "try:\n    from .kernels.scale import use_scale\nexcept ImportError:")


def test_a_file_with_relative_imports_gets_another_one(scale: Opened) -> None:
    check_import(
        scale, SCALE.replace("import torch\n", "import torch\nfrom . import other\n", 1), "from .kernels.scale"
    )


def check_import(scale: Opened, text: str, statement: str) -> None:
    """Using the operator in a package writes the statement, and reverting takes all of it back."""
    (scale.path.parent / "__init__.py").touch()
    inside = Opened(scale.path, text)
    inside.knowledge.learn_runs(scale.path.parent, (run_of_scale(scale.path),))
    written_operator(inside)
    line = CALL_LINE + text.count("\n") - SCALE.count("\n")
    used = inside.applied(inside.actions(line)["Use the optimized operator here: scale"])
    check(used, f"\n{statement}")
    again = Opened(scale.path, used)
    line += used.count("\n") - text.count("\n")
    assert again.applied(again.actions(line)["Revert to PyTorch"]) == text


def test_an_operator_that_is_not_written_is_not_offered(scale: Opened) -> None:
    scale.knowledge.learn_runs(scale.path.parent, (run_of_scale(scale.path),))
    assert not [title for title in scale.actions(CALL_LINE) if title.startswith("Use")]


def test_a_client_without_versioned_edits_gets_plain_ones(scale: Opened) -> None:
    actions = scale.actions(NET_LINE, client=MINIMAL)
    edit = next(a.edit for title, a in actions.items() if title.startswith("Add shapes"))
    assert edit is not None
    assert edit.changes is not None


def test_a_kernel_can_be_checked(kernel: Opened) -> None:
    assert list(kernel.actions(KERNEL_LINE)) == ["Check now", "Profile", "Optimize this kernel: scale"]


def test_a_kernel_can_be_measured_where_there_is_a_gpu(kernel: Opened) -> None:
    actions = CodeActions(kernel.document, kernel.known, kernel.knowledge, client_features(VSCODE), has_gpu=True)
    assert "Measure now" in [action.title for action in actions.between(KERNEL_LINE, KERNEL_LINE, [])]


def test_a_kernel_s_task_can_be_optimized_again(kernel: Opened) -> None:
    command = kernel.actions(KERNEL_LINE)["Optimize this kernel: scale"].command
    assert command is not None
    assert command.arguments == [
        {"uri": kernel.path.with_name("scale.py").as_uri(), "symbol": "scale", "kernel": kernel.path.as_uri()}
    ]


def test_a_quick_fix_leaves_what_it_says(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "scale.cu", KERNEL.replace("const float* __restrict__ x", "const float* x"))
    fixes = [a for line in range(10) for a in opened.actions(line).values() if a.edit is not None]
    assert fixes
    assert "const float* __restrict__ x" in opened.applied(fixes[0])
    assert fixes[0].diagnostics


def test_recorded_configurations_show_the_constructor_where_it_differs() -> None:
    seen = tuple(RecordedConfiguration(inputs="x=f32[8]", init=init, n_calls=2) for init in ("eps=1e-6", "eps=0.1"))
    target = RecordedTarget(share=0.5, forward_us=1, backward_us=1, n_calls=4, is_module=True, configurations=seen)
    assert "| 2 | `x=f32[8]` | `eps=0.1` |" in recorded_text(target)
    assert "eps" not in recorded_text(target.model_copy(update={"configurations": seen[:1]}))
