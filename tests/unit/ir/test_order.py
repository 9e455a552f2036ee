"""The order of what hangs together."""

from collections.abc import Sequence

from mlc.ir.order import post_order


def test_everything_comes_after_what_is_below_it_first_ones_first() -> None:
    below: dict[str, Sequence[str]] = {"a": "bc", "b": "d", "c": "de", "d": "", "e": "", "f": "ea"}
    assert post_order("a", below.__getitem__) == list("dbeca")
    assert post_order("fc", below.__getitem__) == list("edbcaf")
    assert post_order("", below.__getitem__) == []


def test_each_is_asked_once_and_a_long_chain_is_no_recursion() -> None:
    asked: list[int] = []

    def below(n: int) -> list[int]:
        asked.append(n)
        return [n - 1, n - 2] if n > 1 else []

    numbers = list(range(5000))
    order = post_order([numbers[-1]], lambda n: [numbers[k] for k in below(n)])
    assert order[-1] == 4999
    assert len(order) == len(asked) == 5000
