"""Which tensors of a region several GPUs share, found from what its ops do.

Engines split a layer as Megatron does (arXiv 1909.08053): the products before attention, a
recurrence or an activation by columns, the product after it by rows, whose partial results are
added up. Here the split starts at the products that project what such an op made, or that end a
block, and is followed upwards: attention asks for its heads, a recurrence for its heads and groups,
an element-wise op for what it was asked for, a weight that is asked for is split by columns. What
nobody asks for (routers, MLA's latent, norms of the residual stream) every GPU keeps whole.
"""

from __future__ import annotations

from fractions import Fraction

from hymell.dims import Size
from hymell.errors import HymellError
from hymell.graph import Op, TensorSpec
from hymell.op_registry.blocks import EMBED, HEAD
from hymell.op_registry.parts import (
    WHOLE,
    Made,
    Pieces,
    Split,
    content,
    divided,
    part,
    share_of,
    split_axis,
)
from hymell.op_registry.plan import Plan
from hymell.op_registry.primitives import (
    Attention,
    Experts,
    Gather,
    Gemm,
    Memory,
    RowReduce,
    Scan,
)
from hymell.op_registry.registry import functional
from hymell.op_registry.views import is_free, is_view

_NORMS = frozenset(("aten.native_layer_norm", "aten._fused_rms_norm", "aten.rms_norm"))
_APPEND = "hymell.kv_append"
#: Ops that work on each channel of a recurrence alone.
_CHANNELS = ("hymell.causal_conv1d", "hymell.state_update")
#: Pairs of numbers seen as one, which changes the number of elements.
_COMPLEX = ("aten.view_as_complex", "aten.view_as_real")
_TOKENS = ("input_ids", "decoder_input_ids")


def split(plan: Plan, tp: int) -> Split:
    """How ``tp`` GPUs share a region.

    Raises HymellError, naming the op, for a head count, a width or an op that cannot be split.
    """
    if not plan.region.layers:
        raise HymellError(
            f"{plan.facts.name} has no repeated layers, which are what several GPUs share; "
            "leave out --tp"
        )
    found = _Search(plan, tp)
    found.ask()
    found.follow()
    found.repeat()
    return found.split


