"""Measurements: what others published, brought to one shape, for fitting and for judging.

`readers.read` gives one tidy table, `data.locate` and `data.summary` say what is on this machine.
Nothing here is needed to price a model: pandas is imported, torch and transformers are not.
"""

from __future__ import annotations
