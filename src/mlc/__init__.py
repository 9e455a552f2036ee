"""mlc: a deep-learning compiler from trained models to deployable ``module.tar`` packages."""

__version__ = "0.1.0"
