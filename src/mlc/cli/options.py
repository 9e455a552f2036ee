"""Options that several subcommands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mlc.cli import values
from mlc.cli.console import Console

if TYPE_CHECKING:
    import numpy.typing as npt

    from mlc.api import Model
    from mlc.frontend.limits import Limits

# Where every tar header ends its magic, in bytes.
_TAR_MAGIC_END = 262

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class LoadOptions:
    """How to import a model: what ``mlc.load`` takes besides the path."""

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    constants: Mapping[str, npt.ArrayLike] = field(default_factory=dict)
    limits: Limits | None = None
    frontend: str | None = None
    layouts: Mapping[str, str] = field(default_factory=dict)
    operators: str | None = None

    @property
    def given(self) -> bool:
        """Anything was said at all."""
        return bool(self.shapes or self.dims or self.constants or self.frontend or self.layouts or self.operators)

    @property
    def arguments(self) -> dict[str, Any]:
        """What ``mlc.load`` takes besides the path, by name."""
        return {
            "shapes": self.shapes,
            "dims": self.dims,
            "constants": self.constants,
            "limits": self.limits,
            "frontend": self.frontend,
            "layouts": self.layouts,
            "operators": self.operators or (),
        }

    def load(self, path: str) -> Model:
        """Import a model; see ``mlc.load`` for the errors."""
        from mlc.api import load

        return load(path, **self.arguments)


def load_options(function: F) -> F:
    """Decorator: the options of an import, given to the command as ``load_options``."""

    @wraps(function)
    def gathered(
        *args: Any,
        shape: tuple[str, ...],
        input_shapes: tuple[str, ...],
        dim: tuple[str, ...],
        const: tuple[str, ...],
        limit: tuple[str, ...],
        model_format: str | None,
        input_layout: tuple[str, ...],
        operators: str | None,
        **kwargs: Any,
    ) -> Any:
        shapes = [values.shape(text) for text in shape]
        for text in input_shapes:
            shapes += values.tvmc_shapes(text)
        options = LoadOptions(
            values.merged("--shape", shapes),
            values.merged("--dim", [values.dim(text) for text in dim]),
            values.merged("--const", [values.constant(text) for text in const]),
            values.limits(limit) if limit else None,
            model_format,
            values.merged("--input-layout", [values.layout(text) for text in input_layout]),
            operators,
        )
        return function(*args, load_options=options, **kwargs)

    for option in reversed(
        (
            click.option(
                "--shape", multiple=True, metavar="NAME=1,3,224,224", help="Shape of an input; may be repeated."
            ),
            click.option("--dim", multiple=True, metavar="NAME=N", help="Value of a symbolic dimension."),
            click.option("--const", multiple=True, metavar="NAME=VALUE", help="Fix an input: a value, or FILE.npy."),
            click.option("--input-shapes", multiple=True, metavar='"NAME:[1,3] …"', help="Shapes as tvmc wrote them."),
            click.option(
                "--input-layout", multiple=True, metavar="NAME:NCHW", help="Take an input in another order of axes."
            ),
            click.option(
                "--operators",
                metavar="FILE.py",
                help="A file with @mlc.operator definitions of the model's custom operators. It is run: name only what "
                "you trust.",
            ),
            click.option("--limit", multiple=True, metavar="NAME=N", help="Raise a budget of the import."),
            click.option("--model-format", metavar="NAME", help="Format of the model; guessed from its content."),
        )
    ):
        gathered = option(gathered)
    return gathered  # type: ignore[return-value]


def json_option(function: F) -> F:
    """Decorator: ``--json FILE``, ``-`` for standard output; then nothing else goes there."""
    return json_option_named("--json")(function)


def json_option_named(*names: str) -> Callable[[F], F]:
    """The decorator ``json_option`` under other names."""

    def note(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value == "-":
            ctx.ensure_object(Console).json_on_stdout = True
        return value

    return click.option(
        *names,
        "json_file",
        metavar="FILE",
        callback=note,
        help="Write the result as JSON; - for standard output.",
    )


def json_flag(function: F) -> F:
    """Decorator: ``--json`` for commands that only show something: JSON instead of text."""

    def note(ctx: click.Context, param: click.Parameter, value: bool) -> str | None:
        ctx.ensure_object(Console).json_on_stdout |= value
        return "-" if value else None

    return click.option("--json", "json_file", is_flag=True, callback=note, help="Print JSON instead of text.")(
        function
    )


def is_package(path: str) -> bool:
    """Whether a file is a tar archive, by its content; so is what cannot be read, which the package reader reports."""
    file = Path(path)
    if not file.is_file():
        return True
    with open(file, "rb") as opened:
        return opened.read(_TAR_MAGIC_END)[_TAR_MAGIC_END - 5 :] == b"ustar"
