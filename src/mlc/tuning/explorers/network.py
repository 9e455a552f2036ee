"""A small neural network in numpy, for actors and critics."""

from __future__ import annotations

import numpy as np


class Network:
    """One hidden layer of tanh and linear outputs, trained by Adam.

    Args:
        inputs: of each example.
        hidden: units.
        rate: of learning.
        rng: draws the initial weights.
        outputs: of each example.
    """

    def __init__(self, inputs: int, hidden: int, rate: float, rng: np.random.Generator, outputs: int = 1) -> None:
        self._weights = [
            rng.normal(0, 1 / np.sqrt(max(inputs, 1)), (inputs, hidden)),
            np.zeros(hidden),
            rng.normal(0, 0.1 / np.sqrt(hidden), (hidden, outputs)),
            np.zeros(outputs),
        ]
        self._rate = rate
        self._steps = 0
        self._means = [np.zeros_like(w) for w in self._weights]
        self._squares = [np.zeros_like(w) for w in self._weights]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Outputs, ``[n, outputs]``, for inputs ``[n, inputs]``."""
        w, b, v, c = self._weights
        found: np.ndarray = np.tanh(x @ w + b) @ v + c
        return found

    def gradients(self, x: np.ndarray, outer: np.ndarray) -> list[np.ndarray]:
        """Of a loss whose derivatives by the outputs are ``outer``, ``[n, outputs]``; one array a weight."""
        w, b, v, _ = self._weights
        hidden = np.tanh(x @ w + b)
        inner = outer @ v.T * (1 - hidden**2)
        return [x.T @ inner, inner.sum(axis=0), hidden.T @ outer, outer.sum(axis=0)]

    def step(self, x: np.ndarray, outer: np.ndarray) -> None:
        """One step of Adam (Kingma and Ba 2015, its default decay rates) down these gradients."""
        self._steps += 1
        for weight, gradient, mean, square in zip(
            self._weights, self.gradients(x, outer), self._means, self._squares, strict=True
        ):
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient**2 - square)
            unbiased = mean / (1 - 0.9**self._steps)
            weight -= self._rate * unbiased / (np.sqrt(square / (1 - 0.999**self._steps)) + 1e-8)
