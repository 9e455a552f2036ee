"""A recurrent network over the loops of a program, each described by its context (AutoTVM §4, Figure 3d)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from mlc.errors import MissingDependencyError, UsageError
from mlc.tuning.models.objective import Objective

_LEAST = 16


class TreeGru:
    """A :class:`~mlc.tuning.base.CostModel` on loops: a context-encoded TreeGRU.

    Its features are float32 ``[n, loops, 1 + features]``, outermost loops first. The first feature is a mask: 1 for a
    loop, 0 for padding, whose other features are ignored. A gated recurrent unit runs from the innermost loop outwards;
    the state at each loop is scattered softly into slots (``softmax(W^T h)_i h``), which add up over the loops, and one
    linear layer turns them into a score.

    Args:
        objective: what to learn.
        hidden: width of the states.
        slots: m, which the states are scattered into.
        epochs: passes over the examples.
        batch: examples whose pairs are compared with one another.
        rate: of learning, by Adam.
        seed: of the initial weights and the batches.
        device: a device of PyTorch's.
        threads: of training and prediction. More of them wait for one another on a machine that does something else as
            well, and then take a hundred times as long.
    """

    least = _LEAST

    def __init__(
        self,
        objective: Objective | str = Objective.RANK,
        *,
        hidden: int = 64,
        slots: int = 8,
        epochs: int = 60,
        batch: int = 128,
        rate: float = 3e-3,
        seed: int = 0,
        device: str = "cpu",
        threads: int = 1,
    ) -> None:
        self.objective = Objective.of(objective)
        self._hidden = hidden
        self._slots = slots
        self._epochs = epochs
        self._batch = batch
        self._rate = rate
        self._seed = seed
        self._device = device
        self._threads = threads
        self._torch = _pytorch()
        self._network: Any = None
        self._mean = np.zeros(0, np.float32)
        self._std = np.ones(0, np.float32)

    def fit(
        self,
        features: np.ndarray,
        speeds: np.ndarray,
        *,
        groups: np.ndarray | None = None,
        base: np.ndarray | None = None,
    ) -> None:
        """Learn afresh.

        Args:
            features: float32 ``[n, loops, 1 + features]``.
            speeds: ``[n]``, 0 for failures.
            groups: which task each example belongs to, ``[n]``; only examples of one task are compared.
            base: what another model predicts, ``[n]``; the network learns what it leaves (AutoTVM eq. 4).
        Raises:
            UsageError: the features have another rank.
        """
        torch = self._torch
        present = self._mask(features)
        loops = features[present][:, 1:]
        self._mean = loops.mean(axis=0)
        self._std = np.maximum(loops.std(axis=0), 1e-6)
        x, mask = self._tensors(features)
        y, known, task = (
            torch.as_tensor(np.zeros(len(speeds), kind) if v is None else np.asarray(v, kind), device=self._device)
            for v, kind in ((speeds, np.float32), (base, np.float32), (groups, np.int64))
        )
        rng = np.random.default_rng(self._seed)
        # Initial weights come from PyTorch's global generator, which is given back as it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            self._network = _network(torch, x.shape[2], self._hidden, self._slots).to(self._device)
        optimizer = torch.optim.Adam(self._network.parameters(), lr=self._rate)
        with self._own_threads():
            for _ in range(self._epochs):
                order = rng.permutation(len(speeds))
                for begin in range(0, len(order), self._batch):
                    drawn = torch.as_tensor(order[begin : begin + self._batch], device=self._device)
                    scores = self._network(x[drawn], mask[drawn]) + known[drawn]
                    loss = self._loss(scores, y[drawn], task[drawn])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Scores ``[n]``; 0 before any ``fit``."""
        if self._network is None or not len(features):
            return np.zeros(len(features))
        with self._own_threads(), self._torch.no_grad():
            return np.asarray(self._network(*self._tensors(features)).cpu().numpy(), np.float64)

    @contextlib.contextmanager
    def _own_threads(self) -> Iterator[None]:
        """PyTorch's number of threads is the process's, so it is given back as it was."""
        before = self._torch.get_num_threads()
        self._torch.set_num_threads(self._threads)
        try:
            yield
        finally:
            self._torch.set_num_threads(before)

    def _loss(self, scores: Any, speeds: Any, tasks: Any) -> Any:
        torch = self._torch
        if self.objective is Objective.REGRESSION:
            return torch.nn.functional.mse_loss(scores, speeds)
        sign = torch.sign(speeds[:, None] - speeds[None, :]) * (tasks[:, None] == tasks[None, :])
        losses = torch.nn.functional.softplus(-sign * (scores[:, None] - scores[None, :]))
        return (losses * sign.abs()).sum() / sign.abs().sum().clamp(min=1)

    def _mask(self, features: np.ndarray) -> np.ndarray:
        if features.ndim != 3:
            raise UsageError(f"a TreeGRU learns from loops, [n, loops, features], not from rank {features.ndim}")
        present: np.ndarray = features[:, :, 0] > 0
        return present

    def _tensors(self, features: np.ndarray) -> tuple[Any, Any]:
        """Standardised features, 0 for padding, and the mask, float ``[n, loops, 1]``."""
        present = self._mask(features)[:, :, None]
        scaled = np.where(present, (features[:, :, 1:] - self._mean) / self._std, 0)
        as_tensor = self._torch.as_tensor
        return (
            as_tensor(scaled.astype(np.float32), device=self._device),
            as_tensor(present.astype(np.float32), device=self._device),
        )


def _network(torch: ModuleType, inputs: int, hidden: int, slots: int) -> Any:
    class Network(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.encode = torch.nn.Linear(inputs, hidden)
            self.cell = torch.nn.GRUCell(hidden, hidden)
            self.scatter = torch.nn.Linear(hidden, slots, bias=False)
            self.score = torch.nn.Linear(slots * hidden, 1)

        def forward(self, x: Any, mask: Any) -> Any:
            encoded = torch.relu(self.encode(x))
            state = x.new_zeros(len(x), hidden)
            memory = x.new_zeros(len(x), slots, hidden)
            for loop in range(x.shape[1] - 1, -1, -1):
                here = mask[:, loop]
                state = here * self.cell(encoded[:, loop], state) + (1 - here) * state
                slot = torch.softmax(self.scatter(state), dim=1) * here
                memory = memory + slot[:, :, None] * state[:, None, :]
            return self.score(memory.flatten(1))[:, 0]

    return Network()


def _pytorch() -> ModuleType:
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            "PyTorch, which the TreeGRU is made of, is not installed",
            hint="pip install torch, or the cost model of boosted trees: --cost-model rank",
        ) from error
    return torch
