"""The canary: a correct kernel with a known answer. A GPU whose worker crashed runs it before the next candidate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.verdict import Built
from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.plan.binding import bind
from kernel_lsp.plan.parser import parse
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.verify.model.resolved_kernel import kernel_names

N_ELEMENTS = 64 * 256
CANARY_TEXT = """// kernel-lsp: 1
// op: canary(x: i32[N]) -> (out: i32[N])
// where: N % 256 == 0
// launch: canary_blocks<<<N // 256, 256>>>(x, out)

// Each block of 256 elements reversed through shared memory, three times itself plus one.
__global__ void canary_blocks(const int* __restrict__ x, int* __restrict__ out) {
    __shared__ int block[256];
    int i = blockIdx.x * 256 + threadIdx.x;
    block[threadIdx.x] = x[i];
    __syncthreads();
    out[i] = 3 * block[255 - threadIdx.x] + 1;
}
"""


@dataclass(frozen=True)
class Canary:
    """The built canary with its inputs in a file."""

    built: Built
    bound: BoundOperation
    input_path: Path

    def is_right(self, output_path: Path) -> bool:
        """Check whether the file holds the known answer."""
        try:
            return bool(np.array_equal(np.fromfile(output_path, dtype=np.int32), _answer()))
        except OSError:
            return False


async def build_canary(compiler: Compiler, architecture: str, directory: Path) -> Canary:
    """Compile the canary and write its inputs. Raises EnvironmentProblem when even this does not compile."""
    plan = parse(CANARY_TEXT).plan
    assert plan is not None
    bound = bind(plan.forward, {"x": (N_ELEMENTS,)}, {}, kernel_signatures(CANARY_TEXT))
    request = BuildRequest(
        text=CANARY_TEXT, name_expressions=tuple(sorted(kernel_names(bound))), architecture=architecture
    )
    built = await compiler.compile(request)
    if not isinstance(built, Built):
        raise EnvironmentProblem(
            f"the compiler does not build a known good kernel ({built.kind})", next_step="run `kernel-lsp doctor`"
        )
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "canary-x.bin"
    _inputs().tofile(path)
    return Canary(built, bound, path)


def _inputs() -> np.ndarray:
    return np.arange(N_ELEMENTS, dtype=np.int32)


def _answer() -> np.ndarray:
    return 3 * _inputs().reshape(-1, 256)[:, ::-1].reshape(-1) + 1
