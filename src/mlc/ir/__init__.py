"""The three languages: tensor expressions, the graph and the loop AST, with what they share.

Nothing in this room knows an operator by name, a target or a tuner.
"""

from mlc.ir import printer

__all__ = ["printer"]  # nodes print themselves by it (mlc.ir.text)
