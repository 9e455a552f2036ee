"""Where the trials of a run are measured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mlc.settings import CompileOptions
from mlc.targets.base import Target, Tunable
from mlc.tuning.base import Elsewhere, Measurer
from mlc.tuning.measure import LocalMeasurer, MeasureOptions
from mlc.tuning.measure.split import SplitMeasurer
from mlc.tuning.measure.turns import Turns as DeviceTurns
from mlc.tuning.task import Task
from mlc.tuning.whole import Turns as WholeTurns


@dataclass(frozen=True)
class Place:
    """Where trials are measured.

    Args:
        measurer: of the tasks.
        threads: that run a kernel there.
        whole: what compares whole models there, where that is another machine that can.
        turns: on this machine, or its accelerator, otherwise.
    """

    measurer: Measurer
    threads: int
    whole: WholeTurns | None
    turns: DeviceTurns


@contextlib.contextmanager
def measuring(
    tasks: Sequence[Task],
    target: Target,
    compile_options: CompileOptions,
    options: MeasureOptions | None,
    elsewhere: Elsewhere | None,
    threads: int,
    wanted: int | None,
    rng: np.random.Generator,
) -> Iterator[Place]:
    """What measures some tasks: on this machine, on its accelerator, or on others."""
    with contextlib.ExitStack() as stack:
        if elsewhere is not None:
            remote = stack.enter_context(
                elsewhere(tasks, target, threads=wanted, compile_options=compile_options, options=options, rng=rng)
            )
            yield Place(remote, remote.threads, remote.whole, DeviceTurns(""))
            return
        hosts, own = ([t for t in tasks if (t.constants is not None) is there] for there in (False, True))
        measurers: dict[bool, LocalMeasurer] = {}
        for device, some in ((False, hosts), (True, own)):
            if some:
                bench = target.accelerator.bench() if device and isinstance(target.accelerator, Tunable) else None
                measurers[device] = stack.enter_context(
                    LocalMeasurer(
                        some, target, bench, threads=threads, compile_options=compile_options, options=options, rng=rng
                    )
                )
        places = {id(t): (device, k) for device, some in ((False, hosts), (True, own)) for k, t in enumerate(some)}
        parts = [(measurers[device], k) for device, k in (places[id(t)] for t in tasks)]
        yield Place(SplitMeasurer(parts, threads), threads, None, measurers[bool(own)].turns)
