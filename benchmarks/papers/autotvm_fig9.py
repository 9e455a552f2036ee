"""Figure 9 of the AutoTVM paper: what a cost model sees of a configuration, and how far that carries.

    python -m benchmarks.papers.autotvm_fig9

Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018, section 6.2: the knobs themselves, the loops one
after the other, and the relation between them. Searches are replayed on measured tables
(:mod:`benchmarks.papers.replay`).
"""

from __future__ import annotations

from benchmarks.papers.autotvm_fig8 import SAMPLES, SOURCES
from benchmarks.papers.curves import Figure, main
from benchmarks.papers.models import boosting, configuration, loops_alone, relation_alone, transfer
from benchmarks.papers.replay import Method

FEATURES = {
    "GBT on configuration": configuration,
    "GBT on flattened loops": loops_alone,
    "GBT on context relation": relation_alone,
}
ALONE = {label: Method("annealing", model=boosting(), features=f) for label, f in FEATURES.items()}
MOVED = {
    label: Method("annealing", model=transfer(boosting, f, SOURCES, SAMPLES), features=f)
    for label, f in FEATURES.items()
} | {"GBT without transfer": Method("annealing", model=boosting(), features=relation_alone)}

FIGURE = Figure(
    name="autotvm_fig9",
    title="Figure 9 of the AutoTVM paper: representations",
    panels={
        "C7 in domain": ("C7", ALONE),
        "C1-C6 to C7": ("C7", MOVED),
        "C1-C6 to Matmul-1024": ("Matmul-1024", MOVED),
    },
    remarks="""
Sources are 300 configurations each of C1 to C6; the paper had 30000 in all. Its fourth panel, from a graphics card to a
processor, needs a second machine. The tables are of subspaces with the register tile, a factorisation of the depth, the
orders of loops and terms, and chunks to choose. Five seeds, batches of 16.

Within a domain the relation between the loops (52 trials) and the knobs (69) do better than single loops (133). From
convolutions to another one single loops and the knobs carry best: the third trial is among the best, instead of the
52nd; the relation misleads (no search gets there). To a product of matrices it is the other way round from the paper:
there only the relation carried, here it helps little (117 trials, 131 without transfer), single loops mislead (no
search gets there), while the knobs carry (28). The reason is in the templates: those of convolutions and of products
ask for register tiles, factors and orders by the same names and mean the same, and on one core the tile decides;
whereas the relation tells of caches, and the tile is what it leaves out.
""",
    trials=160,
    seeds=5,
    good=0.995,
)

if __name__ == "__main__":
    main(FIGURE, __doc__)
