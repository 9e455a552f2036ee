"""From loop nests to instruction streams with dependency tokens."""
