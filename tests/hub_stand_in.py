"""A local HTTP server that speaks the part of the Hugging Face hub's API that hymell uses.

Routes: ``HEAD|GET /{repo}/resolve/{revision}/{file}`` and ``GET /api/models/{repo}``. Files are
served with the ETag, commit and size headers that huggingface_hub caches by; a repository can be
told to fail in one of the ways that the real hub fails (`FAILURES`). Every request is recorded.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import unquote

#: Failure -> (HTTP status, headers). "stall" holds the request until the server closes.
FAILURES: dict[str, tuple[int, dict[str, str]]] = {
    "missing": (404, {"X-Error-Code": "RepoNotFound"}),
    "missing_or_private": (401, {"X-Error-Code": "RepoNotFound"}),
    "gated": (403, {"X-Error-Code": "GatedRepo"}),
    "gated_without_token": (401, {"X-Error-Code": "GatedRepo"}),
    "bad_token": (401, {"X-Error-Message": "Invalid credentials in Authorization header"}),
    "forbidden": (403, {}),
    "disabled": (403, {"X-Error-Message": "Access to this resource is disabled."}),
    "rate_limited": (429, {"Retry-After": "300"}),
    "server_error": (503, {}),
    "not_a_hub": (200, {}),
    "stall": (0, {}),
}


@dataclass(frozen=True)
class Request:
    """One request as the server saw it."""

    method: str
    path: str
    token: str | None


@dataclass
class Repository:
    """Files by name, the commit they belong to, what went before, how requests fail, if they do."""

    files: dict[str, bytes] = field(default_factory=dict)
    commit: str = "0" * 40
    failure: str | None = None
    before: Repository | None = None

    def at(self, revision: str) -> Repository | None:
        """The state at a commit, at "main" the newest; None where there is no such revision."""
        if revision in ("", "main", self.commit):
            return self
        return None if self.before is None else self.before.at(revision)


class HubStandIn:
    """The server; use as a context manager. ``url`` is what HF_ENDPOINT should be."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[Request] = []
        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> HubStandIn:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening; connections after this are refused. May be called twice."""
        self.released.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def publish(self, repo: str, files: Mapping[str, object]) -> str:
        """Put a new commit online and return it; values that are not bytes become JSON."""
        content = {
            name: value if isinstance(value, bytes) else json.dumps(value).encode()
            for name, value in files.items()
        }
        digest = hashlib.sha1(repr(sorted(content.items())).encode(), usedforsecurity=False)
        before = self.repositories.get(repo)
        self.repositories[repo] = Repository(content, digest.hexdigest(), before=before)
        return digest.hexdigest()

    def fail(self, repo: str, failure: str) -> None:
        """Answer every request about ``repo`` with one of `FAILURES`."""
        assert failure in FAILURES
        self.repositories.setdefault(repo, Repository()).failure = failure

    def respond(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for a path."""
        if path.startswith("/api/models/"):
            repo, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            file = None
        else:
            repo, _, rest = path.removeprefix("/").partition("/resolve/")
            revision, _, file = rest.partition("/")
        known = self.repositories.get(repo)
        if known is None:
            return *FAILURES["missing"], b""
        if known.failure is not None:
            return *FAILURES[known.failure], b"{}"
        known = known.at(revision)
        if known is None:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        if file is None:
            siblings = [{"rfilename": name} for name in known.files]
            return 200, {}, json.dumps({"id": repo, "siblings": siblings}).encode()
        headers = {"X-Repo-Commit": known.commit}
        if file not in known.files:
            return 404, {**headers, "X-Error-Code": "EntryNotFound"}, b""
        body = known.files[file]
        etag = hashlib.sha1(body, usedforsecurity=False).hexdigest()
        return 200, {**headers, "ETag": f'"{etag}"'}, body


def _handler(hub: HubStandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, with_body: bool) -> None:
            path = unquote(self.path.partition("?")[0])
            hub.requests.append(Request(self.command, path, self.headers.get("Authorization")))
            status, headers, body = hub.respond(path)
            if status == 0:
                hub.released.wait(timeout=30)
                self.close_connection = True
                return
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")  # so that a closed server is really gone
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Keep test output clean."""

    return Handler
