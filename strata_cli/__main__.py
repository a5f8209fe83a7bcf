"""`python -m strata_cli`: the same as `strata`."""

import sys

from strata_cli.main import main

if __name__ == "__main__":
    sys.exit(main())
