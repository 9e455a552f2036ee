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
        ("MM1", "MM2", "MM3", "BMM1", "BMM2", "BMM3", "C1", "C2"),
        {
            "Random": Method("random"),
            "G-BFS": Method("gbfs"),
            "N-A2C": Method("na2c"),
            "AutoTVM": Method("annealing"),
            "OpEvo": Method("opevo"),
        },
    ),
    remarks="""
The paper's products of matrices are scaled down, with factorisations alone to choose, under the template that is
derived from an expression (`mlc tune --template master`): MM1 to MM3 have an eighth of the edges, BMM1 to BMM3 half
of the edges and a batch of 24. C1 and C2 are the convolutions of ResNet-18 under the template of convolutions, not
those of AlexNet.

In the paper OpEvo is best in most cases and AutoTVM last. Here all four are far better than random draws on BMM2,
BMM3 and C2; OpEvo is a little ahead of G-BFS and N-A2C, as in the paper, and AutoTVM needs a seventh fewer trials than
OpEvo. Spaces of a thousand or two are explored before OpEvo's global moves pay, and AutoTVM's model sees loops and
learns by our rank objective, which in such spaces knows the rest after some batches. G-BFS and N-A2C walk over all
kinds of knobs here, not over factors alone, and all begin at a random configuration. Batches are of 16, each of which
is a generation of OpEvo (8 in the paper). Deviations over the seeds fall with the trials as in the paper; AutoTVM's
vanish, and OpEvo's but for C2.
""",
    trials=400,
    batch=16,
)

if __name__ == "__main__":
    main(FIGURE, __doc__)
