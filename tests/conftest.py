"""What holds in every test: nothing leaves the machine, and no trace of an earlier run is found."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hub_stand_in import HubStandIn
from hypothesis import settings

# huggingface_hub reads it when it is imported; tests of the hub set it back for themselves.
os.environ["HF_HUB_OFFLINE"] = "1"

# Machines that run the tests are busy: hypothesis shall judge results, not seconds.
settings.register_profile("hymell", settings(), deadline=None)
settings.load_profile("hymell")


@pytest.fixture(autouse=True, scope="session")
def _cache_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Traced graphs go to a folder that this run alone has, shared by its processes."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "traced-graphs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYMELL_CACHE_DIR", str(folder))
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    """A connection to any other machine fails the test that tries it."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address[0]):
            # A BaseException: no `except Exception` on the way can take it for a failed download.
            pytest.fail(f"a test tried to connect to {address[0]}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded)
        yield


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubStandIn]:
    """A stand-in hub with an empty cache; nothing else on the network is reachable."""
    from huggingface_hub import close_session, constants

    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 5)
    close_session()
    with HubStandIn() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server
    close_session()
