"""Rewriting rules, one file a family; :mod:`mlc.rewrite.algebra` puts the tables together."""
