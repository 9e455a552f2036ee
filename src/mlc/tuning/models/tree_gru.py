"""A recurrent network over the loop AST (AutoTVM §3.1 and §4, Figure 3)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import StrEnum
from types import ModuleType
from typing import Any

import numpy as np

from mlc.errors import MissingDependencyError, UsageError
from mlc.tuning.features.context import EXTENT, KIND, KINDS, NAMES, REDUCES
from mlc.tuning.features.nodes import NAME, NODE, PARENT, PRESENT
from mlc.tuning.models.objective import Objective

_LEAST = 16
# What a program's text says of a loop beside its name: how far it goes, whether it sums up, and how it runs.
_TEXT = (EXTENT, REDUCES, *range(KIND, KIND + len(KINDS)))


class Encoding(StrEnum):
    """What the network sees of a loop."""

    CONTEXT = "context"  # its context vector (Figure 3d); carries over to other operators
    NAMES = "names"  # an embedding of what it is called, and what the program's text says of it (Figure 3c)


class TreeGru:
    """A :class:`~mlc.tuning.base.CostModel` on the loop AST.

    Its features are those of :mod:`~mlc.tuning.features.nodes`, float32 ``[n, nodes, NODE + features]``; those of nodes
    that are not there are ignored. A gated recurrent unit runs from the innermost loops outwards: each loop starts from
    the sum of the states of the loops that are directly inside of it. With context vectors, the state at each loop is
    scattered softly into slots (``softmax(W^T h)_i h``), which add up over the loops; with names, the states of the
    outermost loops add up. One linear layer turns the sum into a score.

    Args:
        objective: what to learn.
        encoding: what is seen of a loop.
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
        encoding: Encoding = Encoding.CONTEXT,
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
        self._encoding = encoding
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
            features: float32 ``[n, nodes, NODE + features]``.
            speeds: ``[n]``, 0 for failures.
            groups: which task each example belongs to, ``[n]``; only examples of one task are compared.
            base: what another model predicts, ``[n]``; the network learns what it leaves (AutoTVM eq. 4).
        Raises:
            UsageError: the features have another rank.
        """
        torch = self._torch
        present = self._mask(features)
        loops = self._seen(features)[present]
        self._mean = loops.mean(axis=0)
        self._std = np.maximum(loops.std(axis=0), 1e-6)
        inputs = self._tensors(features)
        y, known, task = (
            torch.as_tensor(np.zeros(len(speeds), kind) if v is None else np.asarray(v, kind), device=self._device)
            for v, kind in ((speeds, np.float32), (base, np.float32), (groups, np.int64))
        )
        rng = np.random.default_rng(self._seed)
        # Initial weights come from PyTorch's global generator, which is given back as it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            network = _named if self._encoding is Encoding.NAMES else _scattered
            self._network = network(torch, inputs[0].shape[2], self._hidden, self._slots).to(self._device)
        optimizer = torch.optim.Adam(self._network.parameters(), lr=self._rate)
        with self._own_threads():
            for _ in range(self._epochs):
                order = rng.permutation(len(speeds))
                for begin in range(0, len(order), self._batch):
                    drawn = torch.as_tensor(order[begin : begin + self._batch], device=self._device)
                    scores = self._network(*(t[drawn] for t in inputs)) + known[drawn]
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
            raise UsageError(f"a TreeGRU learns from trees, [n, nodes, features], not from rank {features.ndim}")
        present: np.ndarray = features[:, :, PRESENT] > 0
        return present

    def _seen(self, features: np.ndarray) -> np.ndarray:
        context = features[:, :, NODE:]
        return context[:, :, _TEXT] if self._encoding is Encoding.NAMES else context

    def _tensors(self, features: np.ndarray) -> tuple[Any, ...]:
        """Standardised features, 0 for what is not there; masks, float ``[n, nodes, 1]``; parents and names."""
        present = self._mask(features)[:, :, None]
        scaled = np.where(present, (self._seen(features) - self._mean) / self._std, 0)
        whole = np.where(present, features[:, :, [PARENT, NAME]], 0).astype(np.int64)
        arrays = (scaled.astype(np.float32), present.astype(np.float32), whole[:, :, 0], whole[:, :, 1])
        return tuple(self._torch.as_tensor(a, device=self._device) for a in arrays)


def _states(cell: Any, x: Any, mask: Any, parents: Any) -> Iterator[tuple[int, Any]]:
    """The state at each loop, innermost ones first, and after them the sum of the outermost ones' as number -1.

    Args:
        cell: a gated recurrent unit.
        x: what is seen of each loop, ``[n, nodes, inputs]``.
        mask: 1 for those that are there, ``[n, nodes, 1]``.
        parents: 1 more than the place of the loop that each is inside of, 0 for none, ``[n, nodes]``.
    """
    inside = x.new_zeros(len(x), 1 + x.shape[1], cell.hidden_size)  # sums of what is inside of each loop
    for node in range(x.shape[1] - 1, -1, -1):
        state = mask[:, node] * cell(x[:, node], inside[:, node + 1])
        yield node, state
        at = parents[:, node, None, None].expand(-1, 1, state.shape[1])
        inside = inside.scatter_add(1, at, state[:, None])
    yield -1, inside[:, 0]


def _scattered(torch: ModuleType, inputs: int, hidden: int, slots: int) -> Any:
    """The network of Figure 3d."""

    class Network(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.encode = torch.nn.Linear(inputs, hidden)
            self.cell = torch.nn.GRUCell(hidden, hidden)
            self.scatter = torch.nn.Linear(hidden, slots, bias=False)
            self.score = torch.nn.Linear(slots * hidden, 1)

        def forward(self, x: Any, mask: Any, parents: Any, _names: Any) -> Any:
            memory = x.new_zeros(len(x), slots, hidden)
            for node, state in _states(self.cell, torch.relu(self.encode(x)), mask, parents):
                if node >= 0:
                    slot = torch.softmax(self.scatter(state), dim=1) * mask[:, node]
                    memory = memory + slot[:, :, None] * state[:, None, :]
            return self.score(memory.flatten(1))[:, 0]

    return Network()


def _named(torch: ModuleType, inputs: int, hidden: int, _slots: int) -> Any:
    """The network of Figure 3c."""

    class Network(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(NAMES, hidden, padding_idx=0)
            self.encode = torch.nn.Linear(inputs, hidden)
            self.cell = torch.nn.GRUCell(hidden, hidden)
            self.score = torch.nn.Linear(hidden, 1)

        def forward(self, x: Any, mask: Any, parents: Any, names: Any) -> Any:
            seen = torch.relu(self.embed(names) + self.encode(x))
            state = None
            for _, state in _states(self.cell, seen, mask, parents):  # noqa: B007  # the last one is the whole program's
                pass
            return self.score(state)[:, 0]

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
