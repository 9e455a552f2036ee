"""ALT, table 2: first-level misses of a block read once, stored contiguously or as a part of longer rows.

    python -m benchmarks.papers.alt_table2

The first is what layout tiling gives a loop, the second what loop tiling alone leaves. Misses are those of a cache
model with the geometry and the prefetching that the paper supposes: a miss fetches four lines in a row.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.papers.alt import arguments, write
from benchmarks.papers.keep import described

LINE, WAYS, CACHE = 64, 4, 64 << 10  # bytes; Cortex-A76 (ARM, Cortex-A76 technical reference manual)
ROWS, WIDTHS = 512, (4, 16, 64, 256)  # of the block, in float32
PITCH = 1024  # elements between rows that are not stored together
PREDICTED = (32, 128, 512, 2048)  # the paper's, for contiguous blocks
COUNTED = ((32, 208), (96, 262), (501, 785), (2037, 2952))  # the paper's on a Cortex-A76
REMARKS = """
The paper counts on a Cortex-A76; here a model of its cache counts (64 KiB, 4 ways, lines of 64 bytes, least recently
used), since counters of the machine at hand cannot be read. The model gives the paper's own predictions for contiguous
blocks exactly. For rows apart it gives more misses than the paper's counters say where a block is narrow: their
prefetcher sees strides, too, and the model's does not. For blocks of 64 and 256 columns the model counts as many misses
with loop tiling as with layout tiling (512 and 512, 2048 and 2048), where the paper counts 785 and 2952 with loop
tiling. Rows of whole fetches lose nothing in the model, which has no real prefetcher's guesses. So this half of the
table does not show the paper's effect.
"""


def misses(lines: Iterable[int], fetched: int) -> int:
    """How many accesses miss.

    Args:
        lines: numbers of the lines that are accessed, in order.
        fetched: lines in a row that a miss brings.

    >>> misses(range(8), 1), misses(range(8), 4)
    (8, 2)
    """
    sets: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(CACHE // LINE // WAYS)]
    count = 0
    for line in lines:
        held = sets[line % len(sets)]
        if line in held:
            held.move_to_end(line)
            continue
        count += 1
        for n in range(line, line + fetched):
            place = sets[n % len(sets)]
            place[n] = None
            place.move_to_end(n)
            if len(place) > WAYS:
                place.popitem(last=False)
    return count


def block(width: int, pitch: int) -> Iterator[int]:
    """The lines of a block of rows, vector by vector of 16 bytes."""
    for row in range(ROWS):
        for at in range(0, width, 4):
            yield (row * pitch + at) * 4 // LINE


def counted_on(kept: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """The machine that has counted first what is counted now, in a line; this one where other numbers are kept."""
    before = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    return str(before["machine"]) if before.get("rows") == rows else described(machine.describe())


def main() -> None:
    """The command line."""
    given = arguments(__doc__, 0).parse_args()
    rows, table, bars = [], [], {}
    for width, predicted, (first, second) in zip(WIDTHS, PREDICTED, COUNTED, strict=True):
        found = {f"{how}, {n} fetched": misses(block(width, pitch), n)
                 for how, pitch in (("layout tiling", width), ("loop tiling", PITCH)) for n in (1, 4)}  # fmt: skip
        case = f"{ROWS} x {width}"
        rows.append({"case": case, "misses": found, "paper": {"predicted": predicted, "counted": [first, second]}})
        bars[case] = {name: float(n) for name, n in found.items()}
        table.append((case, *map(str, found.values()), str(predicted), str(first), str(second)))
    heads = ("block", *next(iter(bars.values())), "paper: predicted", "paper: layout tiling", "paper: loop tiling")
    title = "ALT, table 2: layout tiling against loop tiling"
    here = counted_on(given.out / "alt_table2.json", rows)
    write("alt_table2", given.out, title, REMARKS, heads, table, rows, bars, "first-level misses", here=here)


if __name__ == "__main__":
    main()
