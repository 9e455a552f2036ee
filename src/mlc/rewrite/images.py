"""Which axis of a value counts the images of a batch, and what an operator does to each image, proven.

Of a tensor with a batch along ``axis``, image ``i`` is rows ``i * each`` to ``(i + 1) * each - 1`` of that axis: a
reshape that merges images with what they consist of leaves more than one row ``each``. An operator keeps images apart
if image ``i`` of its results depends on image ``i`` of its operands alone, and in the same way for every ``i``. That is
read off its tensor expressions: let an axis of ``images * each`` rows be ``each * i + t``; then every element read of a
tensor with a batch must be in its image ``i``, and ``i`` must occur nowhere else. Index forms are canonical, so this is
arithmetic on them, not a search. What has no expression, or mixes images, is refused.

Example: of ``y[r, c] = x[r // 49, c, r % 49]`` with 16 images and 784 rows, ``r`` is ``49 * i + t``; ``x`` is read at
``[i, c, t]``, so image ``i`` of ``y`` is 49 rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlc.ir import te
from mlc.ir.expr import (
    Expr,
    Load,
    index_vars,
    indices_of,
    most_occurrences,
    replace_loads,
    substitute_vars,
    text_counts,
    walk,
)
from mlc.ir.graph import RULE_ERRORS, Attrs, Node, Operator, Value
from mlc.ir.index import Var, as_index
from mlc.ir.printer import expr_text
from mlc.ir.types import TensorType
from mlc.rewrite.keys import attrs_key

MOST_TEXT = 50_000  # scalar operations, or occurrences of a variable, in the text of a stage


@dataclass(frozen=True)
class Rows:
    """Where the images of a tensor lie.

    Args:
        axis: that counts them.
        each: rows of it that are one image.
    """

    axis: int
    each: int = 1

    def resized(self, type: TensorType, images: int) -> TensorType:
        """The type of a tensor for so many images that is for others of a type.

        >>> from mlc.ir.types import f32
        >>> print(Rows(0, 49).resized(TensorType((784, 64), f32), images=2))
        f32[98,64]
        """
        shape = (*type.shape[: self.axis], self.each * images, *type.shape[self.axis + 1 :])
        return TensorType(shape, type.dtype)


Known = tuple[Rows | None, ...]


@dataclass(frozen=True)
class _Apart:
    """How an operator keeps images apart.

    Args:
        results: where their images lie.
        axes: that count the images of every stage; of those that read no batch, none.
        texts: what every stage does for an image.
    """

    results: Known
    axes: tuple[int | None, ...]
    texts: tuple[str, ...]


class Images:
    """Looks at operators; equal applications are looked at once.

    Args:
        images: in a batch.
    """

    def __init__(self, images: int) -> None:
        self.images = images
        self._memo: dict[Hashable, _Apart | None] = {}

    def __call__(self, node: Node, operands: Known) -> Known | None:
        """Where the images of a node's results lie, given those of its operands.

        Returns:
            nothing where the node does not keep images apart, or where that cannot be told.
        """
        found = self._whole(node, operands)
        return None if found is None else found.results

    def fewer(self, node: Node, operands: Known, images: int) -> tuple[Attrs, tuple[TensorType, ...]] | None:
        """The same for each of fewer images.

        Args:
            node: its operator is applied to a smaller batch,
            operands: whose images lie there.
            images: of the smaller batch.
        Returns:
            attributes, and types of the results; nothing where the operator would not do the same.
        """
        whole = self._whole(node, operands)
        if whole is None:
            return None

        def fewer(values: Sequence[Value], known: Known) -> list[TensorType]:
            pairs = zip(values, known, strict=True)
            return [v.type if rows is None else rows.resized(v.type, images) for v, rows in pairs]

        types, wanted = fewer(node.inputs, operands), fewer(node.outputs, whole.results)
        for attrs in _attributes(node.attrs, whole.results[0], wanted[0]):
            try:
                given = node.op.infer(types, attrs)
            except RULE_ERRORS:
                continue
            if [(t.shape, t.dtype) for t in given] != [(t.shape, t.dtype) for t in wanted]:
                continue
            if _look(node.op, attrs, types, operands, images, whole.axes) == whole:
                return attrs, tuple(wanted)
        return None

    def _whole(self, node: Node, operands: Known) -> _Apart | None:
        types = [v.type for v in node.inputs]
        key = node.op, tuple((t.shape, t.dtype) for t in types), attrs_key(node.attrs), operands
        if key not in self._memo:
            self._memo[key] = _look(node.op, node.attrs, types, operands, self.images)
        return self._memo[key]


def _attributes(attrs: Attrs, rows: Rows | None, wanted: TensorType) -> Iterator[Attrs]:
    """Attributes that an operator may need to give a result of a type; whether it means the same is yet to be seen."""
    yield attrs
    if "shape" in attrs:
        yield {**attrs, "shape": wanted.shape}
    if rows is not None and "end" in attrs:
        end = attrs["end"]
        yield {**attrs, "end": (*end[: rows.axis], wanted.shape[rows.axis], *end[rows.axis + 1 :])}


def _look(
    op: Operator,
    attrs: Attrs,
    types: Sequence[TensorType],
    operands: Known,
    images: int,
    axes: Sequence[int | None] | None = None,
) -> _Apart | None:
    """How an application keeps images apart, if it does; along ``axes`` of its stages, if given."""
    if op.express is None:
        return None
    tensors = [te.placeholder(t.shape, t.dtype, f"x{k}") for k, t in enumerate(types)]
    results = op.express(tensors, attrs)
    where = {id(t): rows for t, rows in zip(tensors, operands, strict=True) if rows is not None}
    stages = te.topological(results)
    if axes is not None and len(axes) != len(stages):
        return None
    found: list[int | None] = []
    texts = []
    for k, stage in enumerate(stages):
        if not all(map(_is_short, stage.bodies)):
            return None
        if not any(id(t) in where for t in stage.inputs):
            found.append(None)
            texts.append(repr(stage))
            continue
        tried = range(len(stage.axes)) if axes is None else [a for a in axes[k : k + 1] if a is not None]
        apart = next(filter(None, (_apart(stage, axis, where, images) for axis in tried)), None)
        if apart is None:
            return None
        rows, text = apart
        where.update({id(t): rows for t in stage.outputs})
        found.append(rows.axis)
        texts.append(text)
    return _Apart(tuple(where.get(id(t)) for t in results), tuple(found), tuple(texts))


def _is_short(body: Expr) -> bool:
    """Whether an expression can be written out; what is shared in it could make the text of a few nodes endless."""
    indices = [ix for e in walk(body) for ix in indices_of(e)]
    return max(sum(text_counts(body).values()), most_occurrences(indices)) <= MOST_TEXT


def _apart(stage: te.Compute, axis: int, where: Mapping[int, Rows], images: int) -> tuple[Rows, str] | None:
    """A stage's images along an axis, and its text for one of them; nothing if it mixes them along this axis."""
    extent = stage.shape[axis]
    if extent == 0 or extent % images:
        return None
    rows = Rows(axis, extent // images)
    image = Var("image", 0, images - 1)
    first = as_index(image if images > 1 else 0)
    place = first * rows.each + (Var(stage.axes[axis].name, 0, rows.each - 1) if rows.each > 1 else 0)
    bodies = []
    for body in stage.bodies:
        mixed = False

        def within_image(load: Load) -> Expr:
            nonlocal mixed
            source = where.get(id(load.source))
            if source is None:
                return load
            index = load.indices[source.axis] - first * source.each
            least, most = index.bounds()
            mixed = mixed or least < 0 or most >= source.each
            return Load(load.source, (*load.indices[: source.axis], index, *load.indices[source.axis + 1 :]))

        new = replace_loads(substitute_vars(body, {stage.axes[axis]: place}), within_image)
        if mixed or image in index_vars(new):
            return None
        bodies.append(expr_text(new))
    extents = [rows.each if d == axis else n for d, n in enumerate(stage.shape)]
    over = [(a.name, a.hi) for a in stage.reduce_axes]
    return rows, f"{extents} over {over}, {stage.combiner}: {'; '.join(bodies)}"
