"""Processors with vectors: their record, the cost model, schedules, and the body of their targets, over ``llvm``."""
