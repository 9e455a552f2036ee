"""``python -m mlc`` is ``mlc``."""

from mlc.cli.main import main

main()
