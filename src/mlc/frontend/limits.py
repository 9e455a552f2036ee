"""How much a model file may ask for before the import is refused."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.errors import ImportModelError


@dataclass(frozen=True)
class Limits:
    """Budgets of one import; each is a flag of the command line (``--limit nodes=200000``).

    Args:
        file_bytes: size of the model file; external data is counted apart.
        external_bytes: size of all external data that the model names.
        tensor_bytes: size of any one tensor of the model, computed or stored.
        constant_bytes: size of one constant that the import itself makes (ranges, fills, folded values).
        constants_bytes: size of all such constants together.
        unpacked_bytes: size of what the model file holds compressed, unpacked.
        config_bytes: size of the text that describes a model's layers.
        nodes: nodes of the model, with functions and branches expanded; inputs and initializers also.
        arguments: inputs and outputs of the model; the compiled entry point takes them one by one.
        operators: core operators the graph may grow to (short loops are unrolled).
        depth: nesting of subgraphs and function calls.
        rank: dimensions of any tensor.
        name_length: characters of any name.
    """

    file_bytes: int = (2 << 30) - 1
    external_bytes: int = 8 << 30
    tensor_bytes: int = 8 << 30
    constant_bytes: int = 64 << 20
    constants_bytes: int = 256 << 20
    unpacked_bytes: int = 1 << 30
    config_bytes: int = 64 << 20
    nodes: int = 100_000
    arguments: int = 10_000
    operators: int = 100_000
    depth: int = 64
    rank: int = 32
    name_length: int = 4096

    def check(self, name: str, amount: int, what: str) -> None:
        """Refuse what goes beyond a limit.

        Args:
            name: field of this class.
            amount: what is asked for.
            what: the thing counted, for the message: ``"tensor 'x'"``.
        Raises:
            ImportModelError: ``amount`` is more than the limit; the hint has the flag that raises it.
        """
        limit = getattr(self, name)
        if amount > limit:
            unit = " bytes" if name.endswith("_bytes") else ""
            raise ImportModelError(
                f"{what}: {amount}{unit}, the limit {name!r} is {limit}{unit}",
                hint=f"if the model is trusted, raise it with --limit {name}={amount}",
            )


DEFAULT_LIMITS = Limits()
