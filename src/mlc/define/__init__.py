"""Operators and networks that a program writes in Python, and how a file with them becomes a graph."""
