"""Whether a board does what it is there for: a small product is measured, built or run there."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlc.errors import DocumentError, MlcError
from mlc.fields import as_number
from mlc.ir.graph import Builder as GraphBuilder
from mlc.ir.graph import Graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.pool.building import BuildJob
from mlc.pool.client import Pool
from mlc.pool.jobs import Bench, MeasureJob, Results, Sent, Told, types_of
from mlc.pool.offers import BoardInfo, Kind, Offer, building_for, resource_of
from mlc.pool.remote import RunJob, arrays_from_json
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, get_target
from mlc.tuning.measure.builder import Builder
from mlc.tuning.measure.timing import Rule
from mlc.tuning.task import Task, task_of, tasks_of
from mlc.tuning.whole import build_file

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
        seconds: of a call of the product, of building it, or of its way there and back; nothing where it failed.
        message: what it did, or what went wrong.
    """

    board: str
    target: str
    seconds: float | None = None
    message: str = ""


def try_board(pool: Pool, board: BoardInfo, offer: Offer) -> Trial:
    """Measures a product of f32 on one thread of a board, has it built, or runs it, by what the board is there for.

    Raises:
        DeviceError: the pool is gone.
    """
    try:
        if Kind.BUILD in board.kinds:
            return _built(pool, board, offer)
        if Kind.MEASURE in board.kinds:
            return _measured(pool, board, offer)
        return _ran(pool, board, offer)
    except DocumentError as error:
        return Trial(board.name, offer.target, message=f"its answer makes no sense: {error.message}")
    except MlcError as error:
        pool.boards()
        return Trial(board.name, offer.target, message=error.message)


def _measured(pool: Pool, board: BoardInfo, offer: Offer) -> Trial:
    job, flops = product_job(offer, pool.me)
    answer = pool.ask(job.parcel(), offer.resource, board.address)
    (found,) = Results.of(answer.header, 1).found
    if found.seconds is None:
        return Trial(board.name, offer.target, message=f"{found.failure}: {found.message}")
    return Trial(board.name, offer.target, found.seconds, f"{flops / found.seconds / 1e9:.2f} GFLOP/s")


def _built(pool: Pool, board: BoardInfo, offer: Offer) -> Trial:
    task, target = _product(offer)
    told = Told(offer.resource, task.document, task.margins, pool.me)
    config = task.space.default
    sent = Sent(config, 0, types_of(task, target, config))
    job = BuildJob(told, sent, _OPTIONS.opt_level, _OPTIONS.fast_math, _TIMEOUT)
    answer = pool.ask(job.parcel(), building_for(offer.resource), board.address)
    if "failure" in answer.header:
        return Trial(
            board.name, offer.target, message=f"{answer.header['failure']}: {answer.header.get('message')}"[:300]
        )
    seconds = as_number(answer.header.get("took"), "took")
    return Trial(board.name, offer.target, seconds, f"built in {1e3 * seconds:.0f} ms")


def _ran(pool: Pool, board: BoardInfo, offer: Offer) -> Trial:
    target = get_target(offer.target)
    x = np.random.default_rng(0).random((ROWS, DEPTH), np.float32)
    with tempfile.TemporaryDirectory(prefix="mlc-") as folder:
        module = build_file(_graph(), target, _OPTIONS, None, Path(folder) / "module.tar").read_bytes()
    start = time.monotonic()
    answer = pool.ask(RunJob(offer.family, module, {"a": x}, 0, 1, pool.me).parcel(), offer.family, board.address)
    seconds = time.monotonic() - start
    found = arrays_from_json(answer.header.get("outputs"), answer.parts)
    if list(found) != ["p"] or not np.allclose(found["p"], x.sum(1, keepdims=True), rtol=1e-4):
        return Trial(board.name, offer.target, message="wrong results")
    return Trial(board.name, offer.target, seconds, "runs modules")


def _graph() -> Graph:
    g = GraphBuilder("trial")
    a = g.input("a", TensorType((ROWS, DEPTH), f32))
    w = g.constant(np.ones((DEPTH, COLUMNS), np.float32), "w")
    return g.finish(list(g.add(get("matmul"), [a, w], names=["p"])))


def _product(offer: Offer) -> tuple[Task, Target]:
    """The product as a task.

    Raises:
        DocumentError: this machine takes the target for another one.
    """
    target = get_target(offer.target)
    if resource_of(target, emulated=offer.emulated) != offer.resource:
        raise DocumentError(
            f"{offer.target!r} is {resource_of(target)} here, and {offer.resource} there: name it by -mcpu"
        )
    task = tasks_of(_graph(), target, _OPTIONS, Observer())[0]
    return (task if task.constants is None else task_of(task.document, task.margins, target)), target


def product_job(offer: Offer, client: str) -> tuple[MeasureJob, int]:
    """The product as a job, and its operations.

    Raises:
        DocumentError: this machine takes the target for another one.
        MlcError: it cannot be built here.
    """
    task, target = _product(offer)
    config = task.space.default
    program = Builder(target, _OPTIONS).build(task, config)
    bench = Bench(Told(offer.resource, task.document, task.margins, client), 1, _QUICK, _TIMEOUT, 1, 0)
    sent = Sent(config, program.scratch, types_of(task, target, config))
    return MeasureJob(bench, (sent, sent), (program.data, program.data)), task.flops
