"""Code of others behind its border."""

from __future__ import annotations

import pytest

from mlc.tuning.foreign import ForeignError, ask


def _fails(error: BaseException) -> None:
    raise error


def test_whatever_is_raised_becomes_one_error() -> None:
    with pytest.raises(ForeignError, match=r"^ZeroDivisionError: by nothing$") as raised:
        ask(lambda: _fails(ZeroDivisionError("by nothing\nand more")))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert ask(lambda: 3) == 3


@pytest.mark.parametrize("error", [KeyError("an answer"), KeyboardInterrupt(), SystemExit(3)])
def test_answers_and_the_users_own_will_pass(error: BaseException) -> None:
    with pytest.raises(type(error)):
        ask(lambda: _fails(error), let=(KeyError,))
