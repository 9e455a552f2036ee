"""From a model's graph to kernels, places in memory and calls, for a processor as for a device beside it."""
