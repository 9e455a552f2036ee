"""The training run: epochs of steps, with what is told of them, checkpoints, and a stop where numbers end."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np

from mlc.errors import CheckFailedError, UsageError
from mlc.runtime.buffers import aligned_empty
from mlc.training.checkpoint import Checkpoint
from mlc.training.data import Batches, Examples
from mlc.training.faults import first_fault, is_sound
from mlc.training.schedules import Schedule
from mlc.training.step import LOSS, NEXT, NUMBER, TARGET, TrainingStep
from mlc.training.watch import Watcher

_HINT = "try a smaller --lr, --clip-norm 1, or look at the data"
SPANS = 50  # parts of an epoch whose mean losses are kept for its curve
# names to arrays, both ways: what a compiled graph does
Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Plan:
    """How long to learn, and how fast.

    Args:
        epochs: times through all examples.
        lr: the learning rate.
        schedule: how it goes on: ``constant``, or ``cosine`` down to nothing.
        warmup: steps in which it grows from nothing.
        seed: of the order of examples.
    """

    epochs: int
    lr: float
    schedule: str = "constant"
    warmup: int = 0
    seed: int = 0

    def rates(self, steps: int) -> Schedule:
        """How fast each step learns, of so many in an epoch."""
        return Schedule(self.lr, self.schedule, self.warmup, self.epochs * steps)


@dataclass(eq=False)
class Trainer:
    """A run, and where it stands.

    Args:
        step: what is repeated.
        plan: how long, how fast.
        run: the compiled step.
        compare: the compiled losses of examples.
        classes: whether predictions are scores of classes, so that right ones can be counted.
        save: keeps a checkpoint.
        about: what makes this run this one, for checkpoints.
        last: the checkpoint that was kept last; asked only where one was, and where numbers end.
    """

    step: TrainingStep
    plan: Plan
    run: Run
    compare: Run
    classes: bool
    save: Callable[[Checkpoint], None]
    about: Mapping[str, Any]
    last: Callable[[], Checkpoint | None] = lambda: None
    tensors: dict[str, np.ndarray] = field(init=False)
    steps: int = 0
    epoch: int = 0
    batch: int = 0
    history: list[Mapping[str, Any]] = field(default_factory=list)
    _kept: bool = False

    def __post_init__(self) -> None:
        self.tensors = own(self._begun)

    @property
    def _begun(self) -> dict[str, np.ndarray]:
        return {**self.step.parameters, **self.step.statistics, **self.step.moments}

    @property
    def sound(self) -> bool:
        """Whether the run can go on: everything that began with numbers still has them."""
        return self._spoilt(self.tensors) is None

    def _spoilt(self, tensors: Mapping[str, np.ndarray]) -> str | None:
        """The first of the parameters and the like that holds what is no number, and did not from the beginning."""
        return next((n for n, a in self._begun.items() if not is_sound(tensors[n]) and is_sound(a)), None)

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """What has been learned and measured."""
        return {name: self.tensors[name] for name in (*self.step.parameters, *self.step.statistics)}

    def resume(self, checkpoint: Checkpoint) -> None:
        """Goes on from there."""
        self.tensors = own({name: checkpoint.tensors[name] for name in self.tensors})
        self.steps, self.epoch, self.batch = checkpoint.step, checkpoint.epoch, checkpoint.batch
        self.history = list(checkpoint.history)
        self._kept = True

    def checkpoint(self) -> Checkpoint:
        """Where the run stands."""
        return Checkpoint(self.about, dict(self.tensors), self.epoch, self.batch, self.steps, tuple(self.history))

    def train(self, examples: Batches, validation: Examples | None, every: float, watcher: Watcher) -> None:
        """Runs all epochs that are left.

        Args:
            every: seconds after which a checkpoint is kept within an epoch; one is kept after each epoch anyhow.
        Raises:
            CheckFailedError: the loss or what is learned is no number any more; names the operator that gave the first
                one that is none. No checkpoint is kept of that.
            OutputError: a checkpoint cannot be written.
        """
        while self.epoch < self.plan.epochs:
            begun = kept = time.monotonic()
            losses = []
            first = self.batch
            for feeds in examples.shuffled(self.plan.seed, self.epoch, first):
                with unbroken():  # what was updated in place and the count of steps go together
                    losses.append(self._one(feeds, examples))
                    self.batch += 1
                now = time.monotonic()
                rate = (self.batch - first) * examples.batch / max(now - begun, 1e-9)
                watcher.stepped(self.epoch, self.batch, examples.steps, losses[-1], rate)
                if now - kept >= every and self.batch < examples.steps:
                    self._keep(examples)
                    kept = now
            seconds = time.monotonic() - begun
            self._require_sound(examples)
            told: dict[str, Any] = {
                "epoch": self.epoch + 1,
                "loss": float(np.mean(losses)) if losses else None,
                "losses": _curve(losses),
                "seconds": seconds,
                "examples_per_second": len(losses) * examples.batch / max(seconds, 1e-9),
            }
            if validation is not None:
                told |= {f"validation_{name}": value for name, value in self.evaluate(validation).items()}
            self.history.append(told)
            self.epoch, self.batch = self.epoch + 1, 0
            self._keep(examples)
            watcher.finished(self.epoch, told)

    def _keep(self, examples: Batches) -> None:
        self._require_sound(examples)
        self.save(self.checkpoint())
        self._kept = True

    def _one(self, feeds: Mapping[str, np.ndarray], examples: Batches) -> float:
        whole = _whole(feeds, self.tensors, self.steps)
        results = self.run(whole)
        loss = float(results[LOSS].reshape(-1)[0])
        if not math.isfinite(loss):
            spoilt = self._spoilt(self.tensors)
            why = first_fault(self.step, whole) if spoilt is None else self._since(spoilt, examples)
            raise CheckFailedError(f"the loss is {loss} in step {self.steps + 1}: {why}", hint=_HINT)
        self.tensors = _next(self.tensors, results)
        self.steps += 1
        return loss

    def _require_sound(self, examples: Batches) -> None:
        spoilt = self._spoilt(self.tensors)
        if spoilt is not None:
            raise CheckFailedError(self._since(spoilt, examples), hint=_HINT)

    def _since(self, spoilt: str, examples: Batches) -> str:
        """Since when a parameter is no number, and what is to blame.

        The loss does not tell: derivatives may be none before it, and were then written over what there was. So all
        steps since the last checkpoint are done once more.
        """
        try:
            why = self._again(examples)
        except UsageError:  # of batches that are made on the way, and only once
            why = "; its batches are not made again, so nobody knows since when"
        return f"{spoilt!r} holds what is no number{why}"

    def _again(self, examples: Batches) -> str:
        state = self.last() if self._kept else None
        tensors = own(self._begun if state is None else {n: state.tensors[n] for n in self.tensors})
        steps, epoch, batch = (0, 0, 0) if state is None else (state.step, state.epoch, state.batch)
        while epoch < self.plan.epochs and steps <= self.steps:
            for feeds in examples.shuffled(self.plan.seed, epoch, batch):
                before = {name: array.copy() for name, array in tensors.items()}
                tensors = _next(tensors, self.run(_whole(feeds, tensors, steps)))
                if self._spoilt(tensors) is not None:
                    why = first_fault(self.step, _whole(feeds, before, steps))
                    return f" since step {steps + 1}: {why}"
                steps += 1
            epoch, batch = epoch + 1, 0
        return ", though the same steps once more give numbers only"

    def evaluate(self, examples: Examples) -> dict[str, float]:
        """The mean loss of examples, and the share of right classes where there are such."""
        loss, right, asked, seen = 0.0, 0, 0, 0
        for feeds, count in examples.in_order():
            results = self.compare({**feeds, **self.parameters})
            seen += count
            loss += float(results[LOSS][:count].sum(dtype=np.float64))
            if self.classes:
                labels = feeds[TARGET][:count]
                right += int((results[self.step.prediction][:count].argmax(axis=1) == labels).sum())
                asked += labels.size
        found = {"loss": loss / seen}
        return {**found, "accuracy": right / asked} if asked else found


def _whole(feeds: Mapping[str, np.ndarray], tensors: Mapping[str, np.ndarray], steps: int) -> dict[str, np.ndarray]:
    """All inputs of the step after so many."""
    return {**feeds, **tensors, NUMBER: np.array([steps + 1], np.int64)}


def _next(tensors: Mapping[str, np.ndarray], results: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What becomes of parameters and the like by a step's results."""
    return {name: results.get(name + NEXT, old) for name, old in tensors.items()}


def own(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Copies that a step may write to."""
    found = {name: aligned_empty(array.shape, array.dtype) for name, array in tensors.items()}
    for name, array in tensors.items():
        found[name][...] = array
    return found


@contextmanager
def unbroken() -> Iterator[None]:
    """Ctrl-C waits until what is inside has ended."""
    kept = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if kept is None or not callable(kept):
        yield
        return
    asked: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: asked.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, kept)
    if asked:
        kept(signal.SIGINT, asked[0])


def _curve(losses: list[float]) -> list[float]:
    """The mean losses of equal parts of an epoch."""
    return [float(np.mean(part)) for part in np.array_split(losses, min(len(losses), SPANS))] if losses else []
