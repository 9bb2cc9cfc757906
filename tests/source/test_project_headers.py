"""The headers of the user's project that a `.cu` file includes."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.source.project_headers import project_headers

FILE = '#include "common.cuh"\n#include <cstdio>\n#include <vector>\n__global__ void k() {}\n'


def project(folder: Path, **headers: str) -> Path:
    """A project with a Makefile, and its kernel in `src`."""
    for name, text in {"Makefile": "", "src/k.cu": FILE, **headers}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "src" / "k.cu"


def test_a_header_of_another_folder_is_found_with_what_it_includes(tmp_path: Path) -> None:
    texts = {"include/common.cuh": '#include "detail/math.cuh"\n', "include/detail/math.cuh": "int one();\n"}
    found = project_headers(project(tmp_path, **texts), FILE)
    assert found.files == {
        "common.cuh": tmp_path / "include" / "common.cuh",
        "detail/math.cuh": tmp_path / "include" / "detail" / "math.cuh",
    }
    assert found.folders == [tmp_path / "include"]


def test_a_path_in_the_directive_ends_at_its_folder(tmp_path: Path) -> None:
    text = '#include "lib/a.cuh"\n'
    found = project_headers(project(tmp_path, **{"third/lib/a.cuh": "", "other/a.cuh": ""}), text)
    assert found.folders == [tmp_path / "third"]


def test_one_beside_the_file_needs_no_folder_and_wins(tmp_path: Path) -> None:
    file = project(tmp_path, **{"src/common.cuh": "", "include/common.cuh": ""})
    found = project_headers(file, FILE)
    assert (found.files["common.cuh"].parent.name, found.folders) == ("src", [])


def test_of_several_the_nearest_is_meant(tmp_path: Path) -> None:
    file = project(tmp_path, **{"src/inner/common.cuh": "", "a/common.cuh": ""})
    assert project_headers(file, FILE).folders == [tmp_path / "src" / "inner"]


def test_headers_that_include_each_other_end(tmp_path: Path) -> None:
    file = project(tmp_path, **{"src/common.cuh": '#include "other.cuh"\n', "src/other.cuh": '#include "common.cuh"\n'})
    assert [*project_headers(file, FILE).files] == ["common.cuh", "other.cuh"]


def test_nothing_outside_of_the_project_is_found(tmp_path: Path) -> None:
    (tmp_path / "common.cuh").write_text("")
    inner = tmp_path / "project"
    (inner / ".git").mkdir(parents=True)
    assert project_headers(project(inner), FILE).files == {}
