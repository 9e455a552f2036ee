"""Models on a GPU, beside PyTorch on the same one: ``python -m benchmarks.gpu``."""
