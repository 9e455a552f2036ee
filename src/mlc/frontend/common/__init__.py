"""What every front end needs, and no format in particular: see ``docs/architecture.md``, "front ends"."""
