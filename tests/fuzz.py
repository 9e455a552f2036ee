"""How many examples a property test tries.

A property test names a count for ``make test-all``; ``make test`` tries a quarter of them, the first ones, and draws
the same ones in every run. ``pytest --hypothesis-profile=fuzz`` draws fifty times as many as named, at random.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_PHASES = [Phase.explicit, Phase.generate, Phase.shrink]  # explanations take minutes where an example takes a second


def register_profiles() -> None:
    """Make ``quick`` (the default), ``steady`` and ``fuzz`` known; called once, before any test module is imported."""
    common = settings(deadline=None, database=None, phases=_PHASES, suppress_health_check=_SLOW)
    settings.register_profile("quick", common, derandomize=True, max_examples=25)
    settings.register_profile("steady", common, derandomize=True, max_examples=100)
    settings.register_profile("fuzz", common, max_examples=5000)
    settings.load_profile("quick")


def examples(count: int) -> settings:
    """Settings of a property test that tries ``count`` examples under the profile ``steady``."""
    return settings(max_examples=max(1, count * settings().max_examples // 100))
