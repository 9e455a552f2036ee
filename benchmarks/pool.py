"""How many trials a minute a pool measures with four boards, over those with one.

    python -m benchmarks.pool [--boards 4] [--trials 64] [--seconds 0.5] [--out FILE.json]

All parties run on this machine: a scheduler, and boards that run and check every candidate and then sleep, so that each
trial takes half a second however many boards there are. What is told is the pool's own share: sending, queues, answers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlc.ir.graph import Builder, Node
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.pool.certificates import Authority, Role
from mlc.pool.measurer import PoolMeasurer
from mlc.pool.secure import Address
from mlc.pool.wish import Wish
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import BUILTIN, get_target
from mlc.targets.bench import Bench, Loaded, Program, Stand
from mlc.targets.x86.target import X86Target
from mlc.tuning.explorers import get_explorer
from mlc.tuning.features import LoopFeatures
from mlc.tuning.task import tasks_of

SECONDS = "MLC_BENCHMARK_SECONDS"
_SETS = 2  # of inputs, on each of which a candidate is run once
_OPTIONS = CompileOptions("pool", "", "")
_START = 120.0


class SleepyTarget(X86Target):
    """This processor, and every run of a candidate takes its time."""

    def bench(self, flush: bool = False) -> Any:
        return SleepyBench(super().bench(flush))


class SleepyBench:
    """Times are made up, so that nothing is measured again."""

    exact = True
    device = ""

    def __init__(self, real: Bench) -> None:
        self.require = real.require
        self._real = real

    def open(self, threads: int) -> SleepyStand:
        return SleepyStand(self._real.open(threads))


class SleepyStand:
    def __init__(self, real: Stand) -> None:
        self._real = real

    def load(self, program: Program, node: Node, constant: Sequence[bool]) -> SleepyKernel:
        return SleepyKernel(self._real.load(program, node, constant))

    def peak(self) -> float:
        return 0.0


class SleepyKernel:
    def __init__(self, real: Loaded) -> None:
        self._real = real
        self.results, self.check, self.close = real.results, real.check, real.close
        self.sample = self.cold_sample = lambda calls: 1000 * calls

    def run(self, inputs: Sequence[np.ndarray], fill: int) -> float:
        begin = time.monotonic()
        self._real.run(inputs, fill)
        time.sleep(max(0.0, float(os.environ[SECONDS]) / _SETS - (time.monotonic() - begin)))
        return 1e-6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pool", description=__doc__.splitlines()[0])
    parser.add_argument("--boards", type=int, default=4)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a trial")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--party", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    BUILTIN["x86"] = "benchmarks.pool:SleepyTarget"
    if options.party is not None:
        from mlc.cli.main import run

        sys.exit(run(options.party))
    seconds = {n: measured(n, options.trials, options.seconds) for n in (1, options.boards)}
    gain = seconds[1] / seconds[options.boards]
    for boards, took in seconds.items():
        print(f"{boards} boards: {options.trials} trials in {took:.2f} s, {options.trials / took:.2f} a second")
    print(f"{gain:.2f} times as many with {options.boards} boards")
    if options.out is not None:
        figures = {"trials": options.trials, "seconds": options.seconds, "took": seconds, "gain": gain}
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


def measured(boards: int, trials: int, seconds: float) -> float:
    """Seconds of some trials on a pool of its own."""
    g = Builder("product")
    a = g.input("a", TensorType((48, 192), f32))
    w = g.constant(np.ones((192, 256), np.float32), "w")
    target = get_target("x86")
    tasks = tasks_of(g.finish(list(g.add(get("matmul"), [a, w], names=["p"]))), target, _OPTIONS, Observer())
    space, features = tasks[0].space, LoopFeatures.of(tasks[0], target)
    assert features is not None
    rng = np.random.default_rng(0)
    proposed = get_explorer("random")(space, rng, valid=features.valid).propose(trials + boards)
    configs = [space.config(row) for row in proposed]
    with (
        running(boards, seconds) as wish,
        PoolMeasurer(wish, tasks, target, threads=1, compile_options=_OPTIONS, options=None, rng=rng) as measurer,
    ):
        measurer.measure(0, configs[:boards])  # every board has the task at hand then
        begin = time.perf_counter()
        measurer.measure(0, configs[boards:])
        return time.perf_counter() - begin


@contextlib.contextmanager
def running(boards: int, seconds: float) -> Iterator[Wish]:
    """A scheduler and boards, as long as the block lasts."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        authority = Authority(Path(folder) / "ca")
        hub, board, client = (authority.issue(role.value, role) for role in (Role.SCHEDULER, Role.BOARD, Role.CLIENT))
        with socket.create_server(("127.0.0.1", 0)) as server:
            url = f"tls://127.0.0.1:{server.getsockname()[1]}"
        names = [f"board{k}" for k in range(boards)]
        common = [sys.executable, "-m", "benchmarks.pool", "--party", "-q", "devices"]
        commands = [["scheduler", url, "--certificates", str(hub)]]
        commands += [["serve", url, "--certificates", str(board), "--name", name] for name in names]
        for command in commands:
            party = subprocess.Popen([*common, *command], env={**os.environ, SECONDS: str(seconds)})
            stack.callback(party.wait)
            stack.callback(party.send_signal, signal.SIGTERM)
        wish = Wish(Address.parse(url), client)
        await_boards(wish, boards)
        yield wish


def await_boards(wish: Wish, count: int) -> None:
    """Waits until so many boards are there, in a process of its own: who measures forks before there are threads."""
    code = """
import sys, time
from pathlib import Path
from mlc.pool.client import Pool
from mlc.pool.secure import Address
from mlc.pool.wish import Wish

with Pool(Wish(Address.parse(sys.argv[1]), Path(sys.argv[2])), wait=True) as pool:
    while len(pool.boards()) < int(sys.argv[3]):
        time.sleep(0.1)
"""
    words = [wish.address.url, str(wish.certificates), str(count)]
    subprocess.run([sys.executable, "-c", code, *words], check=True, timeout=_START)


if __name__ == "__main__":
    main()
