"""Figure 19 of the TVM paper: networks on a Mali, in float32 and float16, at batch 1.

    python -m benchmarks.papers.tvm_fig19                                                        # a board with a Mali
    python -m benchmarks.papers.tvm_fig19 --target "opencl -device=mali -driver=pocl" --small    # a rehearsal

Chen et al., "TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, section 6.3. The figure's
other side, the ARM Compute Library, is not to be had here; this compiler without graph optimisation takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers import devices

FIGURE = devices.Figure(
    "tvm_fig19",
    "Figure 19 of the TVM paper: networks on a Mali",
    ("resnet18", "mobilenet_v1", "dqn"),
    "The paper has 1.2 to 1.6 times the speed of the ARM Compute Library (18.03) on a Mali-T860MP4.",
    precisions=("fp32", "fp16"),
    variants={devices.PLAIN: devices.LEFT_OUT},
    peers=(),
    target="opencl -device=mali",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    devices.main(FIGURE, arguments, __doc__)


if __name__ == "__main__":
    main()
