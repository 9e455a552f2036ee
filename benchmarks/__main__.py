"""``python -m benchmarks``: see `benchmarks.command`."""

import sys

# The processes of engines import this file too; they shall not carry the rest.
if __name__ == "__main__":
    from benchmarks.command import main

    sys.exit(main())
