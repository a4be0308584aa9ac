"""`make bench-dump`, or `python -m bench.dump`."""

import sys

from bench.dump import main

main(sys.argv[1:])
