"""Figure 4 of the AutoTVM paper: searches that a cost model guides against a genetic algorithm and random draws.

    python -m benchmarks.papers.autotvm_fig4

Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018, section 6.1. Searches are replayed on measured tables
(:mod:`benchmarks.papers.replay`).
"""

from __future__ import annotations

from benchmarks.papers.curves import Figure, everywhere, main
from benchmarks.papers.models import boosting, loop_tree, tree_gru
from benchmarks.papers.replay import Method

FIGURE = Figure(
    name="autotvm_fig4",
    title="Figure 4 of the AutoTVM paper: model, genetic algorithm, random",
    panels=everywhere(
        ("C2", "C6", "C9", "C12"),
        {
            "GBT": Method("annealing", model=boosting()),
            "TreeGRU": Method("annealing", model=tree_gru(), features=loop_tree),
            "GA": Method("genetic"),
            "GA x 2": Method("genetic", evaluations=2),
            "Random": Method("random"),
            "Random x 2": Method("random", evaluations=2),
        },
    ),
    remarks="""
Times are those of one core of a server's processor, not of a TITAN X, and the spaces are small enough to be
measured whole, so that 256 trials are a good part of them; the paper's have up to billions of configurations.
Hence random draws come within some percent of the best in the end, where the paper's end at half. What the paper
found holds all the same: with either model the search is over sooner than without any, and double trials do not make
up for it, but on C9, where they are there after 42 trials and models after 47. TreeGRU and boosted trees differ
little. Batches are of 64, so nothing is learnt before the 65th trial, and all searches begin at a configuration drawn
at random instead of the template's own choice.
""",
    trials=256,
    batch=64,
)

if __name__ == "__main__":
    main(FIGURE, __doc__)
