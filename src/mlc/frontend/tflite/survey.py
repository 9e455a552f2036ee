"""What is in a TFLite model: operators, parameters, types, read off without converting anything."""

from __future__ import annotations

import os
from collections import Counter
from math import prod

from mlc.errors import MlcError
from mlc.frontend.common.importing import naming
from mlc.frontend.limits import Limits
from mlc.frontend.survey import Survey, by_count
from mlc.frontend.tflite.model import TensorDef, read_model
from mlc.frontend.tflite.types import element_type, type_name


def survey_tflite(path: str | os.PathLike[str], limits: Limits) -> Survey:
    """Survey a file.

    Raises:
        ImportModelError: it is no TFLite model, is damaged, or is beyond a limit.
    """
    with naming(os.fspath(path)):
        model = read_model(path, limits)
    main = model.subgraphs[0]
    counts = Counter(f"custom.{o.name}" if o.custom else o.name for graph in model.subgraphs for o in graph.operators)
    stored = [t for graph in model.subgraphs for t in graph.tensors if t.stored]
    return Survey(
        format="tflite",
        name=main.name,
        producer=model.description,
        inputs=tuple((main.tensors[k].name, _type_text(main.tensors[k])) for k in main.inputs),
        outputs=tuple((main.tensors[k].name, _type_text(main.tensors[k])) for k in main.outputs),
        operators=by_count(counts),
        parameters=sum(prod(t.shape) for t in stored),
        parameter_bytes=sum(t.data.size for t in stored),
        versions={"tflite": model.version},
    )


def _type_text(tensor: TensorDef) -> str:
    """A declared type, e.g. ``f32[?,224,224,3]``."""
    try:
        name = element_type(tensor.type, tensor.where).name
    except MlcError:
        name = type_name(tensor.type)
    dims = ("?" if n < 0 else str(n) for n in tensor.signature or tensor.shape)
    return f"{name}[{','.join(dims)}]"
