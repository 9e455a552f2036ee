"""Reference interpreters of the three languages, in numpy: slow is fine, exact is not negotiable."""

from mlc.ir.interp.graph import run_graph
from mlc.ir.interp.loop import run_function
from mlc.ir.interp.te import run_tensors

__all__ = ["run_function", "run_graph", "run_tensors"]
