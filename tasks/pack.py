"""Records with pictures → shards, as plain functions: plan, pack group by group, finish.

What is on disk decides what is done: a run that was killed at any moment is continued by running it again, and
ends with the same bytes. For each slot of `max_samples` rows tars come first, then their indexes, then its
manifest; when all slots have one, meta.json and errors.jsonl are written, and last of all what an earlier run
left over is removed. So a reader of meta.json meets the old dataset or the new one.

::

    with exclusive(config.output):
        job = plan(config)
        prepare_output(config)
        with Pool(processes(config.n_jobs, len(job.slots))) as pool:
            reports = pack_group(job, range(len(job.slots)), pool)     # or group by group, anywhere, in any order
        summary = finish_pack(job)

is what `pack` does.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from loader import storage
from loader.errors import BadConfig, BadSample, ShardflowError, TooManyBad
from loader.sidecar import parquet
from loader.workers import Workers
from tasks import duplicates, manifest, outputs, source
from tasks.claim import Claim, before, claim
from tasks.config import PackConfig
from tasks.lock import exclusive
from tasks.manifest import BadRow, Manifest
from tasks.reasons import Reason, by_reason
from tasks.slot import SlotReport, pack_slot
from tasks.sources import function_rows, spool
from tasks.stream import ahead
from tasks.workforce import Crew

logger = logging.getLogger(__name__)

ERRORS_NAME = "errors.jsonl"
_EXAMPLES = 3
SHOWN_EVERY = 60.0  # seconds between two states of a dataset that a function fills
_AHEAD = 64  # slots of a function that may wait to be packed

OnSlot = Callable[[SlotReport], None]


class SlotsFailed(ShardflowError, RuntimeError):
    """Some slots could not be packed, for a reason that is not a bad row; all others are done.

    `slots` are their numbers; packing them again, alone or with the rest, goes on from here.
    """

    def __init__(self, message: str, slots: Sequence[int]) -> None:
        super().__init__(message)
        self.slots = tuple(slots)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.slots)


@dataclass(frozen=True)
class Plan:
    """A config and the slots that its sources make, at this moment. Send single slots to workers, not the plan."""

    config: PackConfig
    slots: tuple[source.Slot, ...]
    claimed: Claim
    fresh: tuple[source.Slot, ...] = ()  # those that are to be packed now
    whole: bool = True  # whether these are all

    @property
    def rows(self) -> int:
        """Rows of all sources, good or bad."""
        return sum(slot.rows for slot in self.slots)


@dataclass(frozen=True)
class PackSummary:
    """What the output holds now. `kept` slots of all `slots` were done by an earlier run; `bad` of `rows` were
    left out, and are listed in the file `errors` (empty if there were none)."""

    output: str
    rows: int
    samples: int
    bad: int
    shards: int
    size: int
    slots: int
    kept: int
    errors: str
    first_bad: tuple[BadRow, ...]
    reasons: tuple[Reason, ...]
    seconds: float
    filtered: int = 0  # rows that the recipe left out
    duplicates: int = 0  # samples that are there twice
    oversized: int = 0  # samples that are larger than max_bytes


def plan(config: PackConfig) -> Plan:
    """Read the sources once and divide their rows. BadConfig for what can't be packed at all."""
    config.find_recipe()
    if config.sidecar:
        parquet()  # BadConfig where it isn't installed
    claimed = before(config)
    planned = list(source.plan_slots(config, claimed.slots, claimed.rows))
    slots = tuple(replace(slot, together=len(planned)) for slot in planned)
    return Plan(config, slots, claimed, slots)


def plans(config: PackConfig) -> Iterator[Plan]:
    """The plan; of a function that gives rows one after the other, one plan after the other, as slots are full.

    Each has the slots of those before, and `fresh` ones; the first of several has none, so that the output can be
    prepared before anything is written down there. The last is `whole`.
    """
    if not source.is_stream(config):
        yield plan(config)
        return
    config.find_recipe()
    claimed = before(config)
    slots: tuple[source.Slot, ...] = ()
    yield Plan(config, slots, claimed, whole=False)
    for fresh in ahead(source.stream(config, claimed.slots, claimed.rows), _AHEAD):
        slots += tuple(fresh)
        yield Plan(config, slots, claimed, tuple(fresh), whole=False)
    yield Plan(config, slots, claimed)


def without_duplicates(job: Plan, reports: Iterable[SlotReport]) -> list[source.Slot]:
    """When all slots are packed: those that must be packed again, without the samples that another has."""
    if job.config.duplicates != "drop":
        return []
    wanted = [report.slot for report in sorted(reports)]
    again = duplicates.to_drop(lambda: _manifests(job, wanted))
    return [replace(slot, drop=frozenset(again[slot.index])) for slot in job.slots if slot.index in again]


