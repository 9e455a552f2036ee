"""Operators outside the zoo, and what tuning gains on them: ``python -m benchmarks.outside``."""
