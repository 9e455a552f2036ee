"""The ``mlc`` command: one file a subcommand. Parsing, progress, messages, exit codes; the work is done elsewhere."""