def prepare_output(config: PackConfig) -> None:
    """Make the output ours, and sweep what killed runs left there. Call it with the output held (`exclusive`).

    BadConfig if another job's dataset is there, or somebody else's (`tasks.claim`).
    """
    claim(config)
    storage.sweep(config.output)
    storage.sweep_uploads(config.output, config.storage_options)


def pack_group(
    job: Plan, slots: Iterable[int], pool: Workers, on_slot: OnSlot | None = None
) -> list[SlotReport]:
    """Pack some slots; reports in slot order. Slots that are done are looked at and kept.

    If some fail, the others are finished, then SlotsFailed. BadSample (``on_error: raise``) and BadConfig end
    it at once.
    """
    chosen = [job.slots[number - job.claimed.slots] for number in slots]
    return _pack_slots(job, chosen, pool, on_slot)


def _pack_slots(
    job: Plan, slots: Sequence[source.Slot], pool: Workers, on_slot: OnSlot | None
) -> list[SlotReport]:
    reports: list[SlotReport] = []
    failures: dict[int, Exception] = {}
    for slot, outcome in pool.run_all(pack_slot, slots, job.config):
        if isinstance(outcome, (BadSample, BadConfig)):
            raise outcome
        if isinstance(outcome, Exception):
            failures[slot.index] = outcome
            continue
        reports.append(outcome)
        if on_slot:
            on_slot(outcome)
    if failures:
        first = min(failures)
        error = failures[first]
        raise SlotsFailed(
            f"{len(failures)} of {len(failures) + len(reports)} slots could not be packed; slot {first}: "
            f"{type(error).__name__}: {error}",
            sorted(failures),
        ) from error
    return sorted(reports)


def check_share(job: Plan, reports: Iterable[SlotReport]) -> None:
    """TooManyBad if so many rows are bad already that the end can't be within ``max_bad_fraction``.

    errors.jsonl lists those of `reports` then.
    """
    reports = sorted(reports)
    bad = sum(report.bad for report in reports)
    if _too_many(job, bad):
        write_errors(job, [report.slot for report in reports])
        _refuse(job, bad, [row for report in reports for row in report.first_bad])


def finish_pack(job: Plan, reports: Iterable[SlotReport], seconds: float = 0.0) -> PackSummary:
    """After all slots: errors.jsonl, meta.json, and away with what an earlier run left over.

    `reports` of this run for each slot are the proof that all are done (SlotsFailed if one is missing); what
    they are made of is read from the manifests, so that it may be anywhere. TooManyBad if the share of bad
    rows is above the limit: errors.jsonl is written then, meta.json is not.
    """
    config = job.config
    kept = {report.slot: report.kept for report in reports}
    manifests = list(_manifests(job, [slot.index for slot in job.slots if slot.index in kept]))
    if missing := sorted({slot.index for slot in job.slots} - {found.slot for found in manifests}):
        raise SlotsFailed(
            f"{len(missing)} of {len(job.slots)} slots are not packed yet, the first of them {missing[0]}",
            missing,
        )
    bad = [row for found in manifests for row in found.bad]
    older = list(outputs.earlier(config, job.claimed))
    errors = _write_errors(config, [*(row for found in older for row in found.bad), *bad])
    if _too_many(job, len(bad)):
        _refuse(job, len(bad), bad)
    filtered = sum(found.filtered for found in manifests)
    if filtered and filtered == job.rows:
        raise BadConfig(
            f"recipe {config.recipe} returned None for all {filtered:,} rows: does it lack a return?"
        )
    doubles = duplicates.write(config, lambda: manifests)
    shards = [shard for found in manifests for shard in found.shards]
    named = _describe(job, [*older, *manifests])
    outputs.remove_leftovers(config, job.claimed, named, job.claimed.slots + len(job.slots))
    spool.clear(config)
    storage.sweep(config.output)
    large = [shard for shard in shards if config.max_bytes and shard.size > config.max_bytes]
    for shard in large:
        logger.warning(
            "%s has %s bytes, more than max_bytes = %s: its one sample is that large",
            shard.path, f"{shard.size:,}", f"{config.max_bytes:,}",
        )  # fmt: skip
    return PackSummary(
        output=config.output,
        rows=job.rows,
        samples=sum(shard.num_samples for shard in shards),
        bad=len(bad),
        shards=len(shards),
        size=sum(shard.size for shard in shards),
        slots=len(job.slots),
        kept=sum(kept.values()),
        errors=errors if bad else "",
        first_bad=tuple(bad[:_EXAMPLES]),
        reasons=by_reason(bad),
        seconds=seconds,
        filtered=filtered,
        duplicates=doubles,
        oversized=len(large),
    )


