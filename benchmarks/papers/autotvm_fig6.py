"""Figure 6 of the AutoTVM paper: batches chosen for diversity among λ times as many candidates.

    python -m benchmarks.papers.autotvm_fig6

Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018, section 6.1. Searches are replayed on measured tables
(:mod:`benchmarks.papers.replay`).
"""

from __future__ import annotations

from benchmarks.papers.curves import Figure, everywhere, main
from benchmarks.papers.models import boosting
from benchmarks.papers.replay import Method

FIGURE = Figure(
    name="autotvm_fig6",
    title="Figure 6 of the AutoTVM paper: diversity of batches",
    panels=everywhere(
        ("C2", "C6", "C9", "C12"),
        {f"λ={spread}": Method("annealing", (("spread", float(spread)),), model=boosting()) for spread in (1, 2, 4)},
    ),
    remarks="""
As in the paper, diversity makes no difference on most workloads; here on none, C6 included, where the paper saw a gain:
60, 60 and 55 trials in the mean. A batch of 32 out of a space of one or two thousand is diverse enough by itself. Ten
seeds, 256 trials; the other differences are those of figure 4.
""",
    trials=256,
    batch=32,
    seeds=10,
    good=0.995,
)

if __name__ == "__main__":
    main(FIGURE, __doc__)
