"""Work that an engine does once at load time instead of at every step."""

from __future__ import annotations

from dataclasses import replace

from hymell.op_registry.plan import Plan

#: Inputs that hold positions or masks: known to the engine before the step begins.
_POSITIONS = ("position_ids", "cache_position", "attention_mask", "token_type_ids")


def fold_constants(plan: Plan) -> Plan:
    """Drop ops that depend on neither the tokens nor the cache: rotary tables, masks, exp(A_log).

    Serving engines compute them at load time; their results are read like tables.
    """
    live = [False] * len(plan.ops)
    for op in plan.ops:
        live[op.id] = any(
            operand.kind == "state"
            or (operand.kind == "input" and operand.name not in _POSITIONS)
            or (operand.kind == "op" and live[operand.op])
            for operand in op.inputs
        ) or any(live[writer] for writer in plan.flow.depends[op.id])
    dead = frozenset(op.id for op in plan.ops if not live[op.id] and plan.primitives[op.id])
    kept = [group for group in plan.groups if not dead.issuperset(group.ops)]
    return replace(plan.with_groups(kept), tables=plan.tables | dead)
