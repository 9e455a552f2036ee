"""What the host beside the accelerator is assumed to cost.

The published system is a board with a small processor (TVM, OSDI 2018, section 6.4: a dual-core ARM Cortex A9 at
667 MHz). Its speed is not in the paper's text. The figures here are assumptions, and reports print them:

* a convolution or product runs at 2.4 GOPS: that is fitted *backwards* from the paper's 40x speed-up of offloaded
  convolutions (section 6.4), given the time that our own cycles come to; nobody measured it. Our cycles are fewer than
  the published accelerator's (its tokens follow from structure, ours from conflicts), so that host was slower still;
* everything that only moves data runs at 0.5 GB/s, reads and writes counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlc.ir import te
from mlc.ir.cost import operations
from mlc.ir.graph import FusionKind, Node, express


@dataclass(frozen=True)
class HostModel:
    """A processor by two numbers.

    Args:
        product_ops: operations a second of convolutions and products, two a multiply-accumulate.
        bytes: bytes a second of everything else.
    """

    product_ops: float = 2.4e9
    bytes: float = 0.5e9

    def seconds(self, node: Node) -> float:
        """Of a group, or of a single operator: its products, or else the bytes that it touches."""
        moved = sum(v.type.nbytes for v in {*node.inputs, *node.outputs}) / self.bytes
        if node.op.kind is not FusionKind.COMPLEX or node.op.express is None:
            return moved
        operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
        return operations(list(express(node, operands))) / self.product_ops

    def copy_seconds(self, nbytes: int) -> float:
        """Of a copy between two places in memory, which reads and writes every byte."""
        return 2 * nbytes / self.bytes

    def to_json(self) -> dict[str, float]:
        return {"product_ops_per_second": self.product_ops, "bytes_per_second": self.bytes}

    def lines(self) -> list[str]:
        """The assumptions, for people."""
        return [
            f"host: products at {self.product_ops / 1e9:g} GOPS (fitted backwards from the paper's 40x, not measured, "
            "and from a faster accelerator than the paper's: tokens by conflicts, not by structure)",
            f"host: everything else at {self.bytes / 1e9:g} GB/s, reads and writes counted (assumed)",
        ]
