"""Shared by the runtime's tests: native code from LLVM IR text, without any compiler of ours."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from mlc.runtime import (
    Manifest,
    MemorySpec,
    ModelSpec,
    Physical,
    ResultSpec,
    StepSpec,
    TargetSpec,
    TensorSpec,
    c_example,
    c_header,
    plan_params,
    write_package,
)
from mlc.targets.llvm.runtime import pool_ir

llvm = pytest.importorskip("llvmlite.binding")
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()


def object_of(text: str) -> bytes:
    """A relocatable object for this machine from LLVM IR text."""
    module = llvm.parse_assembly(text)
    module.verify()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        reloc="pic",
        codemodel="small",
        opt=2,
    )
    module.triple = llvm.get_default_triple()
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)


class Native:
    """An object in memory; its functions are called as ``native.call("name", restype, argtypes...)(arguments)``."""

    def __init__(self, code: bytes, symbols: list[str]) -> None:
        self._jit = llvm.create_lljit_compiler(use_jit_link=True)
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for symbol in symbols:
            builder.export_symbol(symbol)
        self._tracker = builder.link(self._jit, "native")

    def function(self, symbol: str, result: type | None, *arguments: type) -> Callable:
        return ctypes.CFUNCTYPE(result, *arguments)(self._tracker[symbol])

    def address(self, symbol: str) -> int:
        return self._tracker[symbol]


@pytest.fixture(scope="session")
def compile_ir() -> Callable[[str], bytes]:
    return object_of


@pytest.fixture(scope="session")
def load_native() -> type[Native]:
    return Native


@dataclass(frozen=True)
class Parts:
    """What ``write_package`` takes, but for the path."""

    manifest: Manifest
    params: dict[str, np.ndarray]
    members: dict[str, bytes]

    def write(self, path: Path) -> Path:
        write_package(path, self.manifest, self.params, self.members)
        return path

    def but(self, **fields: object) -> Parts:
        """The same with some fields of the manifest changed."""
        return replace(self, manifest=replace(self.manifest, **fields))


def package_of(
    text: str,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    steps: tuple[StepSpec, ...] = (),
    params: dict[str, np.ndarray] | None = None,
    workspace_bytes: int = 0,
) -> Parts:
    """A package of a model given as LLVM IR text (the thread pool is added), compiled for this machine."""
    params = params or {}
    triple = llvm.get_default_triple()
    plan = plan_params(TensorSpec(name, "f32", array.shape) for name, array in params.items())
    manifest = Manifest(
        mlc_version="0.1.0",
        target=TargetSpec("x86", triple, "x86-64", (), {"threads": "2"}),
        model=ModelSpec("hand made", "0" * 64, "a test"),
        inputs=inputs,
        outputs=outputs,
        steps=steps,
        memory=MemorySpec(workspace_bytes, plan.nbytes),
        params=plan.params,
    )
    members = {
        "graph.txt": b"y = x * w + b\n",
        "lib/model.o": object_of(pool_ir(triple) + text),
        "include/mlc_model.h": c_header(manifest).encode(),
        "examples/main.c": c_example(manifest).encode(),
    }
    return Parts(manifest, params, members)


@pytest.fixture(scope="session")
def make_package() -> Callable[..., Parts]:
    return package_of


@pytest.fixture(scope="session")
def handmade() -> Parts:
    """The model of ``handmade.ll``: y = x * w + b in two steps."""
    column_major = Physical("transpose(1,0) pad(4)", (5, 4), (("transpose", (1, 0)), ("slice", ((0, 3), (0, 5)))))
    return package_of(
        Path(__file__).with_name("handmade.ll").read_text(),
        inputs=(TensorSpec("x", "f32", (3, 5)),),
        outputs=(TensorSpec("y", "f32", (3, 5)),),
        steps=(
            StepSpec("scale", ("Mul_0",), 15, 140, (ResultSpec("t", "f32", (3, 5), "workspace", 64, 0, column_major),)),
            StepSpec("shift", ("Add_1", "Identity_2"), 15, 140, (ResultSpec("y", "f32", (3, 5), "output"),)),
        ),
        params={"w": np.arange(1, 6, dtype=np.float32), "b": np.full(5, 0.5, np.float32)},
        workspace_bytes=144,
    )


@pytest.fixture(scope="session")
def handmade_tar(handmade: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of ``handmade``, for tests that only read it."""
    return handmade.write(tmp_path_factory.mktemp("handmade") / "module.tar")
