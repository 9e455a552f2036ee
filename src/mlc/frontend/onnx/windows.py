"""Windows as ONNX's attributes describe them."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.errors import ImportModelError
from mlc.frontend.common.windows import Window, same_pads
from mlc.frontend.onnx.axes import int_list
from mlc.frontend.onnx.registry import OnnxNode

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def auto_pad(node: OnnxNode) -> str:
    """The attribute of that name.

    Raises:
        ImportModelError: it is no known mode.
    """
    mode = node.attr("auto_pad", "NOTSET") or "NOTSET"
    if mode not in AUTO_PADS:
        raise ImportModelError(f"auto_pad is {mode!r}, it may be {', '.join(AUTO_PADS)}")
    return mode


def read_window(node: OnnxNode, space: Sequence[int], kernel: Sequence[int], *, crop: bool = False) -> Window:
    """The window of a convolution or pool over an input with spatial extents ``space``.

    Automatic pads count with dilations, as the specification has it; onnxruntime and the reference leave them out.

    Args:
        node: has the attributes.
        space: extents of the input.
        kernel: extents of the window.
        crop: whether automatic pads are negative where windows leave gaps, and so cut off the ends of the input.
    Raises:
        ImportModelError: an attribute has the wrong number of entries.
    """
    rank = len(space)
    if len(kernel) != rank:
        raise ImportModelError(f"a kernel of {len(kernel)} axes over {rank} spatial axes")
    strides, dilations = int_list(node, "strides", rank, 1), int_list(node, "dilations", rank, 1)
    if any(v < 1 for v in (*kernel, *strides, *dilations)):
        raise ImportModelError(f"kernel {tuple(kernel)}, strides {strides} and dilations {dilations} must be positive")
    mode = auto_pad(node)
    if mode == "NOTSET":
        pads = int_list(node, "pads", 2 * rank, 0)
    elif mode == "VALID":
        pads = (0,) * (2 * rank)
    else:
        pads = same_pads(space, kernel, strides, dilations, upper=mode == "SAME_UPPER", crop=crop)
    return Window(tuple(kernel), strides, dilations, pads, bool(node.attr("ceil_mode", 0)))
