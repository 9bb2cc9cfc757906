"""PTX and SASS split into functions, with the source lines of their lines."""

from __future__ import annotations

import asyncio
import base64

import pytest

from kernel_lsp.core.verdict import Built
from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.process.confinement import sandbox_level
from kernel_lsp.toolchain.nvrtc.compile import compile_cuda
from kernel_lsp.toolchain.nvrtc.discovery import find_toolchain
from kernel_lsp.toolchain.tools import listing
from kernel_lsp.toolchain.tools.listing import Listing, ptx_listings, sass_listings

TEXT = """__device__ __noinline__ float square(float x) {
    return x * x;
}
__global__ void one(float* y) {
    y[threadIdx.x] = square(y[threadIdx.x]);
    printf("}");
}
__global__ void two(float* y) { y[0] = 1.0f; }
"""
SASS = """\t.section\t.text.one,"ax",@progbits
one:
\t//## File "/cuda_fp16.h", line 900 inlined at "/w/k.cu", line 3
\t//## File "/w/k.cu", line 3
        /*0000*/                   S2R R1, SR_TID.X ;
\t//## File "/cuda_fp16.h", line 12
        /*0010*/                   BRA `(.L_x_1) ;
.L_x_0:
.L_x_1:
        /*0020*/                   NOP;
"""


def built(text: str = TEXT) -> Built:
    found = asyncio.run(compile_cuda(text, toolchain=find_toolchain(), file_name="k.cu"))
    assert isinstance(found, Built)
    return found


def check(listings: tuple[Listing, ...], *sources: set[int]) -> None:
    assert [{line.source for line in listing.lines} - {None} for listing in listings] == list(sources)


def test_each_function_of_a_ptx_has_its_own_lines() -> None:
    listings = ptx_listings(built().ptx, "k.cu")
    check(listings, {1, 2}, {4, 5, 6, 7}, {8})
    assert [listing.symbol for listing in listings] == ["_Z6squaref", "_Z3onePf", "_Z3twoPf"]
    assert all(listing.lines[-1].text == "}" for listing in listings)


def test_inlined_code_belongs_to_the_line_that_calls_it_and_padding_is_left_out() -> None:
    (listing,) = sass_listings(SASS, "k.cu")
    assert [line.source for line in listing.lines] == [3, None, None]
    assert [line.text.split()[0] for line in listing.lines] == ["/*0000*/", "/*0010*/", ".L_x_1:"]


def test_a_missing_disassembler_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing.shutil, "which", lambda *_, **__: None)
    with pytest.raises(EnvironmentProblem) as raised:
        listing.find_nvdisasm()
    assert "pip install nvidia-cuda-nvdisasm" in raised.value.next_step


def test_a_cubin_is_disassembled_with_its_lines() -> None:
    try:
        program = listing.find_nvdisasm()
    except EnvironmentProblem as problem:
        pytest.skip(problem.next_step)
    text = asyncio.run(listing.disassemble(base64.b64decode(built().cubins[0]), program, sandbox_level("auto")))
    two = next(listing for listing in sass_listings(text, "k.cu") if listing.symbol == "_Z3twoPf")
    check((two,), {8})
