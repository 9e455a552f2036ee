"""Figures 3 to 5 and Tables 1 to 3 of the OpEvo paper: five searches on products of matrices and convolutions.

    python -m benchmarks.papers.opevo_fig3

Gao et al., "OpEvo: An Evolutionary Method for Tensor Operator Optimization", AAAI 2021, section 5 and appendix C.
Searches are replayed on measured tables (:mod:`benchmarks.papers.replay`).
"""

from __future__ import annotations

from benchmarks.papers.curves import Figure, everywhere, main
from benchmarks.papers.replay import Method

FIGURE = Figure(
    name="opevo_fig3",
    title="Figures 3 to 5 and Tables 1 to 3 of the OpEvo paper",
    panels=everywhere(
        ("MM1", "MM2", "MM3", "BMM1", "BMM2", "BMM3", "C2", "C12"),
        {
            "Random": Method("random"),
            "G-BFS": Method("gbfs"),
            "N-A2C": Method("na2c"),
            "AutoTVM": Method("annealing"),
            "OpEvo": Method("opevo"),
        },
    ),
    remarks="""
All spaces are parts of those that `mlc tune` searches by itself: register tiles, a factorisation of the depth that is
summed up at a time, the order of the loops, and how many tiles go together; of the convolutions also the order of
terms, chunks of channels, and whether pixels are one axis. The products are scaled down, MM1 to MM3 to an eighth of the
edges, BMM1 to BMM3 to half of the edges and a batch of 24; the convolutions are C2 and C12 of ResNet-18, not those of
AlexNet.

Many of these kernels are bound by the arithmetic units under many orders and factors: 5 to 17 % of the configurations
are within 5 % of the best, but for C12's 2 %, so that random draws find one in 1 to 25 trials, nearly as soon as any
search. Hence trials count until 99 % of the best.

In the paper OpEvo is best in most cases and AutoTVM last. Here AutoTVM needs 25 trials, G-BFS and OpEvo 39, N-A2C 50
and random draws 62 (geometric means). On C2 OpEvo is the first (27 trials, AutoTVM 45, random draws 71). It is ahead of
G-BFS after 100 trials (99.7 % against 99.3 % of the best), on C12 by three percent, and ahead of N-A2C, as in the
paper; on MM1 and MM2 it is no faster than random draws. Spaces of a thousand to three thousand are explored before its
global moves pay, and AutoTVM's model sees loops and learns by our rank objective, which in such spaces knows the rest
after some batches. G-BFS and N-A2C walk over all kinds of knobs here, not over factors alone, and all begin at a random
configuration. Batches are of 16, each of which is a generation of OpEvo (8 in the paper). Deviations over the seeds all
but vanish with the trials as in the paper, except for random draws.
""",
    trials=400,
    batch=16,
)

if __name__ == "__main__":
    main(FIGURE, __doc__)
