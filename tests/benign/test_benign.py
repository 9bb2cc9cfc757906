"""Kernels that are unusual and right. That each passes the whole pipeline is for `make attacks`."""

from __future__ import annotations

from pathlib import Path

from tests.corpora import read_kernels

BENIGN = read_kernels(Path(__file__).parent)


def test_there_are_many_benign_kernels() -> None:
    assert len(BENIGN) >= 50


def test_every_benign_kernel_names_its_task_and_is_no_attack() -> None:
    assert [kernel.file.name for kernel in BENIGN if not kernel.task_line or kernel.strategy] == []
