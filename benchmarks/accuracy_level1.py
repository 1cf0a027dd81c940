"""How accurate the level-1 estimators are: docs/accuracy.md, docs/accuracy.json, docs/accuracy/.

Every estimator is fitted without some whole shapes, and without the longest sizes, and judged on
them; the data-sheet roofline and HYMELL's own forms stand beside it, and above all the goals. Needs
the measurements (docs/data.md) and, for the pictures, matplotlib. Results are kept per op, GPU,
library and hold-out, so that a run that was stopped goes on where it was: the first takes hours on
two cores, one without changes minutes.

    python benchmarks/accuracy_level1.py [--gpu NAME ...] [--op OP ...] [--seeds N] [--cache DIR]

The parts are in benchmarks/accuracy.
"""

from __future__ import annotations

import sys

from accuracy.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
