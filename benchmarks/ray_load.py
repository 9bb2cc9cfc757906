"""Measure a Ray cluster under load and loss: ``PYTHON benchmarks/ray_load.py [--slots N ...]``.

Every slot has a GPU that sleeps, for each candidate a time of its own, so what is measured is ours and Ray's:
evaluations pass through the device, the bridge, the actors, the relays, and a confined process each. Meanwhile
processes of slots and whole nodes are killed. The result is one JSON object on stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.ray_trace import NODES_CLASS, SLOTS_CLASS, Processors, Trace, Try, run_before_others
from kernel_lsp.process.ray_cluster import RayAddress, RayCluster
from kernel_lsp.process.tree import descendants
from kernel_lsp.verify.gpu.checks import MeasuringGpu, on_one_of
from kernel_lsp.verify.gpu.gpu_device import TurnElsewhere
from kernel_lsp.verify.gpu.gpu_kernel import GpuJob, GpuReport
from kernel_lsp.verify.model.cases import StageTimes
from kernel_lsp.verify.session.start import scratch_folder
from tests.verify.devices.ray_slots import ACTOR, light_python, slots
from tests.verify.gpu.harness import NoClock, build, case

STORE_BYTES = 80 << 20
N_ELEMENTS = 1000
NODE_AFTER_S = 3.0
"""Seconds until a lost node is replaced, as an autoscaler would."""


class Load:
    """One run: evaluations, and losses at random times."""

    def __init__(self, given: argparse.Namespace, nodes: Nodes, folder: Path) -> None:
        self.given, self.nodes, self.folder, self.draw = given, nodes, folder, random.Random(given.seed)
        self.failures: list[str] = []
        self.kills = Counter[str]()
        self.trace = Trace(given.case_s)
        self.cases = [case(folder, _name(number), N_ELEMENTS) for number in range(given.evaluations)]

    async def evaluate(self, gpus: list[MeasuringGpu], number: int) -> None:
        """Evaluate one candidate and keep its result once."""
        name, given = _name(number), self.cases[number]

        async def on(gpu: MeasuringGpu) -> None:
            stages, slot = StageTimes(), gpu.device.slot
            job = GpuJob(build(name), [given], (), NoClock(), may_vary=False, rechecks=False, seed=0)
            n_replaced, started, outcome = slot.n_replaced, time.monotonic(), "given up"
            try:
                found = await gpu.device.evaluate(job, stages)
                outcome = "undisturbed" if slot.n_replaced == n_replaced else "disturbed"
                if not isinstance(found, GpuReport):
                    self.failures.append(str(found))
            except TurnElsewhere:
                outcome = "moved"
                raise
            finally:
                if outcome != "moved":
                    times = (started, time.monotonic(), stages.stages_s)
                    self.trace.tries.append(Try(number, gpus.index(gpu), *times, outcome))

        await on_one_of(gpus, on)

    async def lose(self, duration_s: float) -> None:
        """Kill slots' processes and nodes, spread over the run."""
        kinds = ["worker"] * self.given.worker_kills + ["node"] * self.given.node_kills
        self.draw.shuffle(kinds)
        for kind in kinds:
            await asyncio.sleep(duration_s / (len(kinds) + 1))
            self.trace.kills.append((time.monotonic(), kind))
            await (self._lose_worker() if kind == "worker" else self._lose_node())
            self.kills[kind] += 1

    async def _lose_worker(self) -> None:
        actors = [pid for pid in descendants(os.getpid()) if ACTOR in _words(pid)]
        os.kill(self.draw.choice(actors), signal.SIGKILL)

    async def _lose_node(self) -> None:
        await self.nodes.ask("remove")
        await asyncio.sleep(NODE_AFTER_S)
        await self.nodes.ask("add")
        self.trace.kills.append((time.monotonic(), "node replaced"))


async def run(given: argparse.Namespace) -> dict[str, Any]:
    """Run the load, and return what was seen."""
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")
    started = time.monotonic()
    async with AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(Nodes(sys.argv[1:]))
        folder = stack.enter_context(scratch_folder())
        load, address = Load(given, nodes, folder), RayAddress(nodes.address, n_slots=given.slots, wait_s=300.0)
        cluster = await stack.enter_async_context(RayCluster(address))
        python = light_python(folder, given.case_s)
        devices = await stack.enter_async_context(slots(cluster, folder, given.slots, python))
        start_s = time.monotonic() - started
        await nodes.ask("count")
        elapsed_s, cpu_s = await under_load(load, [MeasuringGpu(device, NoClock()) for device in devices])
        processors = json.loads(await nodes.ask("counted"))
        n_replaced = sum(device.slot.n_replaced for device in devices)
    if given.trace:
        Path(given.trace).write_text("".join(json.dumps(row) + "\n" for row in load.trace.rows()))
    del given.serve_nodes, given.trace
    found = summary(load, elapsed_s, cpu_s)
    return {**vars(given), "start_s": start_s, "n_replaced": n_replaced, **found, **processors}


