"""Search for the fastest schedule of every kernel, by measuring (AutoTVM, OpEvo)."""
