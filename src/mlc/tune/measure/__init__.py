"""Building and running candidates: workers, isolation, checks, the rule of timing."""

from mlc.tune.measure.local import LocalMeasurer, MeasureOptions
from mlc.tune.measure.timing import Rule

__all__ = ["LocalMeasurer", "MeasureOptions", "Rule"]
