"""The boundary of a worker: whatever goes wrong becomes an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mlc.errors import DeviceError, MlcError, PackageError, ScheduleError
from mlc.records.measurement import Failure
from mlc.tuning.measure.candidate import CandidateError
from mlc.tuning.measure.frames import Message

Answer = tuple[dict[str, Any], bytes]


def guarded(message: Message, work: Callable[[Message], Answer]) -> Answer:
    """What a worker answers, with the number of the question and the seconds that it took."""
    start = time.monotonic()
    try:
        header, body = work(message)
    except ScheduleError as error:
        header, body = _failed(Failure.REFUSED, error), b""
    except CandidateError as error:
        header, body = _failed(error.failure, error), b""
    except DeviceError as error:
        header, body = {**_failed(Failure.RUN_CRASH, error), "hint": error.hint}, b""
    except PackageError as error:
        header, body = _failed(Failure.BUILD_ERROR, error), b""
    except MemoryError as error:
        header, body = _failed(Failure.BUILD_MEMORY, error), b""
    except MlcError as error:
        header, body = _failed(Failure.BUILD_ERROR, error), b""
    except Exception as error:
        header, body = _failed(Failure.BUILD_ERROR, f"{type(error).__name__}: {error}"), b""
    return {**header, "id": message.header["id"], "took": time.monotonic() - start}, body


def _failed(failure: Failure, error: object) -> dict[str, Any]:
    lines = str(error).strip().splitlines()
    return {"failure": failure.value, "message": (lines[0] if lines else "")[:300]}
