"""hymell: what a model's inference costs on a GPU, before anyone rents the GPU."""

from __future__ import annotations

from hymell._version import __version__

__all__ = ["__version__"]
