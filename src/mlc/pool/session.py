"""The process in which a board measures one task for one client: what a kernel does there harms nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from mlc.errors import DeviceError, MlcError
from mlc.lower.knobs import Space
from mlc.pool.jobs import Bench, MeasureJob, Results, require_same
from mlc.pool.processes import received
from mlc.settings import CompileOptions
from mlc.targets import bench as machines
from mlc.targets.base import Emulated, Target, Tunable
from mlc.tuning.measure import LocalMeasurer, MeasureOptions
from mlc.tuning.measure.building import Built
from mlc.tuning.measure.frames import Channel
from mlc.tuning.measure.zygote import Shared


@dataclass(frozen=True, eq=False)
class Place:
    """A target that a board is there for.

    Args:
        text: its string form.
        target: the target.
        emulated: whether an emulator has the processor's place.
    """

    text: str
    target: Target
    emulated: bool = False

    def bench(self, flush: bool = False, *, device: bool = False) -> machines.Bench:
        """What candidates are run on: the processor, or the device beside it.

        Raises:
            DeviceError: this machine cannot run them, or not with caches emptied.
        """
        if device:
            if flush:
                raise DeviceError("a device has no caches to empty")
            return self._device
        if flush and self.emulated:
            raise DeviceError("an emulator has no caches to empty")
        return self.target.bench(True) if flush else self._usual

    # both are made before processes are forked, which then have them
    @cached_property
    def _usual(self) -> machines.Bench:
        if self.emulated:
            assert isinstance(self.target, Emulated)
            return self.target.emulated_bench()
        return self.target.bench()

    @cached_property
    def _device(self) -> machines.Bench:
        assert isinstance(self.target.accelerator, Tunable)
        return self.target.accelerator.bench()


@dataclass(frozen=True)
class Sessions:
    """What the zygote has in memory for them.

    Args:
        places: by number.
        cores: on which times are taken.
        memory: bytes that running a candidate may take.
    """

    places: Sequence[Place]
    cores: tuple[int, ...]
    memory: int

    def measure(self, channel: Channel, shared: Shared, args: dict[str, Any]) -> None:
        """Answers jobs, all of one bench: ``{header, sizes}`` and programs in, results or a refusal out."""
        lab: Lab | None = None
        place = self.places[args["place"]]
        while True:
            message = channel.receive()
            try:
                job = MeasureJob.of(received(message))
                lab = lab or Lab(place, job, self.cores, self.memory)
                answer: dict[str, Any] = lab.measure(job).to_json()
            except MlcError as error:
                answer = {"refused": error.message}
            channel.send(answer)


class Lab:
    """A measurer of one task.

    Args:
        place: where it is measured.
        job: the first one, which says all about the task.
        cores: on which times are taken.
        memory: bytes that running a candidate may take.
    Raises:
        MlcError: the task makes no sense here.
    """

    def __init__(self, place: Place, job: MeasureJob, cores: tuple[int, ...], memory: int) -> None:
        bench: Bench = job.bench
        self._target = place.target
        task = bench.told.task(place.target)
        # this machine's caches may suggest another one, and what was built is the client's
        self.task = replace(task, space=Space(task.space.knobs, dict(job.candidates[0].config)))
        options = MeasureOptions(
            run_timeout=bench.run_timeout, memory=memory, cores=cores, rule=bench.rule, retries=bench.retries
        )
        self._measurer = LocalMeasurer(
            [self.task],
            place.target,
            place.bench(bench.rule.flush, device=task.constants is not None),
            threads=bench.threads,
            compile_options=CompileOptions("pool", "", ""),
            options=options,
            rng=np.random.default_rng(bench.seed),
        )

    def measure(self, job: MeasureJob) -> Results:
        """Measures the candidates of a job.

        Raises:
            MlcError: a candidate is not what this program would have made of its configuration, or the device is gone.
        """
        for number, sent in enumerate(job.candidates):
            require_same(self.task, self._target, sent, f"candidates[{number}]")
        built = [
            Built(k - 1, sent.config, sent.scratch, program, 0.0)
            for k, (sent, program) in enumerate(zip(job.candidates, job.programs, strict=True))
        ]
        found = self._measurer.measure_built(0, built[0], built[1:], together=job.together)
        return Results(tuple(found), self._measurer.peak)
