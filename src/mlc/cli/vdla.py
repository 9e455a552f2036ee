"""``mlc vdla``: programs of the VDLA accelerator as files, as text, and whether their streams are valid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mlc.cli.console import Console, file_bytes, require_writable, status, write_json
from mlc.cli.group import Command, LazyGroup, did_you_mean
from mlc.cli.options import is_package, json_flag, json_option
from mlc.errors import CheckFailedError, ProgramError, UsageError

if TYPE_CHECKING:
    from mlc.vdla.config import VdlaConfig
    from mlc.vdla.program import Program

F = TypeVar("F", bound=Callable[..., Any])

COMMANDS: dict[str, tuple[str, str]] = {
    "disasm": ("mlc.cli.vdla:disasm", "Print a program as assembly text."),
    "asm": ("mlc.cli.vdla:asm", "Make a program from assembly text."),
    "check": ("mlc.cli.vdla:check", "Check a program's stream: tokens, races, bounds."),
    "sim": ("mlc.cli.vdla_sim:command", "Run a program on the simulator: outputs, cycles, stalls."),
}


def region_option(function: F) -> F:
    """Decorator: ``--region``, which program of a module.tar is meant."""
    return click.option("--region", metavar="NAME", help="Which of a module's programs, where it has several.")(
        function
    )


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    examples="""
    mlc vdla disasm conv.vdla
    mlc vdla asm conv.s -o conv.vdla
    mlc vdla check conv.vdla
    mlc vdla sim conv.vdla
    """,
)
def group() -> None:
    """Read, write, check and simulate programs of the VDLA accelerator (.vdla)."""


@click.command(
    cls=Command,
    examples="""
    mlc vdla disasm conv.vdla | less
    mlc vdla disasm conv.vdla --code
    mlc vdla disasm conv.vdla -o conv.s
    mlc vdla disasm resnet18.tar --region region0 --code
    """,
)
@click.argument("file")
@region_option
@click.option("--code", is_flag=True, help="Print the instructions alone, without buffers, constants and micro-ops.")
@click.option("-o", "--output", metavar="FILE", help="Write the text to a file.")
@json_flag
@click.pass_obj
def disasm(
    console: Console, file: str, region: str | None, code: bool, output: str | None, json_file: str | None
) -> None:
    """Print the program in FILE (a program or a module.tar) as text that `mlc vdla asm` turns into the same bytes."""
    from mlc.vdla.assembly import disassemble, listing

    require_writable(output)
    program = read_program(file, region=region)
    if json_file is not None:
        write_json(console, json_file, "vdla disasm", _document(program))
        if output is None:
            return
    text = "\n".join(listing(program)) + "\n" if code else disassemble(program)
    if output is None:
        console.text(text)
    else:
        write_file(output, text.encode())


@click.command(
    cls=Command,
    examples="""
    mlc vdla asm conv.s -o conv.vdla
    """,
)
@click.argument("file")
@click.option("-o", "--output", metavar="FILE", required=True, help="The program to write.")
@json_option
@click.pass_obj
def asm(console: Console, file: str, output: str, json_file: str | None) -> None:
    """Make a program from the assembly text in FILE."""
    require_writable(output, json_file)
    program = read_program(file)
    data = program.to_bytes()
    write_file(output, data)
    console.say(f"{output}: {_summary(program)}, {file_bytes(len(data))}")
    write_json(console, json_file, "vdla asm", {"output": output, "bytes": len(data), **_facts(program)})


@click.command(
    cls=Command,
    examples="""
    mlc vdla check conv.vdla
    mlc vdla check conv.s --json
    mlc vdla check conv.vdla --profile osdi18
    """,
)
@click.argument("file")
@region_option
@click.option("--profile", metavar="NAME", help="Refuse a program that is for another accelerator than this one.")
@click.option("--config", metavar="FILE", help="The same, with fields from a .toml or .json file.")
@click.option(
    "--vdla", "fields", multiple=True, metavar="FIELD=VALUE", help="The same, for one field; may be repeated."
)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Report at most so many faults.")
@json_flag
@click.pass_obj
def check(
    console: Console,
    file: str,
    region: str | None,
    profile: str | None,
    config: str | None,
    fields: tuple[str, ...],
    limit: int,
    json_file: str | None,
) -> None:
    """Check the stream in FILE (a program, assembly text or a module.tar); exit code 1 when it is not valid.

    A valid stream gives the same results however its three units interleave, and cannot deadlock.
    """
    from mlc.vdla.check import check as violations_of
    from mlc.vdla.check import describe

    program = read_program(file, chosen_config(profile, config, fields), region)
    with status(console, f"checking {len(program.instructions)} instructions"):
        found = violations_of(program, limit=limit)
    documents = [
        {"kind": str(v.kind), "first": v.first, "second": v.second, "what": v.what, "text": describe(program, v)}
        for v in found
    ]
    write_json(console, json_file, "vdla check", {"valid": not found, **_facts(program), "violations": documents})
    if json_file is None:
        console.text("\n".join(describe(program, violation) for violation in found) if found else _summary(program))
    if found:
        more = " or more" if len(found) == limit else ""
        raise CheckFailedError(f"{file}: the stream is not valid: {len(found)}{more} faults")
    console.say("the stream is valid")


def chosen_config(profile: str | None, file: str | None, fields: tuple[str, ...]) -> VdlaConfig | None:
    """The accelerator that the options name, or None where they name none.

    Raises:
        UsageError: the options do not make a configuration.
    """
    from mlc.vdla.config import load_config

    if profile is None and file is None and not fields:
        return None
    return load_config(profile or "full", file=None if file is None else Path(file), overrides=fields)


def read_program(path: str, config: VdlaConfig | None = None, region: str | None = None) -> Program:
    """The program in a file of any form: a program, assembly text, or a module that has programs.

    Args:
        path: the file; what it is shows in how it begins.
        config: the accelerator at hand; without one, what the file says.
        region: which of a module's programs.
    Raises:
        UsageError: the file cannot be read, or does not have the region.
        ProgramError: it holds no program, or one for another accelerator.
        PackageError: it is a broken module.
    """
    from mlc.vdla.assembly import assemble
    from mlc.vdla.program import MAGIC, Program

    if Path(path).is_file() and is_package(path):
        path, data = _member(path, region)
    elif region is not None:
        raise UsageError(f"{path}: is no module.tar, so it has no region {region!r}", hint="leave --region out")
    else:
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        if data.startswith(MAGIC):
            return Program.from_bytes(data, config)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise ProgramError("neither a VDLA program nor assembly text") from None
        program = assemble(text)
        return program if config is None else Program.from_bytes(program.to_bytes(), config)
    except ProgramError as error:
        raise ProgramError(f"{path}: {error.message}", hint=error.hint) from None


def _member(path: str, region: str | None) -> tuple[str, bytes]:
    """The bytes of a module's program, and how to call it in messages."""
    from mlc.runtime import open_package

    with open_package(path) as package:
        members = {Path(name).stem: name for name in package.names() if Path(name).match("device/*.vdla")}
        if not members:
            raise UsageError(f"{path}: has no programs for VDLA", hint="compile it with --target vdla")
        if region is None and len(members) > 1:
            raise UsageError(f"{path}: has {len(members)} programs", hint=f"choose with --region: {', '.join(members)}")
        name = next(iter(members)) if region is None else region
        if name not in members:
            raise UsageError(f"{path}: there is no region {name!r}", hint=did_you_mean(name, members))
        return f"{path}: {members[name]}", package.read(members[name])


