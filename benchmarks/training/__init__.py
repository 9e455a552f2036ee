"""Training steps against PyTorch's: the networks, their twins, and a benchmark (``python -m benchmarks.training``)."""
