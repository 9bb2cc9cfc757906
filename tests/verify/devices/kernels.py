"""Kernels that do what their names say, on every device: real code for those that compile it, and a name for the GPU
that is made of Python (`tests/verify/gpu/fake_worker.py`)."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.core.verdict import Built
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.toolchain.nvrtc.discovery import find_toolchain
from kernel_lsp.verify.devices.device import DeviceCase, KernelBuild
from tests.verify.gpu.harness import LARGE, case

BODIES = {
    "affine": "if (i < n) out[i] = 2 * x[i] + 1;",
    "wrong_value": "if (i < n) out[i] = 2 * x[i] + 2;",
    "overrun": "if (i < n) out[i] = 2 * x[i] + 1; if (i == 0) out[n + 64] = 0;",
    "endless_loop": "int k = i; while (k >= 0) k = (k + 7) % 1000003; if (i < n) out[i] = k;",
}
CODE = (
    "__global__ void {name}(const float* x, float* out, int n) {{ int i = blockIdx.x * 256 + threadIdx.x; {body} }}\n"
)
_BUILT: dict[str, Built] = {}


async def build(name: str) -> KernelBuild:
    """Compile the kernel, once."""
    if name not in _BUILT:
        text = CODE.format(name=name, body=BODIES[name])
        async with Compiler(find_toolchain()) as compiler:
            built = await compiler.compile(BuildRequest(text=text, name_expressions=(name,), architecture="sm_90"))
        assert isinstance(built, Built), built
        _BUILT[name] = built
    return KernelBuild(name, _BUILT[name])


def given(folder: Path, name: str, n: int = LARGE) -> DeviceCase:
    """Return a case of n elements, which the right kernel computes as 2 x + 1."""
    return case(folder, name, n)
