"""`python -m moebox` is the console script."""

import sys

from moebox.cli import main

sys.exit(main())
