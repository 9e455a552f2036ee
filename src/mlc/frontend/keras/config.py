"""Settings of layers, read from JSON with the type that each must have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from mlc.errors import ImportModelError, UnsupportedError

_MISSING = object()


class Config(Mapping[str, Any]):
    """The settings of one layer.

    Args:
        values: as the file has them.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key, default)
        if value is _MISSING:
            raise ImportModelError(f"setting {key!r} is missing")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """A truth value.

        Raises:
            ImportModelError: it is something else.
        """
        value = self._get(key, default)
        if not isinstance(value, (bool, int)):
            raise ImportModelError(f"setting {key!r} is {value!r:.60}, true or false is needed")
        return bool(value)

    def whole(self, key: str, default: Any = _MISSING) -> int:
        """An integer.

        Raises:
            ImportModelError: it is something else.
        """
        value = self._get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ImportModelError(f"setting {key!r} is {value!r:.60}, an integer is needed")
        return value

    def number(self, key: str, default: Any = _MISSING) -> float:
        """A finite number; Keras 2 wraps some in lists and dictionaries.

        Raises:
            ImportModelError: it is something else.
        """
        value = plain(self._get(key, default))
        while isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise ImportModelError(f"setting {key!r} is {value!r:.60}, a number is needed")
        return float(value)

    def ints(self, key: str, count: int | None = None, default: Any = _MISSING) -> tuple[int, ...]:
        """Integers; one stands for ``count`` equal ones.

        Raises:
            ImportModelError: it is something else, or not as many.
        """
        value = self._get(key, default)
        if isinstance(value, int) and not isinstance(value, bool):
            value = [value] * (count or 1)
        if not isinstance(value, (list, tuple)) or any(type(n) is not int for n in value):
            raise ImportModelError(f"setting {key!r} is {value!r:.60}, integers are needed")
        if count is not None and len(value) != count:
            raise ImportModelError(f"setting {key!r} is {value!r:.60}, {count} integers are needed")
        return tuple(value)

    def positive(self, key: str, count: int | None = None, default: Any = _MISSING) -> tuple[int, ...]:
        """Integers of 1 or more; one stands for ``count`` equal ones.

        Raises:
            ImportModelError: it is something else.
        """
        found = self.ints(key, count, default)
        if any(n < 1 for n in found):
            raise ImportModelError(f"setting {key!r} is {list(found)}, it must be positive")
        return found

    def text(self, key: str, choices: Sequence[str], default: Any = _MISSING) -> str:
        """A word out of some, in any case of letters.

        Raises:
            UnsupportedError: it is none of them.
        """
        value = self._get(key, default)
        word = value.lower() if isinstance(value, str) else value
        if word not in choices:
            raise UnsupportedError(f"setting {key!r} is {value!r:.60}", hint=f"supported: {', '.join(choices)}")
        return str(word)

    def refuse(self, key: str, *allowed: Any) -> None:
        """Refuse a setting unless it is absent, ``None``, false, or one of ``allowed``.

        Raises:
            UnsupportedError: it is set.
        """
        value = self._values.get(key)
        if value and value not in allowed:
            raise UnsupportedError(f"setting {key!r} is {value!r:.60}")

    def channels_last(self) -> bool:
        """Whether channels are the last axis.

        Raises:
            ImportModelError: the setting is no format of data.
        """
        value = self._values.get("data_format") or "channels_last"
        if value not in ("channels_last", "channels_first"):
            raise ImportModelError(f"setting 'data_format' is {value!r:.60}")
        return bool(value == "channels_last")


def plain(value: Any) -> Any:
    """What stands in a wrapper that Keras puts around arrays and numbers."""
    for _ in range(4):
        if not isinstance(value, dict):
            break
        if value.get("class_name") in ("__numpy__", "__tensor__") and isinstance(value.get("config"), dict):
            value = value["config"].get("value")
        elif value.get("type") == "ndarray":
            value = value.get("value")
        else:
            break
    return value
