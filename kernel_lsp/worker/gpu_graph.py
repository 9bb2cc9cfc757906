"""CUDA graphs that the harness captures and replays: several calls as one launch from the host.

A kernel of a few microseconds is shorter than the host needs to launch it. A graph of n calls over n sets of buffers
has the device do them back to back; what the replay wrote is looked at afterwards, as after any other call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .gpu_run import BoundRun


class GraphedRuns:
    """The calls of several `BoundRun`s, in order, as one CUDA graph. Calling it replays all of them.

    Capturing runs nothing. The runs' own buffers are what a replay reads and writes, so `outputs`, `overrun`, `poison`
    and `refill` of each run work as ever, except that a library step's results belong to the graph: they are written
    anew by each replay. Raises RuntimeError where a step cannot be captured.
    """

    def __init__(self, runs: Sequence[BoundRun]) -> None:
        self.runs = tuple(runs)
        self._graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream(self.runs[0].device)
        side.wait_stream(torch.cuda.current_stream(self.runs[0].device))
        with torch.cuda.stream(side):
            for run in self.runs:
                run()  # libraries and lazy loading have their first call outside of the capture
        torch.cuda.synchronize(self.runs[0].device)
        with torch.cuda.graph(self._graph, stream=side):
            for run in self.runs:
                run()
        self._captured = [dict(run.tensors) for run in self.runs]

    def __call__(self) -> None:
        """Replay on the current stream; returns at once."""
        for run, tensors in zip(self.runs, self._captured):
            run.tensors.update(tensors)
        self._graph.replay()
