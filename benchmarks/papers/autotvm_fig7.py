"""Figure 7 of the AutoTVM paper: what a bootstrap ensemble's uncertainty is worth.

    python -m benchmarks.papers.autotvm_fig7

Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018, section 6.1: five models with the regression
objective. Searches are replayed on measured tables (:mod:`benchmarks.papers.replay`).
"""

from __future__ import annotations

from benchmarks.papers.curves import Figure, everywhere, main
from benchmarks.papers.models import bootstrap
from benchmarks.papers.replay import Method
from mlc.tuning.models.ensemble import Acquisition

FIGURE = Figure(
    name="autotvm_fig7",
    title="Figure 7 of the AutoTVM paper: uncertainty",
    panels=everywhere(
        ("C2", "C6", "C9", "C12"),
        {
            "Expected improvement": Method("annealing", model=bootstrap(Acquisition.EXPECTED_IMPROVEMENT)),
            "Upper confidence bound": Method("annealing", model=bootstrap(Acquisition.UPPER_CONFIDENCE_BOUND)),
            "Mean": Method("annealing", model=bootstrap(Acquisition.MEAN)),
        },
    ),
    remarks="""
As in the paper, uncertainty improves nothing here: with the mean of five models it takes 78 trials, with the upper
confidence bound 86, with the expected improvement 96. Batches are of 64; the uncertainty of a bootstrap says little of
64 candidates that are chosen together, since none of them counts on what the others will tell. (The tuner's default,
which does so and has its uncertainty from a Gaussian process over the knobs, is compared in explorers.md.) Five seeds,
256 trials; the other differences are those of figure 4.
""",
    trials=256,
    batch=64,
    seeds=5,
    good=0.995,
)

if __name__ == "__main__":
    main(FIGURE, __doc__)
