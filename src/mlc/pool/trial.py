"""Whether a board does what it is there for: a small product is built here, and checked and timed there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlc.errors import DocumentError, MlcError
from mlc.ir.graph import Builder as GraphBuilder
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.pool.client import Pool
from mlc.pool.jobs import Bench, MeasureJob, Results, Sent, types_of
from mlc.pool.offers import BoardInfo, Offer, resource_of
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.tuning.measure.builder import Builder
from mlc.tuning.measure.timing import Rule
from mlc.tuning.task import candidate, tasks_of

ROWS, COLUMNS, DEPTH = 48, 256, 192
_OPTIONS = CompileOptions("trial", "", "")
_QUICK = Rule(sample_seconds=0.002, budget=0.1)
_TIMEOUT = 30.0


@dataclass(frozen=True)
class Trial:
    """What came of trying a board.

    Args:
        board: its name.
        target: that was tried.
        seconds: of a call of the product; nothing where it failed.
        speed: 10^9 operations a second.
        message: what went wrong.
    """

    board: str
    target: str
    seconds: float | None
    speed: float
    message: str


def try_board(pool: Pool, board: BoardInfo, offer: Offer) -> Trial:
    """Measures a product of f32 on one thread of a board.

    Raises:
        DeviceError: the pool is gone.
    """
    try:
        job, flops = product_job(offer, pool.me)
        answer = pool.ask(job.parcel(), offer.resource, board.address)
        (found,) = Results.of(answer.header, 1).found
    except DocumentError as error:
        return Trial(board.name, offer.target, None, 0.0, f"its answer makes no sense: {error.message}")
    except MlcError as error:
        pool.boards()
        return Trial(board.name, offer.target, None, 0.0, error.message)
    if found.seconds is None:
        return Trial(board.name, offer.target, None, 0.0, f"{found.failure}: {found.message}")
    return Trial(board.name, offer.target, found.seconds, flops / found.seconds / 1e9, "")


def product_job(offer: Offer, client: str) -> tuple[MeasureJob, int]:
    """The product as a job, and its operations.

    Raises:
        DocumentError: this machine takes the target for another one.
        MlcError: it cannot be built here.
    """
    target = get_target(offer.target)
    if resource_of(target) != offer.resource:
        raise DocumentError(
            f"{offer.target!r} is {resource_of(target)} here, and {offer.resource} there: name it by -mcpu"
        )
    g = GraphBuilder("trial")
    a = g.input("a", TensorType((ROWS, DEPTH), f32))
    w = g.constant(np.ones((DEPTH, COLUMNS), np.float32), "w")
    (p,) = g.add(get("matmul"), [a, w], names=["p"])
    task = tasks_of(g.finish([p]), target, _OPTIONS, Observer())[0]
    config = task.space.default
    program = Builder(target, _OPTIONS).build(task, config)
    bench = Bench(offer.resource, task.document, task.margins, 1, _QUICK, _TIMEOUT, 1, 0, client)
    sent = Sent(config, program.scratch, types_of(candidate(task, target, config)))
    return MeasureJob(bench, (sent, sent), (program.data, program.data)), task.flops
