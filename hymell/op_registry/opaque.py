"""Modules and functions that the user wants kept whole, as one op each.

A module class recorded under a name becomes the op ``hymell.opaque.<name>``; register a lowering
for that name and the estimators price it::

    import hymell

    hymell.keep_whole(MyMixer, "my_mixer")

    @hymell.lowers("hymell.opaque.my_mixer")
    def my_mixer(op, flow):
        ...
"""

from __future__ import annotations

OPAQUE_MODULES: dict[type, str] = {}


def keep_whole(module_class: type, name: str) -> None:
    """Record every instance of ``module_class`` as the single op ``hymell.opaque.<name>``.

    Raises ValueError when the name is not an identifier.
    """
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not a name for an op; use letters, digits and underscores")
    OPAQUE_MODULES[module_class] = name
