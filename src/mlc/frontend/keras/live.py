"""Models that are alive in Python: saved the way Keras saves them, and read back like a file.

So a model and its file cannot be read differently. What the model's own code does is its owner's business; a class
that is not Keras's is refused by name all the same, for its code is nothing that could be compiled.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from mlc.errors import ImportModelError


def is_live_model(model: object) -> bool:
    """Whether an object is a ``keras.Model``, told without importing Keras."""
    return any(
        c.__name__ == "Model" and c.__module__.split(".")[0] in ("keras", "tf_keras", "tensorflow")
        for c in type(model).__mro__
    )


def saved_bytes(model: Any) -> bytes:
    """The bytes of a ``.keras`` file of a model.

    Raises:
        ImportModelError: Keras cannot save it.
    """
    with tempfile.TemporaryDirectory(prefix="mlc-keras-") as folder:
        path = os.path.join(folder, "model.keras")
        try:
            model.save(path)
        except Exception as error:  # whatever the code of a model's own layers raises
            raise ImportModelError(f"the model cannot be saved by Keras: {error}") from error
        with open(path, "rb") as file:
            return file.read()
