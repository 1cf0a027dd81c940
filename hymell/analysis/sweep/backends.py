"""Where the architectures of a sweep are priced: here, in processes of this machine, or on Ray.

Each backend gives the outcomes in the order of the tasks, so that all give the same table.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, TypeAlias

from hymell._version import __version__
from hymell.analysis.sweep.points import Outcome, Setup, Task, Tracer, evaluate
from hymell.errors import HymellError

#: Prices a task; made of module-level functions and plain values, so that it travels.
Work: TypeAlias = Callable[[Task], Outcome]
Backend: TypeAlias = Callable[[Iterable[Task]], Iterator[Outcome]]

BACKENDS: Final = ("local", "ray")

#: Tasks under way per worker: enough that none waits, few enough that an interrupt is quick.
_AHEAD = 2

_CONNECT_S = 5.0


def backend_of(
    name: str, setup: Setup, tracer: Tracer, *, workers: int = 1, address: str | None = None
) -> Backend:
    """The backend of a name in `BACKENDS`; ``workers`` are processes of this machine.

    Raises HymellError for an unknown name, a package that is missing, fewer than one worker, and a
    Ray address that does not answer.
    """
    work = partial(evaluate, setup, tracer)
    if workers < 1:
        raise HymellError(f"workers must be 1 or more, not {workers}")
    if name not in BACKENDS:
        raise HymellError(f"the backend is {' or '.join(BACKENDS)}, not {name!r}")
    if name == "ray":
        _require("ray", "ray")
        if address is not None:
            check_answers(address)
        return partial(_on_ray, work, address)
    if address is not None:
        raise HymellError("an address belongs to a Ray cluster: add --backend ray")
    if workers > 1:
        _require("joblib", "sweep")
        return partial(_on_processes, work, workers)
    return partial(_here, work)


def _require(package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise HymellError(f"this needs {package}; install it with: pip install 'hymell[{extra}]'")


def _here(work: Work, tasks: Iterable[Task]) -> Iterator[Outcome]:
    return map(work, tasks)


def _on_processes(work: Work, workers: int, tasks: Iterable[Task]) -> Iterator[Outcome]:
    """joblib's process pool; each process prices one task at a time, on one core."""
    from joblib import Parallel, delayed, parallel_config  # type: ignore[import-untyped]

    call = delayed(_quiet)
    with parallel_config(backend="loky", inner_max_num_threads=1):
        outcomes = Parallel(
            n_jobs=workers, return_as="generator", batch_size=1, pre_dispatch=_AHEAD * workers
        )(call(work, task) for task in tasks)
        try:
            yield from outcomes
        finally:
            # Closing it cancels what has not begun, as after Ctrl-C.
            with contextlib.suppress(Exception):
                outcomes.close()


def _quiet(work: Work, task: Task) -> Outcome:
    """A task in a process of its own, which Ctrl-C does not reach: the first process ends it."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return work(task)


def _on_ray(work: Work, address: str | None, tasks: Iterable[Task]) -> Iterator[Outcome]:
    """A Ray cluster; with no address one that is started here and ends with the sweep."""
    import ray

    started = not ray.is_initialized()
    if started:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # whatever ray says of a cluster it cannot join
            where = "Ray did not start here" if address is None else f"no Ray cluster at {address}"
            raise HymellError(f"{where}: {_first_line(error)}") from None
    try:
        yield from _ray_outcomes(ray, work, tasks)
    finally:
        if started:
            ray.shutdown()


def _ray_outcomes(ray: Any, work: Work, tasks: Iterable[Task]) -> Iterator[Outcome]:
    remote = ray.remote(num_cpus=1)(_on_a_node)
    held = ray.put(work)
    cores = int(sum(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]))
    if cores < 1:
        raise HymellError("the Ray cluster has no CPUs to run on; add a node with some")
    under_way: deque[Any] = deque()
    waiting = iter(tasks)
    while True:
        while len(under_way) < _AHEAD * cores and (task := next(waiting, None)) is not None:
            under_way.append(remote.remote(held, task, __version__))
        if not under_way:
            return
        try:
            yield ray.get(under_way.popleft())
        except HymellError:
            raise
        except ray.exceptions.RayTaskError as error:
            cause = error.as_instanceof_cause()
            if isinstance(cause, HymellError):
                raise HymellError(str(error.cause)) from None
            raise HymellError(f"a Ray worker failed: {_last_line(error)}") from None
        except ray.exceptions.RayError as error:
            raise HymellError(f"the Ray cluster failed: {_first_line(error)}") from None


def _on_a_node(work: Work, task: Task, version: str) -> Outcome:
    """A task on a node of a cluster, which must have the hymell of the one that asks."""
    if version != __version__:
        raise HymellError(
            f"a Ray node has hymell {__version__}, this machine {version}; install the same on both"
        )
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return work(task)


def check_answers(address: str) -> None:
    """Raise HymellError where nothing listens at a ``host:port``; "auto" is left to Ray."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto" or address == "local":
        return
    if not host or not port.isdigit():
        raise HymellError(f"the address {address!r} is not HOST:PORT, e.g. 10.0.0.1:6379, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error or "no answer"
        raise HymellError(
            f"no Ray cluster answers at {address} ({why}); start one with `ray start --head`, or "
            "correct the address"
        ) from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
