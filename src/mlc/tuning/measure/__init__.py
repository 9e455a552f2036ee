"""Building and running candidates: workers, isolation, checks, the rule of timing."""

from mlc.tuning.measure.local import LocalMeasurer, MeasureOptions
from mlc.tuning.measure.timing import Rule

__all__ = ["LocalMeasurer", "MeasureOptions", "Rule"]
