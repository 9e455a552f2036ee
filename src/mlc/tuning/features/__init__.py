"""What a configuration looks like to a cost model, for thousands of configurations at once."""

from mlc.tuning.features.batch import LoopFeatures

__all__ = ["LoopFeatures"]