class _Search:
    """The walk over one region: `ask` from readers to makers, `follow` from makers to readers."""

    def __init__(self, plan: Plan, tp: int) -> None:
        self.plan, self.tp = plan, tp
        self.split = Split()
        self.even: Pieces = ((Fraction(1), Fraction(1, tp)),)
        self.asked: dict[Made, list[tuple[Fraction, Pieces]]] = {}
        self.stream = residual_stream(plan)
        self.readers: dict[int, list[int]] = {}
        for op in plan.ops:
            for producer in dict.fromkeys(o.op for o in op.inputs if o.kind == "op"):
                self.readers.setdefault(producer, []).append(op.id)
        for op, primitive in zip(plan.ops, plan.primitives, strict=True):
            if isinstance(primitive, Attention):
                self.split.heads.update((primitive.heads, primitive.kv_heads))
            elif isinstance(primitive, Scan):
                self.split.heads.add(primitive.heads)
            elif op.name == _APPEND and len(op.inputs[0].spec.shape) == 4:
                self.split.heads.add(content(op.inputs[0].spec.shape[1]))
        self.split.heads.discard(1)

    # What is asked for, from the last op to the first.

    def ask(self) -> None:
        """Fill in what every op's readers need."""
        for number in self._rows():
            op = self.plan.ops[number]
            place = self._activation(op)
            width = op.inputs[place].spec.shape[-1]
            if not divided(width, Fraction(1, self.tp)):
                raise self._cannot(op, f"its {width} rows of weights do not divide by {self.tp}")
            self._ask(op, place, self.even)
        self._vocabulary()
        for op in reversed(self.plan.ops):
            needs = [self._resolve(op, i) for i in range(len(op.outputs))]
            if op.name == _APPEND:
                needs = [self._appended(op, i, need) for i, need in enumerate(needs)]
            if all(need is None or part(need) == 1 for need in needs):
                continue
            if isinstance(self.plan.primitives[op.id], Scan) or op.name in _CHANNELS:
                needs = [next(need for need in needs if need is not None)] * len(needs)
            for index, need in enumerate(needs):
                if need is not None:
                    self.split.made[op.id, index] = need
            self._pass_on(op, needs)

    def _rows(self) -> list[int]:
        """Products to split by rows: those after attention or a recurrence, and ends of blocks."""
        found: dict[int, None] = {}
        for op in self.plan.ops:
            if self._mixes(op.id):
                products = [number for number in self._below(op.id) if self._is_product(number)]
                if products:
                    self._check_heads(op)
                found |= dict.fromkeys(products)
            elif self._is_product(op.id) and self.plan.layer_of[op.id] >= 0:
                ends = not any(self._stops(number) for number in self._below(op.id))
                if ends and self._made_inside(op):
                    found[op.id] = None
        return list(found)

    def _check_heads(self, op: Op) -> None:
        primitive = self.plan.primitives[op.id]
        if isinstance(primitive, Attention):
            self._heads_held(op, primitive.heads, "attention heads", replicate=False)
        elif isinstance(primitive, Scan):
            self._heads_held(op, primitive.heads, "heads", replicate=False)

    def _below(self, start: int) -> set[int]:
        """Ops that read what ``start`` made, as far as the next product, mixer or residual add."""
        found: set[int] = set()
        todo = [start]
        layer = self.plan.layer_of[start]
        while todo:
            for reader in self.readers.get(todo.pop(), ()):
                if reader in found or reader in self.stream or self.plan.layer_of[reader] != layer:
                    continue
                found.add(reader)
                if not self._stops(reader):
                    todo.append(reader)
        return found

    def _made_inside(self, op: Op) -> bool:
        """True when a product's input comes from products and mixers of its layer alone."""
        layer = self.plan.layer_of[op.id]
        todo = [o.op for o in (op.inputs[self._activation(op)],) if o.kind == "op"]
        seen: set[int] = set()
        products = False
        while todo:
            number = todo.pop()
            if number in seen:
                continue
            seen.add(number)
            if self.plan.layer_of[number] != layer or number in self.stream:
                return False
            if self._stops(number):
                if isinstance(self.plan.primitives[number], Experts):
                    return False
                products = True
                continue
            before = self.plan.ops[number].inputs
            if any(o.kind == "input" for o in before):
                return False
            todo += [o.op for o in before if o.kind == "op"]
        return products

    def _vocabulary(self) -> None:
        """The embedding by rows of its table, the output head by columns."""
        words: set[int] = set()
        for op in self.plan.ops:
            primitive = self.plan.primitives[op.id]
            if not isinstance(primitive, Gather) or self.plan.blocks[op.id] != EMBED:
                continue
            table = self.plan.flow.weight_operand(op, 0)
            count = content(table.spec.shape[0]) if table is not None else 0
            if table is not None and self._looks_up_tokens(op, count):
                words.add(count)
                self.split.weights[table.name] = self._of_words(count)
                self.split.partial.add(op.id)
        for op in self.plan.ops:
            if not self._is_product(op.id) or self.plan.blocks[op.id] != HEAD:
                continue
            count = content(op.outputs[0].shape[-1])
            if count in words:
                self.split.gathered[op.id] = self._of_words(count)
                for position in range(len(op.inputs)):
                    operand = self.plan.flow.weight_operand(op, position)
                    if operand is not None:
                        self.split.weights[operand.name] = self._of_words(count)

    def _looks_up_tokens(self, op: Op, count: int) -> bool:
        """True for a table of ``count`` words in which tokens, or what they became, are found."""
        if any(self.plan.flow.resolve(o)[3] in _TOKENS for o in op.inputs):
            return True
        words = self.plan.facts.vocab_size
        todo = [o.op for o in op.inputs if o.kind == "op"]
        seen: set[int] = set()
        while todo and words and count >= words:
            number = todo.pop()
            if number not in seen:
                seen.add(number)
                before = self.plan.ops[number].inputs
                if any(o.name in _TOKENS for o in before):
                    return True
                todo += [o.op for o in before if o.kind == "op"]
        return False

    def _of_words(self, count: int) -> Fraction:
        """A GPU's part of a vocabulary, padded to a whole number of rows for each."""
        return Fraction(-(-count // self.tp), count)

    def _ask(self, op: Op, position: int, pieces: Pieces, share: Fraction = Fraction(1)) -> None:
        """Ask the maker of an operand for a part; weights and states are noted."""
        operand = op.inputs[position]
        if operand.kind == "op":
            self.asked.setdefault((operand.op, operand.index), []).append((share, pieces))
        elif operand.kind == "weight":
            self.split.weights[operand.name] = part(pieces)
        elif operand.kind == "state":
            self.split.states[op.id, position] = part(pieces)

    def _resolve(self, op: Op, index: int) -> Pieces | None:
        """What all readers of an output need, None where nobody asked."""
        asked = self.asked.get((op.id, index))
        if not asked:
            return None
        held = {h for _, pieces in asked for _, h in pieces}
        if len(held) == 1:
            return ((Fraction(1), held.pop()),)
        whole = {pieces for share, pieces in asked if share == 1}
        if len(whole) == 1 and len(whole) == len(asked):
            return whole.pop()
        if not whole and sum(share for share, _ in asked) == 1:
            # Readers were met last to first.
            return tuple((s * share, h) for share, ps in reversed(asked) for s, h in ps)
        raise self._cannot(op, "its readers need different parts of it")

    def _appended(self, op: Op, index: int, need: Pieces | None) -> Pieces | None:
        """Keys and values that no attention of this step reads are kept by heads all the same."""
        shape = op.inputs[index].spec.shape if index < len(op.inputs) else ()
        if need is not None or len(shape) != 4:
            return need
        return self._heads_held(op, content(shape[1]), "key and value heads")

    def _pass_on(self, op: Op, needs: list[Pieces | None]) -> None:
        """Ask an op's operands for what its outputs need."""
        primitive = self.plan.primitives[op.id]
        need = next((n for n in needs if n is not None), WHOLE)
        if op.id in self.plan.unregistered:
            raise self._cannot(op, "hymell does not know it; leave out --tp")
        if isinstance(primitive, Attention):
            self._attention(op, primitive)
        elif isinstance(primitive, Scan):
            self._scan(op, primitive)
        elif op.name == _APPEND:
            # New keys and values, then their caches; one result for each.
            for position in range(len(op.inputs)):
                wanted = needs[position % len(needs)]
                if wanted is not None:
                    self._ask(op, position, wanted)
        elif op.name in _CHANNELS:
            for position in range(len(op.inputs)):
                self._ask(op, position, need)
        elif is_view(op.name):
            self._view(op, needs)
        elif is_free(op.name):
            return
        elif isinstance(primitive, Gemm):
            self._columns(op, primitive, need)
        elif isinstance(primitive, Gather) and primitive.from_weight:
            self._ask(op, 0, need)
        elif isinstance(primitive, Memory | RowReduce):
            self._element_wise(op, next(i for i, n in enumerate(needs) if n is not None), need)
        else:
            raise self._cannot(op, "no rule says how its result is shared")

    def _attention(self, op: Op, primitive: Attention) -> None:
        keys = self._heads_held(op, primitive.kv_heads, "key and value heads")
        for position, operand in enumerate(op.inputs):
            if position in (1, 2):
                self._ask(op, position, keys)
            elif position == 0 or primitive.heads in operand.spec.shape[:2]:
                self._ask(op, position, self.even)

    def _scan(self, op: Op, scan: Scan) -> None:
        out = op.outputs[0].shape
        flat = (scan.heads * scan.value_dim, scan.heads * scan.key_dim)
        place = next((i for i, s in enumerate(out) if content(s) in (scan.heads, *flat)), 0)
        for position, operand in enumerate(op.inputs):
            shape = operand.spec.shape
            axis = place
            if operand.kind == "state" or len(shape) <= place or shape[0] != out[0]:
                axis = next((i for i, s in enumerate(shape) if content(s) == scan.heads), 0)
            count = content(shape[axis])
            if count in (scan.heads, *flat):
                self._ask(op, position, self.even)
            elif any(s in (scan.key_dim, scan.value_dim) and s != 1 for s in shape[axis + 1 :]):
                self.split.heads.add(count)
                self._ask(op, position, self._heads_held(op, count, "groups"))

    def _heads_held(self, op: Op, count: int, what: str, *, replicate: bool = True) -> Pieces:
        """A GPU's part of ``count`` heads: at least one of them, where heads may be repeated."""
        if count % self.tp == 0:
            return self.even
        if replicate and count and self.tp % count == 0:
            return ((Fraction(1), Fraction(1, count)),)
        raise self._cannot(op, f"its {count} {what} do not divide by {self.tp}")

    def _view(self, op: Op, needs: list[Pieces | None]) -> None:
        """Same elements: the same part. A slice asks for its share, an expansion for its source."""
        source = op.inputs[0].spec
        split = next(need for need in needs if need is not None)
        # Pieces in the order of the outputs; `_resolve` turns the order of asking around.
        for index in reversed(range(len(op.outputs))):
            need, out = needs[index], op.outputs[index]
            share = share_of(out, source)
            if functional(op.name) in _COMPLEX or self._keeps_axis(source, out, split):
                share = Fraction(1)
            if need is None:
                # A sibling of a split piece that is read whole.
                if share < 1:
                    self._ask(op, 0, WHOLE if self._is_read(op, index) else self.even, share)
            elif share > 1:
                self._ask(op, 0, self._unexpanded(op, index, need))
            else:
                self._ask(op, 0, need, share)

    def _keeps_axis(self, source: TensorSpec, out: TensorSpec, need: Pieces) -> bool:
        """True for a slice along another axis than the one that the GPUs share."""
        if len(source.shape) != len(out.shape):
            return False
        axis = split_axis(out, part(need), self.split.heads)
        return axis is not None and source.shape[axis] == out.shape[axis]

    def _is_read(self, op: Op, index: int) -> bool:
        return any(
            o.kind == "op" and (o.op, o.index) == (op.id, index)
            for reader in self.readers.get(op.id, ())
            for o in self.plan.ops[reader].inputs
        )

    def _unexpanded(self, op: Op, index: int, need: Pieces) -> Pieces:
        """What is needed of the source of an expansion: whole where the split axis was made."""
        out, source, held = op.outputs[index], op.inputs[0].spec, part(need)
        axis = split_axis(out, held, self.split.heads)
        counted = axis is not None and content(out.shape[axis]) in self.split.heads
        if not counted:
            # Repeated heads: (heads of keys, repeats) are the heads of the queries together.
            for i, (a, b) in enumerate(zip(out.shape, out.shape[1:], strict=False)):
                if isinstance(a, int) and isinstance(b, int) and a * b in self.split.heads:
                    return self._heads_held(op, content(self._aligned(source, out, i)), "heads")
        if axis is None:
            raise self._cannot(op, f"no axis of {_sizes(out)} divides by {self.tp}")
        return need if self._aligned(source, out, axis) == out.shape[axis] else WHOLE

    @staticmethod
    def _aligned(source: TensorSpec, out: TensorSpec, axis: int) -> Size:
        """The size of a source along an axis of what it is broadcast to; 1 where it has none."""
        place = axis - (len(out.shape) - len(source.shape))
        return source.shape[place] if place >= 0 else 1

    def _columns(self, op: Op, gemm: Gemm, need: Pieces) -> None:
        """A product whose result is split: its weight by columns, or each operand by heads."""
        if not gemm.b_is_weight:
            for position in range(len(op.inputs)):
                self._ask(op, position, need)
            return
        if gemm.batch != 1:
            raise self._cannot(op, "a batch of weights has no rule")
        activation = self._activation(op)
        for position in range(len(op.inputs)):
            if position != activation:
                self._ask(op, position, need)

    def _element_wise(self, op: Op, index: int, need: Pieces) -> None:
        out, held = op.outputs[index], part(need)
        axis = split_axis(out, held, self.split.heads)
        for position, operand in enumerate(op.inputs):
            spec = operand.spec
            if share_of(spec, out) == 1:
                self._ask(op, position, need)
            elif axis is None:
                raise self._cannot(op, f"no axis of {_sizes(out)} divides by {self.tp}")
            elif share_of(spec, out) > 1:
                # A reduction of the split rows themselves, or of each row's own entries.
                self._ask(op, position, need)
            elif self._aligned(spec, out, axis) == out.shape[axis]:
                self._ask(op, position, need)

    # What follows from it, from the first op to the last.

    def follow(self) -> None:
        """Fill in results that nobody asked for, and the sums that must be exchanged."""
        for op in self.plan.ops:
            held = [self.split.of(op, position) for position in range(len(op.inputs))]
            if all(value == 1 for value in held):
                continue
            primitive = self.plan.primitives[op.id]
            if isinstance(primitive, Gemm) and primitive.b_is_weight:
                self._row_product(op)
            elif isinstance(primitive, RowReduce) and self._reduces_split(op):
                self._statistic(op)
            elif (op.id, 0) not in self.split.made and op.id not in self.split.partial:
                self._carry(op, held)

    def _row_product(self, op: Op) -> None:
        place = self._activation(op)
        held = self.split.of(op, place)
        if held == 1:
            return
        if (op.id, 0) in self.split.made:
            raise self._cannot(op, "both its input and its result would be split")
        for position in range(len(op.inputs)):
            operand = self.plan.flow.weight_operand(op, position)
            # The bias is added once, by every GPU.
            if operand is not None and len(operand.spec.shape) > 1:
                self.split.weights[operand.name] = held
                self._carry_weight(op, position, held)
        self.split.partial.add(op.id)

    def _carry_weight(self, op: Op, position: int, held: Fraction) -> None:
        """The views between a weight and the product that reads it hold the same part."""
        operand = op.inputs[position]
        while operand.kind == "op":
            self.split.made[operand.op, operand.index] = ((Fraction(1), held),)
            operand = self.plan.ops[operand.op].inputs[0]

    def _reduces_split(self, op: Op) -> bool:
        """True for a reduction along the axis that the GPUs share."""
        spec, held = op.inputs[0].spec, self.split.of(op, 0)
        axis = split_axis(spec, held, self.split.heads) if held != 1 else None
        if axis is None:
            return False
        dims = op.attrs.get("dim")
        if dims is None:
            dims = (-1,)
        listed = (dims,) if isinstance(dims, int) else tuple(dims)
        return axis in {int(d) % len(spec.shape) for d in listed}

    def _statistic(self, op: Op) -> None:
        name = functional(op.name)
        if name not in _NORMS and name not in ("aten.mean", "aten.sum", "aten.linalg_vector_norm"):
            raise self._cannot(op, "it works along the axis that the GPUs share")
        self.split.statistics.add(op.id)

    def _carry(self, op: Op, held: list[Fraction]) -> None:
        primitive = self.plan.primitives[op.id]
        plain = (
            is_view(op.name)
            or op.name in (_APPEND, *_CHANNELS)
            or isinstance(primitive, Memory | RowReduce)
        )
        if is_free(op.name) and not is_view(op.name):
            return
        if not plain:
            raise self._cannot(op, "no rule says how it works on a part of its input")
        smallest = min(held)
        for index in range(len(op.outputs)):
            self.split.made[op.id, index] = ((Fraction(1), smallest),)

    def repeat(self) -> None:
        """Weights of the layers that a recorded one stands for, where an op names them."""
        for op in self.plan.ops:
            for operand in op.inputs:
                if operand.kind != "weight" or operand.name in self.split.weights:
                    continue
                for layer in self.plan.region.layers:
                    path = next((p for p in layer.paths if operand.name.startswith(f"{p}.")), None)
                    twin = f"{layer.path}{operand.name[len(path) :]}" if path else ""
                    if twin in self.split.weights:
                        self.split.weights[operand.name] = self.split.weights[twin]

    # What ops are.

    def _is_product(self, number: int) -> bool:
        primitive = self.plan.primitives[number]
        return isinstance(primitive, Gemm) and primitive.b_is_weight

    def _mixes(self, number: int) -> bool:
        """True for attention, a recurrence, and a product of two activations within either."""
        primitive = self.plan.primitives[number]
        if isinstance(primitive, Gemm):
            return not primitive.b_is_weight and self.plan.layer_of[number] >= 0
        return isinstance(primitive, Attention | Scan)

    def _stops(self, number: int) -> bool:
        return (
            self._is_product(number)
            or self._mixes(number)
            or isinstance(self.plan.primitives[number], Experts)
        )

    def _activation(self, op: Op) -> int:
        """The operand of a product that is not its weight (nor its bias)."""
        biased = len(op.inputs) > 2 and functional(op.name) != "aten.linear"
        pair = (1, 2) if biased else (0, 1)
        return next((p for p in pair if self.plan.flow.weight_operand(op, p) is None), pair[0])

    def _cannot(self, op: Op, why: str) -> HymellError:
        where = f" ({op.path})" if op.path else ""
        return HymellError(
            f"{self.plan.facts.name}: {op.name}{where} cannot be split over {self.tp} GPUs: {why}"
        )


def _sizes(spec: TensorSpec) -> str:
    return " x ".join(str(size) for size in spec.shape)


def residual_stream(plan: Plan) -> frozenset[int]:
    """Ops that carry a layer's input on: additions to it, casts and scalings of it."""
    stream: set[int] = set()
    for layer in plan.region.layers:
        for number in range(layer.start, layer.stop):
            op = plan.ops[number]
            tensors = [o for o in op.inputs if o.kind in ("op", "input")]
            from_stream = [
                o for o in tensors if o.kind == "input" or o.op in stream or o.op < layer.start
            ]
            added = functional(op.name) == "aten.add" and len(tensors) > 1 and bool(from_stream)
            alone = len(op.inputs) == 1 and op.inputs[0].op in stream and _passes(plan, op)
            if added or alone:
                stream.add(number)
    return frozenset(stream)


def _passes(plan: Plan, op: Op) -> bool:
    return is_view(op.name) or isinstance(plan.primitives[op.id], Memory)