def write_file(path: str, data: bytes) -> None:
    """Writes a file, whole or not at all; an OutputError where it cannot be."""
    from mlc.runtime.atomic import atomic_write

    with atomic_write(path) as file:
        file.write(data)


def _summary(program: Program) -> str:
    units = _facts(program)["units"]
    each = ", ".join(f"{unit} {count}" for unit, count in units.items())
    return f"{len(program.instructions)} instructions ({each}), {len(program.uops)} micro-ops"


def _facts(program: Program) -> dict[str, Any]:
    """Counts, for summaries."""
    from mlc.vdla.config import profile_of
    from mlc.vdla.isa import Unit

    units = Counter(instruction.unit for instruction in program.instructions)
    return {
        "profile": profile_of(program.config),
        "config_hash": f"{program.config.hash:016x}",
        "instructions": len(program.instructions),
        "units": {unit.name: units[unit] for unit in Unit},
        "uops": len(program.uops),
        "constant_bytes": len(program.constants),
    }


def _document(program: Program) -> dict[str, Any]:
    """A whole program, constants excepted."""
    from dataclasses import asdict

    from mlc.vdla.assembly import line_of
    from mlc.vdla.isa import unpack_uop

    uops = zip(*(field.tolist() for field in unpack_uop(program.uops, program.config)), strict=True)
    return {
        **_facts(program),
        "config": program.config.to_dict(),
        "meta": program.meta,
        "buffers": [asdict(spec) for spec in program.buffers],
        "micro_ops": [dict(zip(("dst", "src", "wgt", "first"), uop, strict=True)) for uop in uops],
        "stream": [
            {"index": at, "unit": instruction.unit.name, "text": line_of(program, at)}
            for at, instruction in enumerate(program.instructions)
        ],
    }
