"""How many examples a property test tries.

``pytest --hypothesis-profile=fuzz`` draws fifty times as many, at random; without it every run draws the same ones.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_PHASES = [Phase.explicit, Phase.generate, Phase.shrink]  # explanations take minutes where an example takes a second


def register_profiles() -> None:
    """Make ``steady`` (the default) and ``fuzz`` known; called once, before any test module is imported."""
    common = settings(deadline=None, database=None, phases=_PHASES, suppress_health_check=_SLOW)
    settings.register_profile("steady", common, derandomize=True)
    settings.register_profile("fuzz", common, max_examples=5000)
    settings.load_profile("steady")


def examples(count: int) -> settings:
    """Settings of a property test that tries ``count`` examples in an ordinary run."""
    return settings(max_examples=count * settings().max_examples // 100)