async def under_load(load: Load, gpus: list[MeasuringGpu]) -> tuple[float, float]:
    """Evaluate everything, two candidates for each slot at a time; return wall and own processor seconds."""
    given, turns = load.given, asyncio.Semaphore(2 * load.given.slots)
    if given.undisturbed:
        before_others(load.nodes.pid)
    started, cpu_s = time.monotonic(), time.process_time()

    async def one(number: int) -> None:
        async with turns:
            await load.evaluate(gpus, number)

    watching = asyncio.create_task(load.trace.watch_the_loop())
    losing = asyncio.create_task(load.lose(given.evaluations * given.case_s / given.slots))
    await asyncio.gather(*map(one, range(given.evaluations)))
    load.trace.began, load.trace.ended = started, time.monotonic()
    watching.cancel()
    cpu_s = time.process_time() - cpu_s
    await losing
    return load.trace.ended - started, cpu_s


def before_others(nodes_pid: int) -> None:
    """Have the kernel run this process and its descendants before other work of the machine, and nodes after slots and
    the command: elsewhere they start on processors of their own. Started processes inherit the class. `Processors`
    raises slots that start later."""
    nodes = {nodes_pid, *descendants(nodes_pid)}
    slots = {pid for actor in nodes if ACTOR in _words(actor) for pid in (actor, *descendants(actor))}
    for pid in (os.getpid(), *descendants(os.getpid())):
        is_node = pid in nodes and pid not in slots
        run_before_others(pid, NODES_CLASS if is_node else SLOTS_CLASS)


def summary(load: Load, elapsed_s: float, cpu_s: float) -> dict[str, Any]:
    """Return the figures of a run."""
    given = load.given
    ideal = given.slots / statistics.fmean(map(load.trace.case_s, range(given.evaluations)))
    results = load.trace.n_results()
    return {
        "n_lost": sum(not results[number] for number in range(given.evaluations)),
        "n_twice": sum(times > 1 for times in results.values()),
        "n_failed": len(load.failures),
        "failures": load.failures[:3],
        "killed": dict(load.kills),
        "elapsed_s": elapsed_s,
        "per_s": given.evaluations / elapsed_s,
        "of_ideal": given.evaluations / elapsed_s / ideal,
        **load.trace.summary(given.slots),
        "command_cpu_ms": 1e3 * cpu_s / given.evaluations,
        "processors": os.cpu_count(),
        "load_average": os.getloadavg(),
    }


class Nodes:
    """The cluster, in a process of its own: a command shares no interpreter with Ray's nodes. Use as ``async with``."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments, self.address = arguments, ""

    async def __aenter__(self) -> Nodes:
        command = [sys.executable, __file__, *self._arguments, "--serve-nodes"]
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        self.address = await self._said()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, word: str) -> str:
        """Have a node added or removed, or processor time counted; return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(word.encode() + b"\n")
        return await self._said()

    async def _said(self) -> str:
        assert self._process.stdout is not None
        if not (line := await self._process.stdout.readline()):
            raise SystemExit("the process of Ray's nodes ended")
        return line.decode().strip()


def serve_nodes(given: argparse.Namespace) -> None:
    """Start a head without GPUs and the nodes, then add and remove nodes as stdin says."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Ray prints
    from ray.cluster_utils import Cluster

    draw = random.Random(given.seed)
    head = {"num_cpus": 0, "num_gpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    n_slots = -(-given.slots // given.nodes)
    n_processors = min(n_slots, os.cpu_count() or 1)  # a node starts as many actors at once
    node = {"num_cpus": n_processors, "num_gpus": n_slots, "object_store_memory": STORE_BYTES}
    processors = Processors(os.getppid(), is_undisturbed=given.undisturbed)
    nodes = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(given.nodes):
        nodes.add_node(**node)
    answers.write(f"{nodes.address}\n")
    for line in sys.stdin:
        answer = "done"
        match line.strip():
            case "add":
                nodes.add_node(**node)
            case "remove":
                others = [each for each in nodes.list_all_nodes() if each is not nodes.head_node]
                nodes.remove_node(draw.choice(others), False)
            case "count":
                processors.begin()
            case "counted":
                answer = json.dumps(processors.found())
        answers.write(f"{answer}\n")
    nodes.shutdown()


def _name(number: int) -> str:
    return f"affine_{number}"


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def main() -> None:
    """Read the arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name, number in {"slots": 64, "nodes": 4, "evaluations": 2000, "worker-kills": 30, "node-kills": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--case-s", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", default="", help="file for every evaluation's times, as JSON lines")
    parser.add_argument("--undisturbed", action="store_true", help="in the real-time class: needs root")
    parser.add_argument("--serve-nodes", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve_nodes:
        return serve_nodes(given)
    print(json.dumps(asyncio.run(run(given)), indent=2))


if __name__ == "__main__":
    main()
