"""What the targets of all machines that run grids of threads share."""
