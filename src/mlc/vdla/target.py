"""The target ``vdla``: a host processor, for which everything is compiled as ever, with the accelerator beside it.

``vdla -profile=full -host=x86 -dram_latency=60``: options that name a field of the hardware record set it; what is
neither ``-profile``, ``-config`` (a file) nor ``-host`` goes to the host's target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from mlc.errors import UsageError
from mlc.ir.graph import Node
from mlc.ir.loop import Function
from mlc.ir.types import TensorType
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.targets.base import Artifact, CallSpec, LayoutChoice, Target, get_target
from mlc.vdla.config import PROFILES, VdlaConfig, load_config
from mlc.vdla.offload import VdlaAccelerator


class VdlaTarget:
    """A host with the accelerator beside it; all that is asked of a target is asked of the host's.

    Args:
        host: compiles what stays on the processor.
        config: the accelerator.
        spelled: the options that say which accelerator, for messages and manifests.
    """

    name = "vdla"

    def __init__(self, host: Target, config: VdlaConfig, spelled: Sequence[str] = ()) -> None:
        self.host = host
        self.config = config
        self.accelerator = VdlaAccelerator(config)
        self._spelled = tuple(spelled)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The target for options of its string form.

        Raises:
            UsageError: an unknown profile, field or host, or a value that does not fit.
        """
        left = dict(options)
        host, profile, file = left.pop("host", "x86"), left.pop("profile", "full"), left.pop("config", None)
        if host == cls.name:
            raise UsageError("target vdla: the host is vdla itself", hint="name a processor: -host=x86")
        fields = {key: left.pop(key) for key in options if key in PROFILES["full"].to_dict()}
        config = load_config(
            profile, file=Path(file) if file else None, overrides=[f"{key}={value}" for key, value in fields.items()]
        )
        try:
            below = get_target(" ".join([host, *(f"-{key}={value}" for key, value in left.items())]))
        except UsageError as error:
            hint = f"{error.hint}; vdla itself has -profile, -config, -host, and a field of its record each"
            raise UsageError(f"target vdla: {error.message}", hint=hint) from None
        spelled = [f"-profile={profile}", *([f"-config={file}"] if file else [])]
        return cls(below, config, [*spelled, *(f"-{key}={value}" for key, value in fields.items())])

    def describe(self) -> dict[str, object]:
        facts = dict(self.host.describe())
        host, *rest = str(facts["string"]).split()
        return {**facts, "string": " ".join(["vdla", *self._spelled, f"-host={host}", *rest])}

    def winograd_tile(self, x: TensorType, weights: TensorType, pads: Sequence[int]) -> int:
        return self.host.winograd_tile(x, weights, pads)

    def fuses_attention(self, queries: TensorType, keys: TensorType, values: TensorType) -> bool:
        return self.host.fuses_attention(queries, keys, values)

    def layouts(
        self, node: Node, inputs: Sequence[TensorType], constant: Sequence[bool], row_major: bool = False
    ) -> LayoutChoice:
        return self.host.layouts(node, inputs, constant, row_major)

    def schedule(self, node: Node, knobs: Knobs) -> Schedule | None:
        return self.host.schedule(node, knobs)

    def kernel(self, node: Node, name: str, watch: Callable[[str, str], None] | None = None) -> Function:
        return self.host.kernel(node, name, watch)

    def codegen(
        self,
        kernels: Mapping[str, Function],
        steps: Callable[[Mapping[str, int]], Sequence[CallSpec]],
        *,
        opt_level: int,
        contract: bool = True,
        whole: bool = True,
        on_stage: Callable[[str], None] | None = None,
    ) -> Artifact:
        return self.host.codegen(kernels, steps, opt_level=opt_level, contract=contract, whole=whole, on_stage=on_stage)

    def assembly(self, sources: Mapping[str, str], *, opt_level: int = 3) -> str:
        return self.host.assembly(sources, opt_level=opt_level)
