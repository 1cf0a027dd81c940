"""Temporary changes to objects that other code owns, always undone."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

_ABSENT = object()


class Patches:
    """Attribute and mapping changes, undone in reverse order on exit, exceptions included."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Patches:
        return self

    def __exit__(self, *exc_info: object) -> None:
        while self._undo:
            self._undo.pop()()

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name``; on exit the owner's own value returns, or the name goes again."""
        own = vars(owner)
        previous = own.get(name, _ABSENT)
        setattr(owner, name, value)
        if previous is _ABSENT:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, previous))

    def item(self, mapping: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Set ``mapping[key]``; on exit the earlier entry returns, or the key goes again."""
        previous = mapping.get(key, _ABSENT)
        mapping[key] = value
        if previous is _ABSENT:
            self._undo.append(lambda: mapping.__delitem__(key))
        else:
            self._undo.append(lambda: mapping.__setitem__(key, previous))

    def on_exit(self, action: Callable[[], None]) -> None:
        """Run ``action`` on exit, in its turn."""
        self._undo.append(action)
