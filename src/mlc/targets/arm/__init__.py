"""AArch64 with NEON: the table of its processors, what their features are, and the options of the target."""
