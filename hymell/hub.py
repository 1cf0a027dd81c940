"""config.json from the Hugging Face hub, through huggingface_hub's own cache; weights never.

huggingface_hub is imported only inside the functions, so a report on a local or zoo model never
loads it. It reads HF_HOME and HF_TOKEN itself; HF_ENDPOINT and HF_HUB_OFFLINE are read here at
each call, because huggingface_hub reads them once, at import.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hymell.errors import HymellError

CONFIG = "config.json"
QUANT_CONFIG = "hf_quant_config.json"

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of the hub on disk, the commit it belongs to, and what the user should know of it."""

    path: Path
    commit: str
    notes: tuple[str, ...] = ()


def endpoint() -> str:
    """The hub's address: HF_ENDPOINT, or huggingface_hub's default."""
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def is_offline() -> bool:
    """True when HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE forbids the network."""
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in _TRUE


def fetch_config(repo_id: str, revision: str | None = None) -> HubFile:
    """The repository's config.json at ``revision`` (a branch, tag or commit; None: the default).

    A commit that is already in the Hugging Face cache is read from there. Otherwise the hub is
    asked once whether the cached copy is fresh; when it does not answer, the cached copy serves
    and the result carries a note. Raises HymellError, naming the id and the remedy, when neither
    gives a file.
    """
    from huggingface_hub import hf_hub_download

    _validate(repo_id)
    cached = _cached(repo_id, CONFIG, revision)
    if cached is not None and revision is not None and _COMMIT.fullmatch(revision):
        return HubFile(cached, revision)
    if is_offline():
        if cached is None:
            raise HymellError(
                f"{_at(repo_id, revision)} is not in the Hugging Face cache and HF_HUB_OFFLINE is "
                "set; unset it once to fetch config.json, or give a local config.json"
            )
        return HubFile(cached, cached.parent.name)
    try:
        _ask(repo_id, revision)
        with _no_progress_bar():
            path = hf_hub_download(repo_id, CONFIG, revision=revision, endpoint=endpoint())
    except Exception as error:  # huggingface_hub raises its own, its HTTP client's and OSError
        if cached is not None and _is_transient(error):
            note = f"{repo_id}: {_reason(error)}; used the copy in the Hugging Face cache"
            return HubFile(cached, cached.parent.name, (note,))
        raise _explain(error, repo_id, revision) from None
    return HubFile(Path(path), Path(path).parent.name)


def fetch_beside(repo_id: str, filename: str, commit: str) -> Path | None:
    """Another small file of the same commit, or None when the repository has none.

    Offline, only the cache is asked. Raises HymellError when the hub cannot be asked.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import RemoteEntryNotFoundError

    known = try_to_load_from_cache(repo_id, filename, revision=commit)
    if isinstance(known, str):
        return Path(known)
    if known is not None or is_offline():
        return None
    try:
        with _no_progress_bar():
            path = hf_hub_download(repo_id, filename, revision=commit, endpoint=endpoint())
    except RemoteEntryNotFoundError:  # huggingface_hub remembers this, so it is asked once
        return None
    except Exception as error:
        raise _explain(error, repo_id, commit, filename) from None
    return Path(path)


def kind_of(filenames: Iterable[str]) -> str | None:
    """What a repository or folder without config.json holds, in words, or None."""
    names = {name.rsplit("/", 1)[-1] for name in filenames}
    if "adapter_config.json" in names:
        return "an adapter; give the base model that its adapter_config.json names"
    if "model_index.json" in names:
        return "a diffusers pipeline, which hymell does not cover; give one of its sub-folders"
    if any(name.lower().endswith(".gguf") for name in names):
        return "GGUF weights; give the model that they were made from"
    if "params.json" in names:
        return "a checkpoint in its maker's own format; give its Hugging Face conversion"
    return None


def _at(repo_id: str, revision: str | None) -> str:
    return repo_id if revision is None else f"{repo_id}@{revision}"


def _validate(repo_id: str) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.errors import HFValidationError

    try:
        hf_hub_url(repo_id, CONFIG)
    except HFValidationError:
        raise HymellError(
            f"{repo_id!r} is neither a file, a folder, a known model nor a valid hub id; "
            "an id looks like 'org/name', with letters, digits, '-', '_' and '.'"
        ) from None


def _cached(repo_id: str, filename: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(repo_id, filename, revision=revision)
    return Path(path) if isinstance(path, str) else None


def _ask(repo_id: str, revision: str | None) -> None:
    """One HEAD request, so that a hub that cannot serve the file says so at once.

    hf_hub_download alone would retry timeouts, 429 and 5xx for up to several minutes.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import FileMetadataError

    metadata = get_hf_file_metadata(
        hf_hub_url(repo_id, CONFIG, revision=revision, endpoint=endpoint()),
        timeout=constants.HF_HUB_ETAG_TIMEOUT,
        endpoint=endpoint(),
    )
    if metadata.commit_hash is None:
        raise FileMetadataError("no commit in the answer")


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    group = "huggingface_hub.http_get"
    if are_progress_bars_disabled(group):
        yield
        return
    disable_progress_bars(group)
    try:
        yield
    finally:
        enable_progress_bars(group)


