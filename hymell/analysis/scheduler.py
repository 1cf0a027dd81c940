"""Continuous batching as vLLM schedules it, step by step, against a clock that prices set.

Each step has a budget of tokens. Requests that run come first, in order of admission: one token of
decode each, or the next chunk of a prompt. What is left goes to requests that wait, first come
first served, while fewer run than allowed and the whole prompt finds room in the KV pool. Where a
running request finds no room for its next token, the one admitted last gives its cache back and
waits again, to compute prompt and answer so far anew. Nothing is random.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from hymell.analysis.arrivals import Arrival
from hymell.errors import HymellError
from hymell.estimators.step_prices import Batch, Chunk

#: Tokens of a block of the KV pool.
BLOCK_TOKENS: Final = 16

#: The most steps that are simulated.
MAX_STEPS: Final = 20_000_000


class Clock(Protocol):
    """What a step takes."""

    def step(self, batches: Sequence[Batch]) -> float:
        """Seconds of one step of all replicas together, as `StepPrices.step`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one replica: requests that run together, tokens of a step, bytes of the KV pool.

    ``kv_bytes`` gives the bytes that the cache of so many tokens of one request takes.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    pool_bytes: float
    kv_bytes: Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Served:
    """A request and when its first and its last token came, in seconds."""

    request: Arrival
    first_token_s: float
    finish_s: float

    @property
    def ttft_s(self) -> float:
        """From arrival to the first token."""
        return self.first_token_s - self.request.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per further token; None for an answer of one token."""
        further = self.request.output - 1
        return (self.finish_s - self.first_token_s) / further if further else None


@dataclass(frozen=True, slots=True)
class Run:
    """What came out: requests in order of arrival, and what the server did.

    ``busy_s`` is the time in steps, ``mean_running`` the requests that ran on average of it, all
    replicas together, ``peak_kv_share`` the fullest that a KV pool was.
    """

    served: tuple[Served, ...]
    steps: int
    busy_s: float
    mean_running: float
    peak_kv_share: float
    preemptions: int


@dataclass(slots=True, eq=False)
class _Live:
    """A request inside the server. ``computed`` tokens are in the cache, ``target`` must be before
    the next token comes.
    """

    request: Arrival
    order: int
    target: int
    computed: int = 0
    generated: int = 0
    held: float = 0.0
    first_token_s: float = 0.0


@dataclass(slots=True)
class _Replica:
    limits: Limits
    waiting: deque[_Live] = field(default_factory=deque)
    running: list[_Live] = field(default_factory=list)
    used: float = 0.0
    preempted: int = 0

    @property
    def load(self) -> int:
        """What a router looks at: waiting requests count four times (vLLM's own weights)."""
        return 4 * len(self.waiting) + len(self.running)

    def schedule(self) -> list[tuple[_Live, int]]:
        """(request, tokens) of the next step, room in the pool taken."""
        budget = self.limits.max_num_batched_tokens
        plan: list[tuple[_Live, int]] = []
        place, preempted = 0, False
        while place < len(self.running) and budget:
            live = self.running[place]
            tokens = min(live.target - live.computed, budget)
            while not self._take(live, live.computed + tokens):
                last = self.running.pop()
                self._give_back(last)
                preempted = True
                if last is live:
                    break
            else:
                plan.append((live, tokens))
                budget -= tokens
                place += 1
        while self.waiting and budget and not preempted:
            live = self.waiting[0]
            full = len(self.running) >= self.limits.max_num_seqs
            if full or not self._take(live, live.target):
                break
            self.running.append(self.waiting.popleft())
            tokens = min(live.target, budget)
            plan.append((live, tokens))
            budget -= tokens
        return plan

    def _take(self, live: _Live, tokens: int) -> bool:
        """Hold room for so many tokens of a request; False where the pool has none."""
        blocks = -(-tokens // BLOCK_TOKENS)
        wanted = max(live.held, self.limits.kv_bytes(blocks * BLOCK_TOKENS))
        if self.used + wanted - live.held > self.limits.pool_bytes:
            return False
        self.used += wanted - live.held
        live.held = wanted
        return True

    def _give_back(self, live: _Live) -> None:
        self.release(live)
        live.computed = 0
        self.waiting.appendleft(live)
        self.preempted += 1

    def release(self, live: _Live) -> None:
        """Free what a request holds."""
        self.used -= live.held
        live.held = 0.0


def simulate(requests: Sequence[Arrival], limits: Limits, clock: Clock, replicas: int = 1) -> Run:
    """Serve requests, sorted by arrival, on replicas that step together.

    A request goes to the replica with the least to do. Raises HymellError for a request that the
    KV pool could never hold.
    """
    check_limits(limits.max_num_seqs, limits.max_num_batched_tokens)
    _check_room(requests, limits)
    servers = [_Replica(limits) for _ in range(replicas)]
    done: list[Served | None] = [None] * len(requests)
    coming = iter(_Live(r, i, r.prompt) for i, r in enumerate(requests))
    following = next(coming, None)
    now = busy_s = running_s = peak = 0.0
    steps = 0
    while following is not None or any(s.waiting or s.running for s in servers):
        if following is not None and not any(s.waiting or s.running for s in servers):
            now = max(now, following.request.arrival_s)
        while following is not None and following.request.arrival_s <= now:
            min(servers, key=lambda server: server.load).waiting.append(following)
            following = next(coming, None)
        plans = [server.schedule() for server in servers]
        step_s = clock.step([_batch(plan) for plan in plans])
        now += step_s
        busy_s += step_s
        steps += 1
        running_s += step_s * sum(len(server.running) for server in servers)
        peak = max(peak, *(server.used for server in servers))
        if steps > MAX_STEPS:
            raise HymellError(f"over {MAX_STEPS:,} steps: serve fewer or shorter requests")
        for server, plan in zip(servers, plans, strict=True):
            for served in _advance(server, plan, now):
                done[served[0]] = served[1]
    return Run(
        served=tuple(served for served in done if served is not None),
        steps=steps,
        busy_s=busy_s,
        mean_running=running_s / busy_s,
        peak_kv_share=peak / limits.pool_bytes,
        preemptions=sum(server.preempted for server in servers),
    )


def _batch(plan: Sequence[tuple[_Live, int]]) -> Batch:
    sequences = context = longest = 0
    chunks: list[Chunk] = []
    for live, tokens in plan:
        if tokens == 1 and live.generated:
            sequences += 1
            context += live.computed
            longest = max(longest, live.computed)
        else:
            chunks.append((tokens, live.computed))
    return Batch(sequences, context / max(sequences, 1), longest, chunks)


def _advance(
    server: _Replica, plan: Sequence[tuple[_Live, int]], now: float
) -> Iterator[tuple[int, Served]]:
    """Count what a step has done; (place, served) of those that are through."""
    for live, tokens in plan:
        live.computed += tokens
        if live.computed < live.target:
            continue
        live.generated += 1
        live.target += 1
        if live.generated == 1:
            live.first_token_s = now
        if live.generated == live.request.output:
            server.running.remove(live)
            server.release(live)
            yield live.order, Served(live.request, live.first_token_s, now)


def check_limits(max_num_seqs: int, max_num_batched_tokens: int) -> None:
    """Raise HymellError for a server that could run nothing."""
    for name, value in (
        ("max_num_seqs", max_num_seqs),
        ("max_num_batched_tokens", max_num_batched_tokens),
    ):
        if value < 1:
            raise HymellError(f"{name} must be at least 1, not {value}")


def _check_room(requests: Sequence[Arrival], limits: Limits) -> None:
    longest = max(requests, key=lambda r: r.prompt + r.output)
    blocks = -(-(longest.prompt + longest.output - 1) // BLOCK_TOKENS)
    if limits.kv_bytes(blocks * BLOCK_TOKENS) > limits.pool_bytes:
        raise HymellError(
            f"a request of {longest.prompt} + {longest.output} tokens needs more than the KV pool "
            f"of {limits.pool_bytes / 1e9:.3g} GB per GPU: give shorter ones, a larger GPU or --tp"
        )