def _describe(job: Plan, manifests: Sequence[Manifest]) -> set[str]:
    """meta.json of each dataset, of all these slots; returns the shards that are named."""
    config = job.config
    shards = [shard for found in manifests for shard in found.shards]
    outputs.unify_sidecars(config, shards)
    splits = {slot.index: slot.split for slot in job.slots}
    bad: dict[str, list[BadRow]] = {}
    for found in manifests:
        bad.setdefault(splits.get(found.slot, outputs.split_of(found)), []).extend(found.bad)
    return outputs.describe(config, job.claimed, set(splits.values()) or {""}, shards, bad)


def write_errors(job: Plan, slots: Iterable[int]) -> str:
    """errors.jsonl with the bad rows of these slots, in row order; returns its address."""
    return _write_errors(job.config, (row for found in _manifests(job, sorted(slots)) for row in found.bad))


def pack(config: PackConfig, on_slot: OnSlot | None = None) -> PackSummary:
    """Everything, in this process and its pool. `on_slot` is called for each slot as it is done."""
    with exclusive(config.output):
        return _pack_all(config, plans(config), on_slot)


def pack_planned(job: Plan, on_slot: OnSlot | None = None) -> PackSummary:
    """`pack` after its plan, for whoever wants to know its size first. The caller holds the output."""
    return _pack_all(job.config, [job], on_slot)


def _pack_all(config: PackConfig, jobs: Iterable[Plan], on_slot: OnSlot | None) -> PackSummary:
    began = time.monotonic()
    shown = began
    reports: dict[int, SlotReport] = {}
    bad = 0
    with contextlib.ExitStack() as stack:
        stack.callback(storage.sweep, config.output)
        pool: Workers | None = None
        for job in jobs:

            def note(report: SlotReport, job: Plan = job) -> None:
                nonlocal bad
                reports[report.slot] = report
                bad += report.bad
                if on_slot:
                    on_slot(report)
                if job.whole and _too_many(job, bad):
                    check_share(job, reports.values())

            if pool is None:
                prepare_output(config)
                slots = len(job.slots) if job.whole else sys.maxsize
                crew = stack.enter_context(Crew(config.runner, config.dask_address))
                pool = crew.get(config.n_jobs, slots)
            _pack_slots(job, job.fresh, pool, note)
            shown = settle(job, shown)
        if pool is not None and (again := without_duplicates(job, reports.values())):
            bad = 0
            _pack_slots(job, again, pool, note)
        return finish_pack(job, list(reports.values()), time.monotonic() - began)


def settle(job: Plan, shown: float) -> float:
    """After the fresh slots of a plan that isn't whole are packed: what was written down of them is needed no more.

    Every minute all that is packed so far becomes the dataset, so that one that a function never ends can be read. Takes
    and returns when that was done last (`time.monotonic`).
    """
    if job.whole or not job.fresh or job.config.duplicates == "drop":
        return shown
    function_rows.release(job.config, job.fresh)
    if time.monotonic() - shown < SHOWN_EVERY:
        return shown
    packed = _manifests(job, [slot.index for slot in job.slots])
    _describe(job, [*outputs.earlier(job.config, job.claimed), *packed])
    return time.monotonic()


def _too_many(job: Plan, bad: int) -> bool:
    return bad > job.config.max_bad_fraction * job.rows


def _refuse(job: Plan, bad: int, examples: Sequence[BadRow]) -> NoReturn:
    reasons = "\n".join(f"  {row}" for row in examples[:_EXAMPLES])
    raise TooManyBad(
        f"{bad:,} of {job.rows:,} rows could not be packed, more than max_bad_fraction = "
        f"{job.config.max_bad_fraction:g} allows. The first:\n{reasons}\nAll that were found are in "
        f"{storage.join(job.config.output, ERRORS_NAME)}: repair them, or raise the limit, and run again"
    )


def _write_errors(config: PackConfig, rows: Iterable[BadRow]) -> str:
    address = storage.join(config.output, ERRORS_NAME)
    lines = [
        json.dumps(
            {"source": row.source, "row": row.row, "key": row.key, "stage": row.stage, "reason": row.reason},
            ensure_ascii=False,
        )
        for row in rows
    ]
    if lines:
        # Of a name that is no UTF-8, what Python makes of its bytes becomes an escape, which JSON knows too.
        data = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
        storage.write_bytes(address, data, config.storage_options)
    else:
        storage.remove(address, config.storage_options)
    return address


def _manifests(job: Plan, slots: Iterable[int]) -> Iterator[Manifest]:
    """Those that are there, in slot order."""
    for number in slots:
        found = manifest.load(job.config.output, number, job.config.storage_options)
        if found is not None and found.rows == job.slots[number - job.claimed.slots].rows:
            yield found
