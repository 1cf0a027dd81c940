"""Walks along dependencies, shared by the rules that look for patterns."""

from __future__ import annotations

from collections.abc import Callable

from hymell.op_registry.plan import Plan


def upstream(plan: Plan, op: int, passes: Callable[[int], bool]) -> set[int]:
    """Ops whose results ``op`` needs, followed through ops for which ``passes`` holds.

    Ops that stop the walk are included, what lies behind them is not.
    """
    found: set[int] = set()
    todo = [op]
    while todo:
        for producer in plan.flow.depends[todo.pop()]:
            if producer != op and producer not in found:
                found.add(producer)
                if passes(producer):
                    todo.append(producer)
    return found


def readers(plan: Plan) -> dict[int, set[int]]:
    """Ops that need each op's result."""
    table: dict[int, set[int]] = {}
    for op in plan.ops:
        for producer in plan.flow.depends[op.id]:
            if producer != op.id:
                table.setdefault(producer, set()).add(op.id)
    return table


def downstream(op: int, table: dict[int, set[int]], passes: Callable[[int], bool]) -> set[int]:
    """The mirror image of `upstream`, over a table made by `readers`."""
    found: set[int] = set()
    todo = [op]
    while todo:
        for reader in table.get(todo.pop(), ()):
            if reader not in found:
                found.add(reader)
                if passes(reader):
                    todo.append(reader)
    return found


def launching_readers(plan: Plan) -> dict[int, set[int]]:
    """The ops that launch something and read each op's result."""
    table: dict[int, set[int]] = {}
    for op in plan.ops:
        if plan.primitives[op.id] is not None:
            for producer in plan.flow.depends[op.id]:
                if producer != op.id:
                    table.setdefault(producer, set()).add(op.id)
    return table
