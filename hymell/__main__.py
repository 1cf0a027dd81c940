"""``python -m hymell`` is the ``hymell`` command."""

from __future__ import annotations

import sys

from hymell.cli import main

sys.exit(main())
