"""Known models by hub id or short name (`find`), and attention variants as runnable modules.

The modules are in `hymell.zoo.attention`, the only part of this room that imports torch.
"""

from __future__ import annotations

from hymell.zoo.models import ZooModel, find, list_models, suggest

__all__ = ["ZooModel", "find", "list_models", "suggest"]
