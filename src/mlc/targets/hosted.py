"""A target that is a host processor, for which everything is compiled as ever, with an accelerator beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from mlc.errors import UsageError
from mlc.ir.cost import Peaks
from mlc.ir.graph import Node
from mlc.ir.loop import Function
from mlc.ir.site import Site
from mlc.ir.types import DType
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.ops.algorithms import Algorithm
from mlc.targets.base import Accelerator, Artifact, Code, LayoutChoice, Step, Target, get_target
from mlc.targets.bench import Bench
from mlc.targets.functions import CompiledFunction, Separate


class HostedTarget:
    """Asks the host's target all that is asked of a target.

    Args:
        name: as in the target's string form.
        host: compiles what stays on the processor.
        accelerator: takes over what it can.
        options: that say which accelerator, as they are spelled; for messages and manifests.
    """

    def __init__(self, name: str, host: Target, accelerator: Accelerator, options: Sequence[str] = ()) -> None:
        self.name = name
        self.host = host
        self.accelerator: Accelerator | None = accelerator
        self._options = tuple(options)

    def describe(self) -> dict[str, object]:
        facts = dict(self.host.describe())
        host, *rest = str(facts["string"]).split()
        return {**facts, "string": " ".join([self.name, *self._options, f"-host={host}", *rest])}

    def peaks(self) -> Peaks:
        return self.host.peaks()

    def algorithms(self, node: Node) -> Sequence[Algorithm]:
        return self.host.algorithms(node)

    def bytes_gain(self, node: Node) -> float:
        return self.host.bytes_gain(node)

    def most_products(self, terms: int) -> float:
        return terms

    def multiplies_bf16(self) -> bool:
        return self.host.multiplies_bf16()

    def convolves_bf16(self, node: Node) -> bool:
        return False

    def sums_in_half(self) -> bool:
        return self.host.sums_in_half()

    def multiplied_bytes(self) -> DType:
        return self.host.multiplied_bytes()

    def bits_gain(self, node: Node, of_x: int, of_w: int) -> float:
        return self.host.bits_gain(node, of_x, of_w)

    def weight_types(self) -> Collection[DType]:
        return self.host.weight_types()

    def channel_block(self) -> int:
        return self.host.channel_block()

    def layouts(self, node: Node, site: Site, knobs: Knobs) -> LayoutChoice:
        return self.host.layouts(node, site, knobs)

    def schedule(self, node: Node, knobs: Knobs) -> Schedule | None:
        return self.host.schedule(node, knobs)

    def kernel(self, node: Node, name: str, watch: Callable[[str, str], None] | None = None) -> Function:
        return self.host.kernel(node, name, watch)

    def emit(
        self, kernels: Mapping[str, Any], *, contract: bool = True, on_stage: Callable[[str], None] | None = None
    ) -> Code:
        return self.host.emit(kernels, contract=contract, on_stage=on_stage)

    def alone(self, fn: Function, *, contract: bool, opt_level: int, symbols: str) -> CompiledFunction | None:
        host = self.host
        if not isinstance(host, Separate):
            return None
        return host.alone(fn, contract=contract, opt_level=opt_level, symbols=symbols)

    def codegen(
        self,
        code: Code,
        calls: Sequence[Step],
        *,
        opt_level: int,
        whole: bool = True,
        on_stage: Callable[[str], None] | None = None,
        symbols: str = "mlc",
    ) -> Artifact:
        return self.host.codegen(code, calls, opt_level=opt_level, whole=whole, on_stage=on_stage, symbols=symbols)

    def assembly(
        self, sources: Mapping[str, str], *, opt_level: int = 3, details: Mapping[str, str] | None = None
    ) -> str:
        return self.host.assembly(sources, opt_level=opt_level, details=details)

    def bench(self, flush: bool = False) -> Bench:
        return self.host.bench(flush)


def host_of(name: str, options: Mapping[str, str], own: str) -> Target:
    """The host that the options of a target leave over.

    Args:
        name: of the target.
        options: those that are not its own; ``host`` says which one, x86 unless given.
        own: its own options, for messages.
    Raises:
        UsageError: an unknown host, or an option that it does not know.
    """
    left = dict(options)
    host = left.pop("host", "x86")
    if host == name:
        raise UsageError(f"target {name}: the host is {name} itself", hint="name a processor: -host=x86")
    try:
        return get_target(" ".join([host, *(f"-{key}={value}" for key, value in left.items())]))
    except UsageError as error:
        raise UsageError(f"target {name}: {error.message}", hint=f"{error.hint}; {name} itself has {own}") from None
