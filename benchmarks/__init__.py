"""Models to measure with, and the benchmarks themselves. Nothing here is part of the installed package."""
