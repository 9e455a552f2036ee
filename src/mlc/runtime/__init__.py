"""Running compiled models: the package format, the executor, and the C header. Knows nothing of the compiler."""

from __future__ import annotations

from mlc.runtime.atomic import atomic_write
from mlc.runtime.cheader import c_example, c_header, header_name, python_example
from mlc.runtime.device_spec import DeviceCall, DeviceSpec, PlaceSpec
from mlc.runtime.emulated import emulate_module
from mlc.runtime.layout import Physical
from mlc.runtime.manifest import FORMAT_VERSION, Manifest, MemberSpec, MemorySpec, ModelSpec, StepSpec, TargetSpec
from mlc.runtime.module import Module, StepTime, load_module
from mlc.runtime.outside import OutsideModule
from mlc.runtime.package import Package, open_package, write_package
from mlc.runtime.params import ParamPlan, plan_params
from mlc.runtime.tensor_spec import ALIGNMENT, ParamSpec, ResultSpec, TensorSpec

__all__ = [
    "ALIGNMENT",
    "FORMAT_VERSION",
    "DeviceCall",
    "DeviceSpec",
    "Manifest",
    "MemberSpec",
    "MemorySpec",
    "ModelSpec",
    "Module",
    "OutsideModule",
    "Package",
    "ParamPlan",
    "ParamSpec",
    "Physical",
    "PlaceSpec",
    "ResultSpec",
    "StepSpec",
    "StepTime",
    "TargetSpec",
    "TensorSpec",
    "atomic_write",
    "c_example",
    "c_header",
    "emulate_module",
    "header_name",
    "load_module",
    "open_package",
    "plan_params",
    "python_example",
    "write_package",
]
