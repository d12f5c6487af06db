"""Exhaustive model checker of the claim protocol: every interleaving, within budgets of faults.

The store offers GET and conditional put; an etag is a content hash, so a record is its own etag. Time
is abstract: a lease may run out at any moment, also while its holder lives (a spurious takeover), so
safety is shown without clocks. A put may be applied with its reply lost, lost on the way, delivered
late, or applied with the client's own retry then reporting 412.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

Owner = tuple[int, int]
"""(worker, incarnation)"""


class Record(NamedTuple):
    gen: int
    owner: Owner
    state: str  # F free, L leased, D done
    seq: int


class Worker(NamedTuple):
    incarnation: int = 0
    phase: str = "I"  # I idle, S sending a claim, H holding, X releasing, R resolving
    shard: int = -1
    known: Record | None = None
    new: Record | None = None
    operation: str = ""
    progress: int = 0
    believed: tuple[int, ...] = ()


class Budget(NamedTuple):
    faults: int = 0
    crashes: int = 0
    takeovers: int = 0
    releases: int = 0


Outputs = tuple[tuple[tuple[tuple[int, ...] | str, tuple[tuple[int, ...], int]], ...], ...]


class State(NamedTuple):
    records: tuple[Record | None, ...]
    outputs: Outputs
    workers: tuple[Worker, ...]
    flight: tuple[tuple[int, Record | None, Record, bool], ...]
    budget: Budget


class Violation(Exception):  # noqa: N818 - a finding of the checker
    """An invariant does not hold."""


class Result(NamedTuple):
    states: int
    violation: str | None
    unfinishable: int
    """States from which no path completes every shard."""


Move = tuple[str, State]


def idle(worker: Worker, believed: tuple[int, ...] | None = None) -> Worker:
    kept = worker.believed if believed is None else believed
    return Worker(incarnation=worker.incarnation, believed=kept)


class Model:
    def __init__(self, workers: int, shards: int, budget: Budget, *, renewals=1, mutant="") -> None:
        self.renewals = renewals
        self.mutant = mutant
        self.start = State((None,) * shards, ((),) * shards, (Worker(),) * workers, (), budget)

    # --- what may happen next ---
    def moves(self, state: State) -> Iterator[Move]:
        yield from self.deliveries(state)
        for number, worker in enumerate(state.workers):
            if state.budget.crashes:
                gone = Worker(incarnation=worker.incarnation + 1)
                spent = state.budget._replace(crashes=state.budget.crashes - 1)
                yield f"w{number} crashes", self.become(state, number, gone)._replace(budget=spent)
            by_phase = {
                "I": self.looks, "S": self.claims, "H": self.holds,
                "X": self.releases, "R": self.resolves,
            }  # fmt: skip
            yield from by_phase[worker.phase](state, number, worker)

    def become(self, state: State, number: int, worker: Worker) -> State:
        workers = (*state.workers[:number], worker, *state.workers[number + 1 :])
        return state._replace(workers=workers)

    def deliveries(self, state: State) -> Iterator[Move]:
        for at, (shard, expected, new, conditional) in enumerate(state.flight):
            arrived = state._replace(flight=state.flight[:at] + state.flight[at + 1 :])
            if state.records[shard] == expected or not conditional:
                yield f"late put of s{shard} lands", self.stored(arrived, shard, new)
            yield f"late put of s{shard} is refused", arrived

    @staticmethod
    def stored(state: State, shard: int, new: Record) -> State:
        records = (*state.records[:shard], new, *state.records[shard + 1 :])
        return state._replace(records=records)

    def looks(self, state: State, number: int, worker: Worker) -> Iterator[Move]:
        me = (number, worker.incarnation)
        for shard, record in enumerate(state.records):
            send = worker._replace(phase="S", shard=shard, known=record)
            if record is None or record.state == "F":
                yield f"w{number} sees s{shard} free", self.become(state, number, send)
            elif record.state == "L" and record.owner == me and self.mutant == "readopt":
                adopted = worker._replace(phase="H", shard=shard, known=record, progress=0)
                yield f"w{number} adopts s{shard}", self.become(state, number, adopted)
            elif record.state == "L" and not self.is_worked_on(state, shard, record):
                yield f"w{number}: lease of s{shard} ran out", self.become(state, number, send)
            elif record.state == "L" and state.budget.takeovers:
                spent = state.budget._replace(takeovers=state.budget.takeovers - 1)
                robbed = self.become(state, number, send)._replace(budget=spent)
                yield f"w{number}: lease of s{shard} ran out, holder alive", robbed

    @staticmethod
    def is_worked_on(state: State, shard: int, record: Record) -> bool:
        number, incarnation = record.owner
        holder = state.workers[number]
        return (holder.incarnation, holder.shard) == (incarnation, shard) and holder.phase in "HRX"

    def claims(self, state: State, number: int, worker: Worker) -> Iterator[Move]:
        before = worker.known
        step = 0 if self.mutant == "no_gen" and before else 1
        gen = (before.gen if before else 0) + step
        new = Record(gen, (number, worker.incarnation), "L", 0)
        yield from self.puts(state, number, "claim", before, new)

    def holds(self, state: State, number: int, worker: Worker) -> Iterator[Move]:
        known = worker.known
        assert known is not None
        if worker.progress < 2:
            yield f"w{number} works on s{worker.shard}", self.worked(state, number, worker, known)
        after = known._replace(seq=known.seq + 1)
        if known.seq < self.renewals:
            yield from self.puts(state, number, "renew", known, after)
        if worker.progress == 2:
            yield from self.puts(state, number, "done", known, after._replace(state="D"))
        if state.budget.releases:
            spent = state.budget._replace(releases=state.budget.releases - 1)
            paid = state._replace(budget=spent)
            yield from self.puts(paid, number, "release", known, after._replace(state="F"))

    def worked(self, state: State, number: int, worker: Worker, known: Record) -> State:
        writer = (known.gen, number, worker.incarnation)
        outputs = dict(state.outputs[worker.shard])
        outputs["shared" if self.mutant == "shared_output" else writer] = (
            writer, worker.progress + 1,
        )  # fmt: skip
        shard = worker.shard
        kept = tuple(sorted(outputs.items(), key=repr))
        grown = state._replace(outputs=(*state.outputs[:shard], kept, *state.outputs[shard + 1 :]))
        return self.become(grown, number, worker._replace(progress=worker.progress + 1))

    def releases(self, state: State, number: int, worker: Worker) -> Iterator[Move]:
        known = worker.known
        assert known is not None
        freed = known._replace(state="F", seq=known.seq + 1)
        yield from self.puts(state, number, "release", known, freed)

    # --- a put and what comes back ---
    def puts(
        self, state: State, number: int, operation: str, expected: Record | None, new: Record
    ) -> Iterator[Move]:
        worker = state.workers[number]
        shard = worker.shard
        conditional = self.mutant != f"uncond_{operation}"
        matches = state.records[shard] == expected or not conditional
        applied = self.stored(state, shard, new) if matches else state
        landed = self.become(applied, number, self.landed(worker, operation, new))
        unknown = worker._replace(phase="R", known=expected, new=new, operation=operation)
        unsure = self.become(state, number, unknown)
        name = f"w{number} {operation} s{shard}"
        if matches:
            yield f"{name} ok", landed
        elif self.mutant == "conflict_is_loss":
            self.check_lost(applied, number, new)
            yield f"{name} 412 taken for a loss", self.become(state, number, idle(worker))
        else:
            yield f"{name} 412", unsure
        if state.budget.faults:
            yield from self.faulty(state, number, (name, operation, conditional, matches), unknown)

    def faulty(
        self, state: State, number: int, put: tuple[str, str, bool, bool], unknown: Worker
    ) -> Iterator[Move]:
        name, operation, conditional, matches = put
        worker, shard, new = state.workers[number], unknown.shard, unknown.new
        assert new is not None
        paid = state._replace(budget=state.budget._replace(faults=state.budget.faults - 1))
        after = (
            self.landed(worker, operation, new) if self.mutant == "timeout_is_success" else unknown
        )
        if matches:
            applied = self.stored(paid, shard, new)
            yield f"{name} applied, reply lost", self.become(applied, number, after)
            if self.mutant == "conflict_is_loss":
                self.check_lost(applied, number, new)
        yield f"{name} lost", self.become(paid, number, after)
        if not state.flight:
            late = paid._replace(flight=((shard, unknown.known, new, conditional),))
            yield f"{name} delayed", self.become(late, number, after)

    @staticmethod
    def landed(worker: Worker, operation: str, new: Record) -> Worker:
        if operation == "claim":
            return worker._replace(phase="H", known=new, new=None, operation="", progress=0)
        if operation == "renew":
            return worker._replace(phase="H", known=new, new=None, operation="")
        if operation == "done":
            return idle(worker, tuple(sorted({*worker.believed, worker.shard})))
        return idle(worker)

    def resolves(self, state: State, number: int, worker: Worker) -> Iterator[Move]:
        """GET, never guess."""
        current, new, operation = state.records[worker.shard], worker.new, worker.operation
        assert new is not None
        name = f"w{number} reads s{worker.shard}"
        ours = current is not None and (current.owner, current.gen) == (new.owner, new.gen)
        if ours and current and current.state == "D" and self.mutant != "done_only_if_asked":
            done = self.landed(worker, "done", current)
            yield f"{name}: own completion", self.become(state, number, done)
        elif current == new:
            yield f"{name}: landed", self.become(state, number, self.landed(worker, operation, new))
        elif operation == "release":
            if ours and current and current.state == "L":
                again = worker._replace(phase="X", known=current, new=None)
                yield f"{name}: release again", self.become(state, number, again)
            yield f"{name}: walks away", self.become(state, number, idle(worker))
        elif ours and current and current.state == "L":
            yield f"{name}: still own", self.become(state, number, self.held(worker, current))
        elif current == worker.known:
            yield from self.unchanged(state, number, worker)
        else:
            self.check_lost(state, number, new)
            yield f"{name}: lost", self.become(state, number, idle(worker))

    @staticmethod
    def held(worker: Worker, current: Record) -> Worker:
        progress = 0 if worker.operation == "claim" else worker.progress
        return worker._replace(phase="H", known=current, new=None, operation="", progress=progress)

    def unchanged(self, state: State, number: int, worker: Worker) -> Iterator[Move]:
        if worker.operation == "claim":
            again = worker._replace(phase="S", new=None, operation="", progress=0)
            yield "claims again", self.become(state, number, again)
            yield "abandons the claim", self.become(state, number, idle(worker))
        else:
            holding = worker._replace(phase="H", new=None, operation="")
            yield "keeps holding", self.become(state, number, holding)

    # --- what must hold ---
    def check_lost(self, state: State, number: int, new: Record) -> None:
        current = state.records[state.workers[number].shard]
        if current and current[:2] == new[:2] and current.state in "LD":
            raise Violation(f"worker {number} gives up what is its own: {current}")

    def check(self, state: State) -> None:
        for shard, record in enumerate(state.records):
            self.check_output(state, shard, record)
            holders = 0
            for number, worker in enumerate(state.workers):
                if (worker.phase, worker.shard, worker.known) == ("H", shard, record) and record:
                    holders += 1
                    if record.owner != (number, worker.incarnation):
                        raise Violation(f"worker {number} can write {record}")
            if holders > 1:
                raise Violation(f"two workers can commit shard {shard}")
        for number, worker in enumerate(state.workers):
            for shard in worker.believed:
                record = state.records[shard]
                mine = record and (record.state, record.owner) == (
                    "D",
                    (number, worker.incarnation),
                )
                if not mine:
                    raise Violation(f"worker {number} believes it completed {record}")

    def check_output(self, state: State, shard: int, record: Record | None) -> None:
        if record is None or record.state != "D":
            return
        writer = (record.gen, *record.owner)
        place = "shared" if self.mutant == "shared_output" else writer
        if dict(state.outputs[shard]).get(place) != (writer, 2):
            raise Violation(f"shard {shard} is done, its output is not")

    @staticmethod
    def check_move(before: State, after: State) -> None:
        for old, new in zip(before.records, after.records, strict=True):
            if old == new or old is None:
                continue
            if new is None or old.state == "D" or new.gen < old.gen:
                raise Violation(f"{old} became {new}")
            if new.owner != old.owner and new.gen <= old.gen:
                raise Violation(f"a new owner without a new generation: {old}, {new}")


def explore(model: Model) -> Result:
    """Visit every reachable state; stops at the first violation."""
    numbers = {model.start: 0}
    before: list[list[int]] = [[]]
    finished: list[int] = []
    waiting = deque([model.start])
    try:
        while waiting:
            state = waiting.popleft()
            model.check(state)
            if all(record and record.state == "D" for record in state.records):
                finished.append(numbers[state])
            for _, after in model.moves(state):
                model.check_move(state, after)
                if after not in numbers:
                    numbers[after] = len(before)
                    before.append([])
                    waiting.append(after)
                before[numbers[after]].append(numbers[state])
    except Violation as violation:
        return Result(len(numbers), str(violation), 0)
    return Result(len(numbers), None, len(before) - len(_can_reach(finished, before)))


def _can_reach(goals: list[int], before: list[list[int]]) -> set[int]:
    seen, waiting = set(goals), list(goals)
    while waiting:
        for earlier in before[waiting.pop()]:
            if earlier not in seen:
                seen.add(earlier)
                waiting.append(earlier)
    return seen
