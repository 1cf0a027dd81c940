"""Questions that take many prices to answer: over lengths, over traffic."""

from __future__ import annotations
