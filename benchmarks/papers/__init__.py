"""Figures of published papers, measured with this compiler: one script a figure, results in ``results/``."""
