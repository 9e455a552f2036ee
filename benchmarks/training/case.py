"""One case in a process of its own: ``python -m benchmarks.training.case FOLDER KIND NETWORK BATCH THREADS``.

Prints a line of JSON. With ``--prepare`` everything is compiled, called once and kept in the folder, and nothing timed.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from benchmarks.training.engines import Call

ROUNDS = 7
SECONDS = 0.25  # of an engine in a round, at least a call
LONGEST = 20.0  # seconds for all rounds together, but three rounds are made
CLOSE = 1e-3  # losses, relative


def main(arguments: Sequence[str]) -> None:
    """Measures what the arguments say."""
    prepare = "--prepare" in arguments
    folder, kind, name, batch, threads = (a for a in arguments if a != "--prepare")
    place = Path(folder).absolute()
    # code of PyTorch's compiler says for how many threads it is
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(place / f"inductor-{threads}"))
    print(json.dumps(measured(place, kind, name, int(batch), int(threads), prepare=prepare)))


def measured(folder: Path, kind: str, name: str, batch: int, threads: int, *, prepare: bool = False) -> dict[str, Any]:
    """Milliseconds of a call by engine, first losses and whether they agree; what failed, by engine."""
    import torch

    from benchmarks.training.engines import MAKERS
    from benchmarks.training.networks import network

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    result: dict[str, Any] = {"losses": {}, "failures": {}}
    calls: dict[str, Call] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = folder / f"{kind}-{name}-{batch}-{threads}.tar"
        for engine, make in MAKERS[kind](network(name, batch), threads, package).items():
            try:
                call = make()
                result["losses"][engine] = call()
                calls[engine] = call
            except Exception as error:  # an engine that cannot do a network is told, not hidden
                result["failures"][engine] = f"{type(error).__name__}: {error}"[:300]
        losses = list(result["losses"].values())
        result["agrees"] = bool(np.allclose(losses, losses[0], rtol=CLOSE))
        if not prepare:
            result["times"], result["rounds"] = times_of(calls)
    return result


def times_of(calls: Mapping[str, Call]) -> tuple[dict[str, float], int]:
    """Median milliseconds of a call by engine, taken in turns, and in how many rounds."""
    taken: dict[str, list[float]] = {engine: [] for engine in calls}
    for call in calls.values():
        begin = time.perf_counter()
        for _ in range(3):
            call()
            if time.perf_counter() - begin > 1.0:
                break
    begin, rounds = time.perf_counter(), 0
    while rounds < 3 or (rounds < ROUNDS and time.perf_counter() - begin < LONGEST):
        rounds += 1
        for engine, call in calls.items():
            end = time.perf_counter() + SECONDS
            while True:
                start = time.perf_counter()
                call()
                now = time.perf_counter()
                taken[engine].append(now - start)
                if now >= end:
                    break
    return {engine: 1e3 * statistics.median(seconds) for engine, seconds in taken.items()}, rounds


if __name__ == "__main__":
    main(sys.argv[1:])