def _kinds(error: BaseException) -> frozenset[str]:
    """Names of the error's classes: huggingface_hub 1 raises httpx's, 2 raises httpx2's."""
    return frozenset(cls.__name__ for cls in type(error).__mro__)


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    return getattr(response, "status_code", None)


def _is_transient(error: BaseException) -> bool:
    status = _status(error)
    if status is not None:
        return status in (408, 429) or status >= 500
    return bool(_kinds(error) & {"TransportError", "FileMetadataError", "LocalEntryNotFoundError"})


def _reason(error: BaseException) -> str:
    """Why the hub did not serve the file, as a clause."""
    status = _status(error)
    if status == 429:
        return f"{endpoint()} is rate limiting this address"
    if status is not None:
        return f"{endpoint()} answered with HTTP status {status}"
    kinds = _kinds(error)
    if "TimeoutException" in kinds:
        return f"{endpoint()} did not answer in time"
    if "ConnectError" in kinds:
        return f"no connection to {endpoint()}"
    if "FileMetadataError" in kinds:
        return f"{endpoint()} does not answer like a Hugging Face hub"
    first_line = (str(error).strip().splitlines() or ["no details"])[0]
    return f"the download failed ({type(error).__name__}: {first_line})"


def _explain(
    error: BaseException, repo_id: str, revision: str | None, filename: str = CONFIG
) -> HymellError:
    """One sentence that names the id, what went wrong and the remedy."""
    from huggingface_hub import errors

    where = f"{endpoint()}/{repo_id}"
    if isinstance(error, errors.GatedRepoError):
        return HymellError(
            f"{repo_id} is gated: accept its licence at {where} and set HF_TOKEN to a token of "
            "that account"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return HymellError(
            f"{repo_id} is not on {endpoint()}, or it is private: check the spelling, or set "
            f"HF_TOKEN if you have access{_did_you_mean(repo_id)}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return HymellError(
            f"{repo_id} has no revision {revision!r}; its branches and tags are listed at "
            f"{where}/tree/main"
        )
    if isinstance(error, errors.DisabledRepoError):
        return HymellError(f"{repo_id} was disabled by the hub; choose another model")
    if isinstance(error, errors.RemoteEntryNotFoundError):
        kind = kind_of(_listing(repo_id, revision))
        what = f"it holds {kind}" if kind else "give a model that transformers can load"
        return HymellError(f"{_at(repo_id, revision)} has no {filename}: {what}")
    remedies = {
        401: "the token was refused; set HF_TOKEN to a valid one, or unset it",
        403: f"access was refused; ask for it at {where} and set HF_TOKEN",
        429: "retry later, or set HF_TOKEN for a higher limit",
    }
    default = "check the network and HF_ENDPOINT, or give a local config.json"
    remedy = remedies.get(_status(error) or 0, default)
    return HymellError(f"{_at(repo_id, revision)}: {_reason(error)}; {remedy}")


def _did_you_mean(repo_id: str) -> str:
    from hymell import zoo

    near = zoo.suggest(repo_id)
    return f"; did you mean {' or '.join(near[:3])}?" if near else ""


def _listing(repo_id: str, revision: str | None) -> list[str]:
    """The repository's file names; empty when the hub does not give them."""
    from huggingface_hub import HfApi, constants

    try:
        info = HfApi(endpoint=endpoint()).model_info(
            repo_id, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
    except Exception:  # only makes the message less precise
        return []
    return [sibling.rfilename for sibling in info.siblings or []]
