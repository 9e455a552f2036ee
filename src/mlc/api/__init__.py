"""The Python face of mlc: load a model, compile it, run the package. Nothing here prints or exits.

>>> import mlc
>>> model = mlc.load("resnet18.onnx", dims={"batch": 1})       # doctest: +SKIP
>>> package = mlc.compile(model, target="x86")                 # doctest: +SKIP
>>> package.save("resnet18.tar")                               # doctest: +SKIP
>>> outputs = package.load().run({"data": image})              # doctest: +SKIP
"""

from __future__ import annotations

from mlc.api.device_code import device_kernels, device_listing
from mlc.api.estimates import KernelEstimate, estimates
from mlc.api.machines import TargetInfo, devices, targets
from mlc.api.models import Model, load, survey
from mlc.api.packages import Package, Report, assembly, compile, pass_names
from mlc.api.quantization import LayerError, Quantization, check_calibration, quantize
from mlc.api.training import Training, batched, train
from mlc.api.tuning import build_candidates, measure_candidates, template_names, tune, tuning_tasks
from mlc.define.network import Network as graph
from mlc.define.operator import operator
from mlc.runtime import load_module

__all__ = [
    "KernelEstimate",
    "LayerError",
    "Model",
    "Package",
    "Quantization",
    "Report",
    "TargetInfo",
    "Training",
    "assembly",
    "batched",
    "build_candidates",
    "check_calibration",
    "compile",
    "device_kernels",
    "device_listing",
    "devices",
    "estimates",
    "graph",
    "load",
    "load_module",
    "measure_candidates",
    "operator",
    "pass_names",
    "quantize",
    "survey",
    "targets",
    "template_names",
    "train",
    "tune",
    "tuning_tasks",
]
