"""`hymell doctor`: what was found on this machine, as a page and as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from hymell.analysis.machine import Board, Machine, Package
from hymell.report import units
from hymell.report.document import Column, Document, Fact, Facts, Notes, Section, Table, View

_SYSTEMS = (Column("gpu", "GPU", whole=True), Column("fitted", "Engine and version"))
_BOARDS = (
    Column("name", "GPU", whole=True),
    Column("memory_mib", "MiB", units.count, right=True),
    Column("driver", "Driver"),
    Column("sheet", "Data sheet", code=True),
    Column("libraries", "Calibrations"),
)


def machine_view(machine: Machine) -> View:
    """Versions, cache, devices, fitted files, measurements, and what needs mending."""
    data = asdict(machine) | {
        "cache": {
            "path": str(machine.cache.path),
            "entries": machine.cache.entries,
            "bytes": machine.cache.bytes,
        },
        "data": None if machine.data is None else str(machine.data),
        "calibrations": [{"gpu": gpu, "library": name} for gpu, name in machine.calibrations],
        "systems": [
            {"gpu": gpu, "engine": engine, "version": version}
            for gpu, engine, version in machine.systems
        ],
    }
    sections: list[Section] = [
        Facts("", _facts(machine)),
        Table("Systems", _SYSTEMS, tuple(_by_gpu(machine.systems))),
        Facts("Packages", tuple(map(_package, machine.packages))),
    ]
    if machine.boards:
        sections.append(Table("GPUs here", _BOARDS, tuple(map(_board, machine.boards))))
    if machine.problems:
        sections.append(Notes("To mend", machine.problems))
    records = [{"name": p.name, "version": p.version} for p in machine.packages]
    return View(Document("hymell doctor", tuple(sections)), data, records)


def _facts(machine: Machine) -> tuple[Fact, ...]:
    gpus = len({gpu for gpu, _ in machine.calibrations})
    return (
        Fact("hymell", machine.hymell),
        Fact("Python", machine.python, machine.platform),
        Fact(
            "Cache",
            str(machine.cache.path),
            f"{units.count(machine.cache.entries)} graphs, {units.data(machine.cache.bytes)}",
        ),
        Fact("Calibrations", str(len(machine.calibrations)), f"of {gpus} GPUs: hymell accuracy"),
        Fact("Systems", str(len(machine.systems)), "engines fitted on whole runs, below"),
        Fact("GPUs here", str(len(machine.boards)), "" if machine.boards else "none found"),
        Fact(
            "Measurements",
            "none" if machine.data is None else str(machine.data),
            "only fitting and judging need them",
        ),
        Fact("State", "fine" if not machine.problems else f"{len(machine.problems)} to mend"),
    )


def _by_gpu(systems: tuple[tuple[str, str, str], ...]) -> Iterator[dict[str, str]]:
    """The engines with their versions that were fitted on each GPU."""
    for gpu in sorted({gpu for gpu, _, _ in systems}):
        fitted = ", ".join(f"{engine} {version}" for on, engine, version in systems if on == gpu)
        yield {"gpu": gpu, "fitted": fitted}


def _package(package: Package) -> Fact:
    if package.version != "none":
        return Fact(package.name, package.version)
    remark = f"pip install 'hymell[{package.extra}]'" if package.extra else "needed"
    return Fact(package.name, "none", remark)


def _board(board: Board) -> dict[str, object]:
    return {
        "name": board.name,
        "memory_mib": board.memory_mib,
        "driver": board.driver,
        "sheet": board.sheet or None,
        "libraries": ", ".join(board.libraries) or "none of its own",
    }
