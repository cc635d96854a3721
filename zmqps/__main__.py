"""`python -m zmqps`: the same as `zmqps`."""

import sys

from zmqps.cli import main

sys.exit(main())
