"""Traced graphs on disk, so that a second report of a model needs neither torch nor transformers.

One gzip file per graph under the user's cache directory (``HYMELL_CACHE_DIR`` moves it), named by
a digest of everything the graph depends on. Files appear whole (written aside, then renamed), so
any number of processes may share the directory; a file that cannot be read is dropped and the
model traced again. gzip because its checksum tells a damaged file, and unpacking takes 1-2 ms.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import logging
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from hymell._version import __version__
from hymell.errors import HymellError
from hymell.graph import FORMAT_VERSION, OpGraph

CACHE_DIR_VARIABLE = "HYMELL_CACHE_DIR"

_SUFFIX = ".graph.json.gz"
_TEMPORARY = ".graph.tmp"
#: Packages whose version changes what a trace sees.
_TRACED_WITH = ("torch", "transformers")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Where traced graphs are kept, how many there are and what they take on disk."""

    path: Path
    entries: int
    bytes: int


def cache_dir() -> Path:
    """The folder that holds traced graphs; it may not exist yet."""
    override = os.environ.get(CACHE_DIR_VARIABLE)
    if override:
        return Path(override).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("hymell", appauthor=False))


def key_of(config: Mapping[str, Any], **extras: Any) -> str:
    """The digest under which the graph of a model is kept: 64 hex digits.

    ``config`` is the model's config content, ``extras`` the trace options that change the graph.
    The versions of hymell, of the graph format and of what hymell traces with count too; they are
    read from the package metadata, nothing is imported.
    """
    content = {
        "config": config,
        "extras": extras,
        "hymell": __version__,
        "format": FORMAT_VERSION,
        "versions": {name: package_version(name) for name in _TRACED_WITH},
    }
    text = json.dumps(_plain(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=32)
def package_version(name: str) -> str:
    """Version of an installed package, "none" when it is not installed; imports nothing of it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def get(key: str) -> OpGraph | None:
    """The graph kept under ``key``, or None; an entry that cannot be read is removed."""
    path = _entry(key)
    try:
        return OpGraph.from_json(gzip.decompress(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, EOFError, zlib.error, HymellError) as error:
        _logger.debug("dropping the unreadable cache entry %s: %s", path, error)
        with contextlib.suppress(OSError):
            path.unlink()
        return None


def put(key: str, graph: OpGraph) -> None:
    """Keep a graph under ``key``.

    A cache directory that cannot be written costs a warning (once per directory), never an error.
    """
    content = gzip.compress(graph.to_json().encode(), compresslevel=1, mtime=0)
    path = _entry(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(path, content)
    except OSError as error:
        _warn_unwritable(path.parent, error.strerror or str(error))


def info() -> CacheInfo:
    """What the cache holds now."""
    sizes = list(_sizes(_SUFFIX))
    return CacheInfo(cache_dir(), len(sizes), sum(size for _, size in sizes))


def clear() -> int:
    """Remove every kept graph, and what interrupted writers left; returns how many graphs.

    Raises HymellError when an entry cannot be removed.
    """
    removed = 0
    for suffix in (_SUFFIX, _TEMPORARY):
        for path, _ in list(_sizes(suffix)):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise HymellError(
                    f"cannot remove {path} from the cache: {error.strerror or error}; "
                    f"check its permissions or set {CACHE_DIR_VARIABLE} to another folder"
                ) from None
            removed += suffix == _SUFFIX
    return removed


def _entry(key: str) -> Path:
    return cache_dir() / f"{key}{_SUFFIX}"


def _write_whole(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=path.name[:16], suffix=_TEMPORARY, dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _sizes(suffix: str) -> Iterator[tuple[Path, int]]:
    """Files of the cache directory whose name ends so; one that vanishes meanwhile is passed."""
    try:
        paths = [path for path in cache_dir().iterdir() if path.name.endswith(suffix)]
    except OSError:
        return
    for path in paths:
        with contextlib.suppress(OSError):
            yield path, path.stat().st_size


@lru_cache(maxsize=32)
def _warn_unwritable(directory: Path, reason: str) -> None:
    _logger.warning(
        "cannot write to the cache directory %s (%s): models are traced anew each time; "
        "set %s to a folder that can be written",
        directory,
        reason,
        CACHE_DIR_VARIABLE,
    )


def _plain(value: Any) -> Any:
    """Content as JSON can hold it, the same for equal content whatever its order in memory."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=repr)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return [type(value).__qualname__, str(value)]
