"""The target ``vdla``: a host processor with the accelerator beside it.

``vdla -profile=full -host=x86 -dram_latency=60``: options that name a field of the hardware record set it; what is
neither ``-profile``, ``-config`` (a file) nor ``-host`` goes to the host's target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from mlc.errors import UsageError
from mlc.targets.base import Target, get_target
from mlc.targets.hosted import HostedTarget
from mlc.vdla.config import PROFILES, VdlaConfig, load_config, spelling
from mlc.vdla.offload import VdlaAccelerator

NAME = "vdla"
_BLOCKS = (1, 2, 4, 8, 16, 32, 64)  # channels: what one layer stores, the next one loads; any buffer's place suits them


class VdlaTarget(HostedTarget):
    """A host with the accelerator beside it.

    Args:
        host: compiles what stays on the processor.
        config: the accelerator.
        spelled: the options that say which accelerator, for messages and manifests.
    """

    def __init__(self, host: Target, config: VdlaConfig, spelled: Sequence[str] = ()) -> None:
        super().__init__(NAME, host, VdlaAccelerator(config), spelled)
        self.config = config

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The target for options of its string form.

        Raises:
            UsageError: an unknown profile, field or host, or a value that does not fit.
        """
        left = dict(options)
        host, profile, file = left.pop("host", "x86"), left.pop("profile", "full"), left.pop("config", None)
        if host == NAME:
            raise UsageError("target vdla: the host is vdla itself", hint="name a processor: -host=x86")
        fields = {key: left.pop(key) for key in options if key in PROFILES["full"].to_dict()}
        config = load_config(
            profile, file=Path(file) if file else None, overrides=[f"{key}={value}" for key, value in fields.items()]
        )
        if config.batch != 1 or config.block_in != config.block_out or config.block_in not in _BLOCKS:
            raise UsageError(
                f"target vdla: blocks of {config.block_in} and {config.block_out} channels, {config.batch} images; "
                f"models are compiled for equal blocks of {', '.join(map(str, _BLOCKS))}, one image at a time",
                hint="other records can be simulated: mlc vdla sim",
            )
        try:
            below = get_target(" ".join([host, *(f"-{key}={value}" for key, value in left.items())]))
        except UsageError as error:
            hint = f"{error.hint}; vdla itself has -profile, -config, -host, and a field of its record each"
            raise UsageError(f"target vdla: {error.message}", hint=hint) from None
        # what a file said is spelled out, so that the string alone says which accelerator it was
        nearest, others = spelling(config)
        return cls(below, config, [f"-profile={nearest}", *(f"-{key}={value}" for key, value in others.items())])
