"""What classic machine learning brings along: trees of decisions, counts of n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, concat, need_rank, reshape, scalar, slice_axis
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.ir.graph import Value
from mlc.ir.types import boolean, f32

# by number, of TreeEnsemble's attributes
_COMPARISONS = ("le", "lt", "ge", "gt", "eq", "ne")
_MEMBER = 6
_AVERAGE, _SUM, _MIN, _MAX = range(4)
_TRANSFORMS = ("none", "softmax", "sigmoid")


# -- n-grams --------------------------------------------------------------------------------------------------------
@converter("TfIdfVectorizer", since=9, limits="of integers; weights in the order of the results")
def tf_idf_vectorizer(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """How often each n-gram of a pool occurs in a row, its items apart by 1, 2, … and one more than may be skipped."""
    (x,) = inputs
    if "pool_int64s" not in node.attrs:
        raise UnsupportedError("n-grams of strings are not supported")
    row = need_rank(x, "X", 1, 2) == 1
    x = reshape(ctx, x, (1, *x.type.shape)) if row else x
    pools, places = _pools(node), node.attr("ngram_indexes")
    least, most, skips = (node.attr(a) for a in ("min_gram_length", "max_gram_length", "max_skip_count"))
    rows = x.type.shape[0]
    parts = []
    for n, pool in enumerate(pools, 1):
        counts = [_occurrences(ctx, x, pool, d) for d in range(1, (skips if n > 1 else 0) + 2)]
        found = [c for c in counts if c is not None] if least <= n <= most and len(pool) else []
        if found:
            parts.append(reduce(lambda a, b: ctx.add("add", [a, b]), found))
        else:
            parts.append(ctx.constant(np.zeros((rows, len(pool)), np.float32)))
    total = sum(len(pool) for pool in pools)
    if sorted(set(places)) != sorted(places) or len(places) != total or min(places, default=0) < 0:
        raise ImportModelError(f"{len(places)} places, not all different, for {total} n-grams")
    y = concat(ctx, parts, 1)
    mode, weights = node.attr("mode"), node.attr("weights")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise ImportModelError(f"mode {mode!r}: TF, IDF or TFIDF is needed")
    if mode != "TF":
        if mode == "IDF":
            y = cast(ctx, arith(ctx, "gt", y, 0.0), f32)
        if weights is not None:
            if len(weights) != total or list(places) != list(range(total)):
                raise UnsupportedError("weights for n-grams in another order than their results are not supported")
            y = ctx.add("mul", [y, ctx.constant(np.array(weights, np.float32))])
    source = np.full(max(places, default=-1) + 1, total)
    source[list(places)] = np.arange(total)
    if not np.array_equal(source, np.arange(total)):
        y = concat(ctx, [y, ctx.constant(np.zeros((rows, 1), np.float32))], 1)
        y = ctx.add("gather", [y, ctx.constant(source, np.int64)], axis=1)
    return [reshape(ctx, y, y.type.shape[1:]) if row else y]


def _pools(node: OnnxNode) -> list[np.ndarray]:
    """The n-grams of 1, 2, … items: ``[n-grams, items]``."""
    items, starts = np.array(node.attr("pool_int64s"), np.int64), list(node.attr("ngram_counts"))
    bounds = [*starts, len(items)]
    if starts[:1] != [0] or bounds != sorted(bounds):
        raise ImportModelError(f"n-grams begin at {starts} of {len(items)} items")
    parts = [items[a:b] for a, b in pairwise(bounds)]
    for n, part in enumerate(parts, 1):
        if len(part) % n:
            raise ImportModelError(f"{len(part)} items cannot be n-grams of {n}")
    return [part.reshape(-1, n) for n, part in enumerate(parts, 1)]


def _occurrences(ctx: Context, x: Value, pool: np.ndarray, distance: int) -> Value | None:
    """How often each n-gram occurs with its items at a distance, ``[rows, n-grams]``; ``None`` if no row is so long."""
    rows, length = x.type.shape
    grams, n = pool.shape
    starts = length - (n - 1) * distance
    if starts < 1 or not grams:
        return None
    same = []
    for k in range(n):
        item = reshape(ctx, slice_axis(ctx, x, 1, k * distance, k * distance + starts), (rows, starts, 1))
        same.append(ctx.add("eq", [item, ctx.constant(pool[:, k].astype(x.type.dtype.numpy))]))
    every = reduce(lambda a, b: ctx.add("and", [a, b]), same)
    return ctx.add("reduce_sum", [cast(ctx, every, f32)], axes=(1,), keepdims=False)


# -- trees ----------------------------------------------------------------------------------------------------------
class _Forest:
    """The nodes of all trees, leaves among them; a leaf leads to itself.

    Args:
        node: a ``TreeEnsemble``.
        features: columns of X.
    """

    def __init__(self, node: OnnxNode, features: int) -> None:
        self.modes = [int(m) for m in node.attr("nodes_modes")]
        self.splits = np.asarray(node.attr("nodes_splits")).tolist()
        self.features = list(node.attr("nodes_featureids"))
        self.tracks = list(node.attr("nodes_missing_value_tracks_true") or [0] * len(self.modes))
        count = len(self.modes)
        self.targets, self.weights = list(node.attr("leaf_targetids")), np.asarray(node.attr("leaf_weights")).tolist()
        self.roots = list(node.attr("tree_roots"))
        self.yes, self.no = (
            [n + count if leaf else n for n, leaf in zip(node.attr(f"nodes_{s}nodeids"), leaves, strict=False)]
            for s, leaves in ((s, node.attr(f"nodes_{s}leafs")) for s in ("true", "false"))
        )
        fields = (self.splits, self.features, self.tracks, self.yes, self.no)
        if any(len(f) != count for f in fields) or len(self.targets) != len(self.weights):
            raise ImportModelError("attributes of nodes, or of leaves, differ in length")
        self.leaves = range(count, count + len(self.targets))
        ends = count + len(self.targets)
        if not all(0 <= n < ends for n in (*self.yes, *self.no)) or not all(0 <= r < count for r in self.roots):
            raise ImportModelError("a branch leads to no node, or a tree begins at none")
        if not self.roots or not all(0 <= f < features for f in self.features):
            raise ImportModelError(f"there is no tree, or one asks for a feature beyond the {features} of X")
        self._append_leaves()
        self._spell_out_members(np.asarray(node.attr("membership_values", [])).tolist())

    def _append_leaves(self) -> None:
        for leaf in self.leaves:
            self._append(0, 0.0, 0, 0, leaf, leaf)

    def _append(self, mode: int, split: float, feature: int, tracks: int, yes: int, no: int) -> int:
        self.modes.append(mode)
        self.splits.append(split)
        self.features.append(feature)
        self.tracks.append(tracks)
        self.yes.append(yes)
        self.no.append(no)
        return len(self.modes) - 1

    def _spell_out_members(self, values: Sequence[float]) -> None:
        """A set that a value may be in becomes a chain of nodes, each of which asks for one of its members."""
        at, equal = 0, _COMPARISONS.index("eq")
        for k in [k for k, mode in enumerate(self.modes) if mode == _MEMBER]:
            end = next((n for n in range(at, len(values)) if values[n] != values[n]), None)
            if end is None:
                raise ImportModelError("membership_values has too few sets: each ends with a NaN")
            self.modes[k], self.splits[k] = _COMPARISONS.index("lt"), -np.inf  # the empty set
            last, otherwise = k, self.no[k]
            for n, member in enumerate(values[at:end]):
                if n:
                    more = self._append(equal, member, self.features[k], self.tracks[k], self.yes[k], otherwise)
                    self.no[last] = more
                    last = more
                else:
                    self.modes[k], self.splits[k] = equal, member
            at = end + 1
        if max(self.modes) >= len(_COMPARISONS):
            raise ImportModelError(f"there is no comparison {max(self.modes)}")

    def depth(self) -> int:
        """Comparisons from a root to the furthest leaf.

        Raises:
            ImportModelError: a branch leads back to where it came from.
        """
        leaves, level = set(self.leaves), set(self.roots)
        for depth in range(len(self.modes) + 1):
            level -= leaves
            if not level:
                return depth
            level = {n for k in level for n in (self.yes[k], self.no[k])}
        raise ImportModelError("a branch of a tree leads back to where it came from")


@converter("TreeEnsemble", domain="ai.onnx.ml", since=5, limits="no SOFTMAX_ZERO, no PROBIT")
def tree_ensemble(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """All trees at once, a comparison of each in a step; who is at a leaf stays there."""
    (x,) = inputs
    need_rank(x, "X", 2, 2)
    aggregate, transform = node.attr("aggregate_function", _SUM), node.attr("post_transform", 0)
    if not 0 <= transform < len(_TRANSFORMS):
        raise UnsupportedError(f"post_transform {transform} is not supported")
    if not _AVERAGE <= aggregate <= _MAX:
        raise ImportModelError(f"there is no aggregate_function {aggregate}")
    rows, features = x.type.shape
    forest, dtype = _Forest(node, features), x.type.dtype
    trees, targets = len(forest.roots), node.attr("n_targets")
    if targets is None or not all(0 <= t < targets for t in forest.targets):
        raise ImportModelError(f"a leaf has a target beyond the {targets} there are")

    def table(values: Sequence[Any], kind: np.dtype | type = np.int64) -> Value:
        return ctx.constant(np.array(values, kind))

    def of(values: Value, at: Value) -> Value:
        return ctx.add("gather", [values, at], axis=0)

    column, threshold = table(forest.features), table(forest.splits, dtype.numpy)
    mode, tracks, yes, no = table(forest.modes), table(forest.tracks, np.bool_), table(forest.yes), table(forest.no)
    modes = sorted({m for k, m in enumerate(forest.modes) if k not in forest.leaves})
    at = ctx.add("broadcast_to", [table([forest.roots])], shape=(rows, trees))
    for _ in range(forest.depth()):
        value, split = ctx.add("gather_elements", [x, of(column, at)], axis=1), of(threshold, at)
        holds = ctx.add(_COMPARISONS[modes[0]], [value, split])
        for other in modes[1:]:
            own = arith(ctx, "eq", of(mode, at), other)
            holds = ctx.add("where", [own, ctx.add(_COMPARISONS[other], [value, split]), holds])
        if any(forest.tracks):
            holds = ctx.add("or", [holds, ctx.add("and", [ctx.add("isnan", [value]), of(tracks, at)])])
        at = ctx.add("where", [holds, of(yes, at), of(no, at)])
    leaf = arith(ctx, "sub", at, forest.leaves.start)
    weight = reshape(ctx, of(table(forest.weights, dtype.numpy), leaf), (rows, trees, 1))
    target = reshape(ctx, of(table(forest.targets), leaf), (rows, trees, 1))
    own = ctx.add("eq", [target, table(range(targets))])
    y = _aggregated(ctx, weight, own, aggregate)
    if aggregate == _AVERAGE:
        y = arith(ctx, "div", y, float(trees))
    if transform:
        y = ctx.add(_TRANSFORMS[transform], [y], **({"axis": 1} if transform == 1 else {}))
    return [y]


def _aggregated(ctx: Context, weight: Value, own: Value, aggregate: int) -> Value:
    """Weights ``[rows, trees, 1]`` over the trees whose leaf has a target, ``[rows, targets]``; 0 for who has none."""
    dtype = weight.type.dtype
    if aggregate in (_AVERAGE, _SUM):
        terms = ctx.add("where", [own, weight, scalar(ctx, 0.0, dtype)])
        return ctx.add("reduce_sum", [terms], axes=(1,), keepdims=False)
    op, away = ("reduce_min", np.inf) if aggregate == _MIN else ("reduce_max", -np.inf)
    best = ctx.add(op, [ctx.add("where", [own, weight, scalar(ctx, away, dtype)])], axes=(1,), keepdims=False)
    some = ctx.add("reduce_max", [cast(ctx, own, f32)], axes=(1,), keepdims=False)
    return ctx.add("where", [cast(ctx, some, boolean), best, scalar(ctx, 0.0, dtype)])
