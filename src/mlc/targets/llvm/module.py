"""A whole LLVM module: kernels, math library, thread pool and entry points as text, optimised, emitted as an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mlc.errors import ToolchainError
from mlc.targets.llvm.arith import INTEGER_POWER
from mlc.targets.llvm.half import HALF_CONVERSIONS
from mlc.targets.llvm.math import math_module, math_symbol
from mlc.targets.llvm.permission import ALLOW, PERMISSION


@dataclass(frozen=True)
class Machine:
    """What code is generated for.

    Args:
        triple: LLVM target triple.
        cpu: LLVM processor name.
        features: LLVM feature string, e.g. ``+avx512f,-prefer-256-bit``.
        vector_bits: width of a vector register.
    """

    triple: str
    cpu: str
    features: str
    vector_bits: int


class ModuleText:
    """Collects the text of a module; what :class:`~mlc.targets.llvm.function.FunctionEmitter` writes to.

    Args:
        keeps_nan: what :class:`~mlc.targets.llvm.arith.Sink` says.
        fixed_product: LLVM's function, without its type, for the high halves of doubled products of integers, rounded;
            empty where the processor has no instruction for it.
        packed_lanes: of vectors of words that become bytes four at once; 0 where no instructions do that.
        masks: whether a mask chooses the lanes that a vector access reads, at no cost.
    """

    def __init__(
        self, *, keeps_nan: bool = False, fixed_product: str = "", packed_lanes: int = 0, masks: bool = False
    ) -> None:
        self.keeps_nan = keeps_nan
        self.fixed_product = fixed_product
        self.packed_lanes = packed_lanes
        self.masks = masks
        self.definitions: list[str] = []
        self.declarations: dict[str, None] = {}
        self.requests: dict[tuple[str, str, int], None] = {}

    def declare(self, line: str) -> None:
        self.declarations[line] = None

    def math(self, fn: str, dtype: str, lanes: int) -> str:
        self.requests[fn, dtype, lanes] = None
        return math_symbol(fn, dtype, lanes)

    def define(self, text: str) -> None:
        self.definitions.append(text)

    def parts(self) -> dict[str, Any]:
        """All that was collected so far, for :meth:`take`: JSON-able."""
        return {
            "definitions": list(self.definitions),
            "declarations": list(self.declarations),
            "requests": [list(request) for request in self.requests],
        }

    def take(self, parts: Mapping[str, Any]) -> None:
        """Adds what another one collected."""
        self.definitions += parts["definitions"]
        self.declarations.update(dict.fromkeys(parts["declarations"]))
        self.requests.update({(fn, dtype, lanes): None for fn, dtype, lanes in parts["requests"]})

    def export(self, name: str) -> None:
        """Makes a kernel visible to other objects of the same program."""
        begin = f"define internal void @{name}("
        self.definitions = [text.replace(begin, f"define hidden void @{name}(") for text in self.definitions]

    def head(self, name: str) -> str:
        """The declaration of a kernel for modules that it is not in."""
        begin = f"define internal void @{name}("
        text = next(text for text in self.definitions if text.startswith(begin))
        operands = text[len(begin) : text.index(")")].count("%")
        return f"declare hidden void @{name}({', '.join(['ptr'] * operands)})"

    def text(self, machine: Machine, symbols: str = "mlc") -> str:
        """The module, in an order that depends on nothing but its contents; what it exports begins with ``symbols``."""
        body = "\n".join(self.definitions)
        library = math_module(list(self.requests)) if self.requests else ""
        declared = [d for d in self.declarations if d not in library]
        parts = [f'target triple = "{machine.triple}"', "", *declared]
        if "@mlc.ipow." in body:
            parts.append(INTEGER_POWER)
        if "half" in body and machine.triple.startswith("x86_64"):
            parts.append(HALF_CONVERSIONS)
        if ALLOW in body:
            parts.append(PERMISSION)
        parts += [library, body]
        parts.append(f'attributes #0 = {{ nounwind "prefer-vector-width"="{machine.vector_bits}" }}')
        # everything else is internal: kernels, and what begins with `mlc.`
        return ("\n".join(parts) + "\n").replace("@mlc_", f"@{symbols}_")


def target_machine(machine: Machine, opt: int = 3) -> Any:
    """An LLVM target machine.

    Raises:
        ToolchainError: LLVM has no such target.
    """
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(machine.triple)
    except RuntimeError as e:
        raise ToolchainError(f"LLVM has no target {machine.triple!r}: {e}") from e
    return target.create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=opt, reloc="pic", codemodel="small"
    )


def _optimise(mod: Any, tm: Any) -> None:
    """Run the passes that generated code needs.

    The code is vectorised, unrolled, free of redundant loads and hoisted as it is written; what is left is to inline
    the math library and to tidy up. LLVM's own -O2 took ten times as long for the same inner loops.
    """
    import llvmlite.binding as llvm

    builder = llvm.create_pass_builder(tm, llvm.create_pipeline_tuning_options(speed_level=2))
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.add_new_gvn_pass()
    passes.add_instruction_combine_pass()
    passes.add_aggressive_dce_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(mod, builder)


def compile_text(
    text: str, machine: Machine, *, opt_level: int = 3, on_stage: Callable[[str], None] | None = None
) -> bytes:
    """Optimise a module and emit it as a relocatable object.

    Args:
        text: LLVM IR.
        machine: what to generate code for.
        opt_level: 0 leaves the code as written (the oracle for the optimiser), otherwise a short pipeline runs.
        on_stage: called with ``parse``, ``optimise``, ``emit`` as each begins.
    Raises:
        ToolchainError: LLVM refused the module: a bug in the code generator.
    """
    tm, mod = _prepared(text, machine, opt_level, on_stage or (lambda _: None))
    obj: bytes = tm.emit_object(mod)
    return obj


def assembly_of(text: str, machine: Machine, *, opt_level: int = 3) -> str:
    """The readable assembly of the object that ``compile_text`` gives for the same arguments."""
    tm, mod = _prepared(text, machine, opt_level, lambda _: None)
    listing: str = tm.emit_assembly(mod)
    return listing


def _prepared(text: str, machine: Machine, opt_level: int, stage: Callable[[str], None]) -> tuple[Any, Any]:
    """The target machine and the optimised module."""
    import llvmlite.binding as llvm

    tm = target_machine(machine, opt=0 if opt_level == 0 else 3)
    stage("parse")
    try:
        mod = llvm.parse_assembly(text)
        mod.triple = machine.triple
        mod.data_layout = str(tm.target_data)
        mod.verify()
    except RuntimeError as e:
        hint = "this is a bug in mlc; --dump-ir keeps the text"
        raise ToolchainError(f"LLVM refused the generated code: {e}", hint=hint) from e
    if opt_level > 0:
        stage("optimise")
        _optimise(mod, tm)
    stage("emit")
    return tm, mod
