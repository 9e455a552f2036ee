"""What a user may choose: the environment, read once, and the options of a compilation; and who watches it.

=============  =========================================  ========================================
variable       meaning                                    same as
=============  =========================================  ========================================
``MLC_DUMP``   folder for the program after every pass    ``mlc compile --dump-ir DIR``
``MLC_DEBUG``  1: messages and tracebacks; 2: details     ``mlc -v --debug``; ``mlc -vv --debug``
``MLC_VERIFY`` 1: check the program after every pass      ``mlc compile --verify-passes``
``MLC_SEED``   seed of all that is random at a run        ``mlc run --seed N``
=============  =========================================  ========================================

``XDG_CACHE_HOME`` says where tuning records are kept, in a folder ``mlc``; it is ``~/.cache`` unless set.

An option on the command line wins over its variable. An empty variable counts as absent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mlc.errors import UsageError

MAX_DEBUG = 2
MAX_SEED = (1 << 63) - 1
MAX_OPT_LEVEL = 3
MAX_KERNELS = 2000
WEIGHT_TYPES = ("f16", "bf16", "int8", "int4")


@dataclass(frozen=True)
class Settings:
    """The defaults that a user may set for all commands.

    Args:
        dump: where to write the program after every pass; ``None`` writes nothing.
        debug: 0 (off) to 2.
        verify: check the program after every pass.
        seed: of random inputs, and of what a model draws at random.
        cache: folder for what this program keeps for later, made when it is needed.
    """

    dump: Path | None = None
    debug: int = 0
    verify: bool = False
    seed: int = 0
    cache: Path = field(default_factory=lambda: _cache({}))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Reads the ``MLC_`` variables of the table above.

        Args:
            environment: that of the process unless given.
        Raises:
            UsageError: a value cannot be understood; names the variable and what it may be.
        """
        environment = os.environ if environment is None else environment
        dump = environment.get("MLC_DUMP", "")
        return cls(
            dump=Path(dump) if dump else None,
            debug=_integer(environment, "MLC_DEBUG", MAX_DEBUG),
            verify=bool(_integer(environment, "MLC_VERIFY", 1)),
            seed=_integer(environment, "MLC_SEED", MAX_SEED),
            cache=_cache(environment),
        )


@dataclass(frozen=True)
class CompileOptions:
    """How to compile, apart from the target.

    Args:
        name: of the model in its package.
        source: where the model came from, as the user wrote it; recorded in the package.
        sha256: of the model's file, in hexadecimal.
        opt_level: 0 (as it stands) to 3.
        disabled_passes: names of passes to leave out.
        fast_math: whether results may differ in their last digits from those of the model's operators one by one:
            Winograd convolution, fused attention, and ``a*b + c`` rounded once.
        verify: check the program after every pass.
        symbols: what the names of the calls that the package exports begin with.
        check_regions: run what an accelerator's regions became against the interpreter, on random data.
        weights: the type in which constant operands of products are stored, one of ``WEIGHT_TYPES``; their own
            unless given.
        bf16: compute matrix products in bf16, summed up in f32.
        fp16: compute in f16 what loses little by it; sums stay in f32.
        keep_f32: names of operators or of nodes of the model that ``fp16`` leaves as they are.
        keep_assembly: show the observer the assembly, which takes as long to print as the object to make.
        max_kernels: distinct kernels that the host or a region may take, each of which costs milliseconds to compile;
            any number unless given.
        quantised: whether the model's integers were made of floats by this program, which says how precise they are.
        list_layouts: tell how every tensor lies in memory, who asked for that, and where data are converted.
        memory: bytes that a run may take, with all that is given to it and that it gives back; results are made again
            where keeping them would take more. As many as it likes unless given.
        max_memory: bytes that parameters and working memory may take together; nothing is done to come below that.
        updates: outputs by name, and the input whose next value each is, and whose memory it may be given.
        functions: a folder of kernels that were compiled before: they are used again, and new ones are added. All are
            compiled, and kept nowhere, unless given.
    """

    name: str
    source: str
    sha256: str
    opt_level: int = MAX_OPT_LEVEL
    disabled_passes: tuple[str, ...] = ()
    fast_math: bool = True
    verify: bool = False
    symbols: str = "mlc"
    check_regions: bool = False
    keep_assembly: bool = False
    weights: str = ""
    bf16: bool = False
    fp16: bool = False
    keep_f32: tuple[str, ...] = ()
    max_kernels: int | None = None
    quantised: bool = False
    list_layouts: bool = False
    memory: int | None = None
    max_memory: int | None = None
    updates: Mapping[str, str] = field(default_factory=dict)
    functions: Path | None = None


class Observer:
    """Is told how a compilation goes on. Does nothing; who wants to know overrides what he wants to know."""

    def stage(self, name: str) -> None:
        """A stage begins, e.g. ``optimise`` or ``generate code``."""

    def passed(self, name: str, program: object, seconds: float) -> None:
        """A pass has ended; ``str(program)`` is the program after it, as text."""

    def kernel(self, done: int, total: int) -> None:
        """``done`` of ``total`` kernels, or of whatever else the stage counts, are ready."""


def _cache(environment: Mapping[str, str]) -> Path:
    """Where the XDG base directory specification wants it; it says to ignore relative paths."""
    base = Path(environment.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "mlc"


def _integer(environment: Mapping[str, str], name: str, most: int) -> int:
    """A variable from 0 to ``most``; 0 when it is not set."""
    text = environment.get(name, "").strip()
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > most:
        raise UsageError(
            f"the environment variable {name} must be an integer from 0 to {most}, not {text!r}",
            hint=f"unset {name}, or set it to a number",
        )
    return int(text)
