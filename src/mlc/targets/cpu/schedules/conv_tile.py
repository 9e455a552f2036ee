"""The register tile of a blocked convolution: pixels of a row, or of all rows, by vectors of channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from mlc.targets.cpu.cost import Product, Tile, all_tiles, step_cycles
from mlc.targets.cpu.record import Cpu
from mlc.targets.groups.group import size_of

WORTH_PADDING = 0.95  # part of the cycles that tiles may take at most of which the last one is in part for nothing
MOST_PADDING = 0.25  # channel vectors of weights that may be there for nothing, as a part of those that count
# Part of the cycles that tiles may take at most of which the last one is narrower, where all others have few rows
# (measured on Zen 5 with 5 and 7 vectors of channels, 3 × 3 taps on 13 to 56 pixels: 1.02 to 1.4 times as fast as tiles
# of 5 × 5 and 3 × 7, 1.16 in the mean of 22). Of single pixels such ends are slow: with 13 vectors tiles of 9 × 3 take
# 1.5 times as long as 14 × 2.
WORTH_PARTS = 0.97
WORTH_BORDER = 0.98  # share of the terms that are inside the image, from which on to pass over others does not pay
# The same for volumes: slices of them often lie a power of two apart and push each other out of caches, which margins
# keep them from (measured on Zen 5: 64 channels of 16 × 56 × 56, of which 93 % are inside, take 1.6 times as long).
WORTH_BORDER_OF_VOLUMES = 0.9
WORTH_CHANGES = 0.95  # part of the cycles of a row that tiles of few pixels may take at most which pass over columns
# Sums of bytes are made into bytes again by six instructions, which overlap with the steps of the next tile only as far
# as the core looks ahead (measured on Zen 4: the first layers of MobileNet-v2 take a tenth less than with 28 sums).
BYTES = 4  # that an instruction sums up
SHALLOW = 32  # steps of a tile up to which that matters
FEW_SUMS = 18  # of such a tile
# The same on a wide core, which finds more of the next tile: by steps, and beyond these
# (measured on Zen 5: ResNet-50 and MobileNet-v2 take 0.98 to 0.99 times as long; 32 channels of 112 × 112 pixels, 8
# steps, 0.96 times with 8 sums in place of 12, and 128 channels, 32 steps, 1.05 times).
WIDE, WIDE_VECTOR = 8, 64  # operations a cycle, bytes of a vector
SHORT, FEW_SUMS_SHORT, FEW_SUMS_WIDE = 12, 8, 12
MOST_PIECES = 32  # of code for the tiles of a row and the taps of a row, each for the pixels that are inside


def conv_product(
    x: Sequence[int],
    y: Sequence[int],
    taps: Sequence[int],
    flat: bool,
    target: Cpu,
    *,
    whole: bool = True,
    terms: int = 1,
) -> Product:
    """A convolution as the cost model knows it: the pixels of a row (of all rows where ``flat``) by channel vectors.

    Args:
        x: shape of the input, ``[n, c, …]``.
        y: shape of the output.
        taps: extents of the window.
        flat: whether the pixels of all rows may share a tile.
        target: gives the vector width.
        whole: whether the last channels may be computed by a whole tile, or of windows by a narrower one.
        terms: input channels that an instruction sums up; the input has so many times as many.
    """
    space, window = y[2:], size_of(taps)
    columns = -(-y[1] // target.lanes)
    extent = size_of(space) if flat else space[-1]
    repeats = max(1, y[0]) * (1 if flat else size_of(space[:-1]))
    # neighbouring pixels read the same rows, so one more brings in a column of the window
    fresh = target.lane_bytes * target.rows * x[1] * window // (taps[-1] if taps else 1)
    parts = whole and window > 1 and terms == 1
    return Product(
        extent, columns, x[1] * window, repeats, row_bytes=fresh, whole=whole, parts=parts, terms=terms,
        cut=parts and x[1] > target.lanes,
    )  # fmt: skip


@dataclass(frozen=True)
class Border:
    """What of a convolution lies in the border around its input, where zeros are added.

    Args:
        inside_rows: share of the rows of windows that are inside of the input.
        width: pixels of a row.
        columns: for every tap of a row, the first pixel that it reads inside of the input for, and the one behind the
            last.
        volume: whether rows lie in slices.
    """

    inside_rows: float
    width: int
    columns: tuple[tuple[int, int], ...]
    volume: bool

    @property
    def inside(self) -> float:
        """The share of all terms that are inside."""
        of_row = sum(end - first for first, end in self.columns)
        return self.inside_rows * of_row / max(1, self.width * len(self.columns))

    def passes_columns(self, tile: Tile, target: Cpu) -> bool:
        """Whether every tile of a row gets code of its own for every tap of a row, which reads only what is inside.

        Where tiles have more vectors than pixels, weights stream from the second-level cache, and code that changes
        with every tap halts that stream (measured on Zen 5: 3 × 7 takes a sixth longer so, 5 × 4 a twentieth less). In
        rows of a few pixels so much is outside that it pays nevertheless, and no copy with a border is made (4 × 4 to
        4 × 6 in rows of 4: 1.1 to 1.35 times as fast).
        """
        if self.inside >= self.inside_rows or not self._pays(self.inside):
            return False
        few = -(-self.width // tile.rows) * len(self.columns) <= MOST_PIECES
        return few and (is_high(tile) or self._of_row(tile, target) < WORTH_CHANGES)

    @property
    def passes_rows(self) -> bool:
        """Whether rows are tested."""
        return self._pays(self.inside_rows)

    def _pays(self, inside: float) -> bool:
        return inside < (WORTH_BORDER_OF_VOLUMES if self.volume else WORTH_BORDER)

    def _of_row(self, tile: Tile, target: Cpu) -> float:
        """The share of the cycles of a row's tiles that is left where these pass over columns.

        A tile that has lost pixels may have too few sums to hide their latency, and takes as long as before.
        """
        whole, left = 0.0, 0.0
        for first in range(0, self.width, tile.rows):
            end = min(first + tile.rows, self.width)
            whole += len(self.columns) * step_cycles(end - first, tile.vectors, target)
            for low, high in self.columns:
                rows = min(end, high) - max(first, low)
                left += step_cycles(rows, tile.vectors, target) if rows > 0 else 0.0
        return left / whole

    def share(self, tile: Tile, target: Cpu) -> float:
        """The share of the cycles of all terms that a tile takes."""
        if self.passes_columns(tile, target):
            return self.inside_rows * self._of_row(tile, target)
        return self.inside_rows if self.passes_rows else 1.0


def streamed(tile: Tile, target: Cpu) -> float:
    """Bytes of weights that a tile reads a cycle."""
    return target.rows * target.vector_bytes * tile.vectors / step_cycles(tile.rows, tile.vectors, target)


def is_wide(target: Cpu) -> bool:
    """Whether a core begins so many operations a cycle, on vectors so long, that short sums overlap by themselves."""
    return target.issue >= WIDE and target.vector_bytes >= WIDE_VECTOR


@lru_cache(maxsize=1024)  # every run of the template asks several times
def conv_tile(product: Product, target: Cpu, vectors: int | None = None, border: Border | None = None) -> Tile:
    """Pixels and channel vectors of the register tile of least cost.

    Args:
        product: what is computed.
        target: gives registers, ports and caches.
        vectors: how many channel vectors there must be; unless given, a divisor of all there are, or any number where
            the last ones are computed by a whole tile or a narrower one.
        border: what may be passed over.
    """
    tiles = list(all_tiles(product, target))
    if product.terms >= BYTES and product.depth <= SHALLOW:
        on_wide = FEW_SUMS_SHORT if product.depth <= SHORT else FEW_SUMS_WIDE
        few = on_wide if is_wide(target) else FEW_SUMS
        tiles = [t for t in tiles if t.rows * t.vectors <= few]

    def cycles(tile: Tile) -> float:
        return product.cycles(tile, target) * (1.0 if border is None else border.share(tile, target))

    def best(tiles: list[Tile], cycles: Callable[[Tile], float] = cycles) -> Tile:
        # of tiles of equal cost the fewest, which read weights least often, and of as many the most even ones: 16 rows
        # are better two times 8 than 13 and 3 (measured on Zen 4: Winograd's products in 0.92 of the time, ResNet-18
        # and ResNet-50 in 0.97 and 0.98)
        return min(tiles, key=lambda t: (round(cycles(t)), -(-product.extent // t.rows), t.rows))

    def ended(tile: Tile) -> float:
        return tile_cycles(product, tile, target, border)

    if vectors is not None:
        return best([t for t in tiles if t.vectors == vectors], ended)
    # with one vector every sum needs a load of its own, which no model makes good (measured: half the speed)
    exact = [t for t in tiles if product.columns % t.vectors == 0]
    wide = [t for t in tiles if t.vectors > 1] if product.whole else []
    several = [t for t in exact if t.vectors > 1]
    chosen = best(several or exact)
    if wide and (not several or cycles(best(wide)) < WORTH_PADDING * cycles(chosen)):
        chosen = best(wide)
    if product.parts and not is_high(chosen):
        # one vector that is left by wide tiles of few rows has too few sums to hide their latency
        ends = [v for v in widths(product) if v == 2 or (v > 2 and product.columns % v != 1)]
        high = [t for t in wide if t.vectors in ends and is_high(t)]
        if high and ended(best(high, ended)) < WORTH_PARTS * ended(chosen):
            return best(high, ended)
    return chosen


def is_high(tile: Tile) -> bool:
    """Whether a tile reads fewer vectors than it has rows."""
    return tile.rows > tile.vectors


def tile_cycles(product: Product, tile: Tile, target: Cpu, border: Border | None) -> float:
    """Cycles of a convolution with a tile, of which the last one may be narrower."""
    narrow = product.parts and (is_high(tile) or (border is not None and border.passes_columns(tile, target)))
    ended = replace(product, whole=False) if narrow else product
    return ended.cycles(tile, target) * (1.0 if border is None else border.share(tile, target))


def widths(product: Product) -> list[int]:
    """How many channel vectors a register tile may have: divisors of all there are, or what adds few to these."""
    n = product.columns
    return [k for k in range(1, n + 1) if n % k == 0 or (product.whole and -n % k <= MOST_PADDING * n)]


def conv_cycles(product: Product, target: Cpu, border: Border) -> float:
    """Cycles of a convolution with its best tile."""
    return tile_cycles(product, conv_tile(product, target, border=border), target, border)
