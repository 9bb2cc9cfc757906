"""Nsight Compute's pages as an H200 printed them (2025.3.1, `tests/verify/profiles/slow_transpose.cu`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.toolchain.tools.ncu import collect_command, parse_raw, parse_source

RECORDED = Path(__file__).parent.parent / "verify" / "profiles" / "recorded"
RAW = (RECORDED / "ncu_raw.csv").read_text()
SOURCE = (RECORDED / "ncu_source.csv").read_text()


def test_every_launch_is_read_in_order() -> None:
    launches = parse_raw(RAW)
    assert [launch.name for launch in launches] == [
        "void scale<256>(const float *, float *, int)",
        "transpose_tiles(const float *, float *, int, int)",
    ]
    assert [(launch.grid, launch.block) for launch in launches] == [
        ((16384, 1, 1), (256, 1, 1)),
        ((32, 128, 1), (32, 8, 1)),
    ]
    assert {launch.gpu for launch in launches} == {"NVIDIA H200"}


def test_units_become_microseconds_and_bytes() -> None:
    scale = parse_raw(RAW)[0]
    assert 90 < scale.metric("gpu__time_duration.sum") < 97
    assert 29e6 < scale.metric("dram__bytes_read.sum") < 30e6
    in_ns = RAW.replace('"us"', '"ns"').replace('"Mbyte"', '"Kbyte"')
    assert parse_raw(in_ns)[0].metric("gpu__time_duration.sum") == pytest.approx(
        scale.metric("gpu__time_duration.sum") / 1000
    )
    assert parse_raw(in_ns)[0].metric("dram__bytes_read.sum") == pytest.approx(
        scale.metric("dram__bytes_read.sum") / 1000
    )


def test_stalls_are_shares_with_the_largest_first() -> None:
    stalls = parse_raw(RAW)[1].stalls
    assert next(iter(stalls)) == "mio_throttle"
    assert sum(stalls.values()) == pytest.approx(1.0)
    assert list(stalls.values()) == sorted(stalls.values(), reverse=True)


def test_a_metric_that_is_no_number_or_was_not_collected_is_zero() -> None:
    launch = parse_raw(RAW)[0]
    assert launch.metric("launch__func_cache_config") == 0
    assert launch.metric("derived_tempMetric4") == 0
    assert launch.metric("no_such_metric") == 0


def test_lines_have_their_sectors_and_wavefronts() -> None:
    scale, transpose = parse_source(SOURCE)
    by_line = {line.line: line for line in scale.lines}
    assert (by_line[20].n_sectors, by_line[20].n_sectors_needed) == (4194304, 524288)
    assert by_line[21].stalls["long_sb"] > by_line[20].stalls.get("long_sb", 0)
    by_line = {line.line: line for line in transpose.lines}
    assert (by_line[31].n_wavefronts, by_line[31].n_wavefronts_needed) == (4194304, 131072)
    assert by_line[29].n_wavefronts == by_line[29].n_wavefronts_needed


def test_rows_of_machine_code_are_not_added_to_their_lines() -> None:
    scale = parse_source(SOURCE)[0]
    assert [line.line for line in scale.lines] == [14, 17, 18, 19, 20, 21, 22]
    assert {line.file for line in scale.lines} == {"/slow_transpose.cu"}


def test_counts_match_the_counters_of_the_whole_kernel() -> None:
    """The source page's sectors of loads and stores are what ``l1tex__t_sectors`` counted."""
    launch, source = parse_raw(RAW)[0], parse_source(SOURCE)[0]
    loads = next(line.n_sectors for line in source.lines if line.line == 20)
    assert loads == launch.metric("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum")


@pytest.mark.parametrize("text", ["", "==ERROR== no kernels were profiled\n", '"ID","Process ID"\n', "a,b\n1,2\n"])
def test_a_text_that_is_no_page_gives_nothing(text: str) -> None:
    assert parse_raw(text) == ()
    assert parse_source(text) == ()


def test_warnings_before_the_page_are_passed_over() -> None:
    assert parse_raw("==WARNING== Note: Running with unmodified GPU clocks.\n" + RAW) == parse_raw(RAW)


def test_clocks_are_left_alone_and_all_kernels_are_profiled() -> None:
    command = [str(part) for part in collect_command(Path("ncu"), Path("r.ncu-rep"), ["program", "request.json"])]
    assert command[command.index("--clock-control") + 1] == "none"
    assert "--launch-count" not in command
    assert command[-2:] == ["program", "request.json"]
