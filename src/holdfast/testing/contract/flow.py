"""Contract of flows: registrations, the types that they claim, their pruning, and their export."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.clock import DAY, SECOND
from holdfast.core.commands import ChangeTypes, OfferTypes, RegisterFlow
from holdfast.core.errors import InvalidRequest
from holdfast.core.flow_definitions import FLOW_RUNTIME, FlowDefinition, RegisteredFlow
from holdfast.core.model import TypeChange, TypeOffer
from holdfast.core.ports import Store
from holdfast.core.questions import ListFlows, ListTypes
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.transfer import Restoration
from holdfast.testing.contract.arrange import HOSTILE, TYPE, an_intent, ended, start, transfer_of
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock

CODE = TypeOffer(name=TYPE, runtime="python")


def a_flow(letter: str = "a", type: str = TYPE, **fields: Any) -> FlowDefinition:
    """Build a definition whose version consists of one letter."""
    texts = {"source": f"# {letter}", "program": f'{{"code":"{letter}"}}', "description": f"flow {letter}"}
    return FlowDefinition(**{"type": type, "version": letter * 64, **texts, **fields})


async def register(store: Store, definition: FlowDefinition, by: str = "ann") -> RegisteredFlow:
    return await store.apply(RegisterFlow(definition=definition, by=by))


async def letters_of(store: Store, **query: Any) -> list[str]:
    """Return the first letters of the listed versions."""
    return [one.version[0] for one in await store.catalog(ListFlows(**query))]


class FlowContract(Contract):
    """Flows are registered once, are never taken for code, and are kept as long as a run needs them."""

    # Registrations

    async def test_a_registered_flow_is_listed_as_it_was_given(self, store: Store) -> None:
        text = " ".join(HOSTILE)
        flow = a_flow(source=text, description="it's", instruction_set=3)

        answer = await register(store, flow)

        kept = replace(flow, registered_at=START, by="ann")
        assert answer == RegisteredFlow(definition=kept.without_texts(), is_new=True)
        assert await store.catalog(ListFlows(with_texts=True)) == [kept]
        assert await store.catalog(ListFlows()) == [kept.without_texts()]

    async def test_registering_the_newest_version_again_changes_nothing(
        self, store: Store, clock: SettableClock
    ) -> None:
        """S6: a lost answer is safe."""
        first = await register(store, a_flow())
        clock.advance(SECOND)

        again = await register(store, a_flow(source="# other comments"), by="bob")

        assert again == replace(first, is_new=False)
        assert len(await store.catalog(ListFlows())) == 1

    async def test_an_older_version_becomes_the_newest_again_with_its_first_program(
        self, store: Store, clock: SettableClock
    ) -> None:
        """A newer compiler must not shift the program under a snapshot."""
        await register(store, a_flow("a"))
        clock.advance(SECOND)
        await register(store, a_flow("b"))
        clock.advance(SECOND)

        answer = await register(store, a_flow("a", program='{"code":"new"}', instruction_set=9))

        assert answer.is_new
        assert answer.definition.registered_at == START + 2 * SECOND
        listed = await store.catalog(ListFlows(with_texts=True))
        assert [(one.version[0], one.program, one.instruction_set) for one in listed] == [
            ("a", '{"code":"a"}', 1),
            ("b", '{"code":"b"}', 1),
            ("a", '{"code":"a"}', 1),
        ]

    async def test_each_registration_of_a_type_is_later_than_the_one_before(self, store: Store) -> None:
        """The clock stands still here."""
        answers = [await register(store, a_flow(letter)) for letter in "aba"]
        other = await register(store, a_flow("c", "other"))

        assert [one.definition.registered_at for one in answers] == [START, START + 1, START + 2]
        assert other.definition.registered_at == START

    async def test_flows_are_listed_by_type_and_time_in_pages(self, store: Store, clock: SettableClock) -> None:
        for letter, type in (("a", "shop.b"), ("b", "shop.a"), ("c", "shop.b"), ("d", "shops")):
            clock.advance(SECOND)
            await register(store, a_flow(letter, type))

        assert await letters_of(store) == ["b", "a", "c", "d"]
        assert await letters_of(store, type="shop.*") == ["b", "a", "c"]
        assert await letters_of(store, type="shop.b") == ["a", "c"]
        assert await letters_of(store, type="shop.b", version="cc") == ["c"]
        assert await letters_of(store, version="%") == []
        assert await letters_of(store, limit=2) == ["b", "a"]
        assert await letters_of(store, after=("shop.b", START + SECOND)) == ["c", "d"]

    async def test_a_text_that_no_store_can_keep_is_refused(self, store: Store) -> None:
        with pytest.raises(InvalidRequest, match="NUL"):
            await register(store, a_flow(source="\0"))

        assert await store.catalog(ListFlows()) == []

    # Flow or code

    async def test_a_registered_type_is_marked_as_a_flow(self, store: Store) -> None:
        await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, concurrency=2)]))

        await register(store, a_flow())

        (rule,) = await store.catalog(ListTypes())
        assert (rule.runtime, rule.description, rule.concurrency) == (FLOW_RUNTIME, "flow a", 2)

    async def test_a_type_that_a_worker_offers_as_code_is_not_registered(self, store: Store) -> None:
        """FLOWS: a type is either a flow or code; both places are named."""
        await store.apply(OfferTypes(worker="host-1", offers=[CODE]))
        before = await store.catalog(ListTypes())

        with pytest.raises(InvalidRequest, match=r"worker 'host-1' offered it with the runtime 'python' at 20"):
            await register(store, a_flow())

        assert await store.catalog(ListFlows()) == []
        assert await store.catalog(ListTypes()) == before

    async def test_a_flow_is_not_offered_as_code(self, store: Store) -> None:
        """FLOWS: nothing of the offer is written."""
        await register(store, a_flow())
        before = await store.catalog(ListTypes())

        with pytest.raises(InvalidRequest, match=r"version a{12} was registered by 'ann' at 20.*worker 'host-1'"):
            await store.apply(OfferTypes(worker="host-1", offers=[TypeOffer(name="code", runtime="python"), CODE]))

        assert await store.catalog(ListTypes()) == before

    async def test_a_worker_offers_a_flow_as_a_flow(self, store: Store) -> None:
        await register(store, a_flow("a"))

        await store.apply(OfferTypes(worker="host-1", offers=[TypeOffer(name=TYPE, runtime=FLOW_RUNTIME)]))
        answer = await register(store, a_flow("b"))

        assert answer.is_new
        (rule,) = await store.catalog(ListTypes())
        assert (rule.seen_by, rule.runtime) == ("host-1", FLOW_RUNTIME)

    async def test_a_person_may_turn_code_into_a_flow(self, store: Store) -> None:
        await store.apply(OfferTypes(worker="host-1", offers=[CODE]))
        await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, runtime=FLOW_RUNTIME)]))

        assert (await register(store, a_flow())).is_new

    # Pruning

    async def test_a_version_that_no_run_needs_is_pruned_after_its_retention(
        self, store: Store, clock: SettableClock
    ) -> None:
        await register(store, a_flow("a"))
        clock.advance(SECOND)
        await register(store, a_flow("b"))
        clock.advance(RUN_RETENTION - 1)
        early = await store.prune(10)
        clock.advance(1)

        dry = await store.prune(10, is_dry_run=True)
        pruned = await store.prune(10)

        assert (early.flows, dry.flows, pruned.flows) == (0, 1, 1)
        assert await letters_of(store, with_texts=True) == ["b"]
        assert (await store.prune(10)).flows == 0

    async def test_the_version_of_a_live_run_is_kept(self, store: Store, clock: SettableClock) -> None:
        """FLOWS: a definition with live runs is never pruned."""
        await register(store, a_flow("a"))
        await start(store, an_intent(1))
        clock.advance(SECOND)
        await register(store, a_flow("b"))
        clock.advance(10 * RUN_RETENTION)

        assert (await store.prune(10)).flows == 0
        assert await letters_of(store) == ["a", "b"]

    async def test_the_first_version_is_kept_for_a_run_that_is_older(self, store: Store, clock: SettableClock) -> None:
        await start(store, an_intent(1))
        clock.advance(SECOND)
        for letter in "abc":
            await register(store, a_flow(letter))
        clock.advance(10 * RUN_RETENTION)

        assert (await store.prune(10)).flows == 0

    async def test_the_version_of_an_ended_run_goes_with_the_run(self, store: Store, clock: SettableClock) -> None:
        await register(store, a_flow("a"))
        await ended(store, 1)
        clock.advance(SECOND)
        await register(store, a_flow("b"))
        clock.advance(2 * DAY)
        early = await store.prune(10)
        clock.advance(RUN_RETENTION)

        assert early.flows == 0
        assert [(await store.prune(10)).flows for _ in range(2)].count(1) == 1
        assert await letters_of(store) == ["b"]


class MovedFlowContract(Contract):
    """Definitions move with their runs."""

    async def _restore(self, store: Store, flows: Sequence[FlowDefinition], export_id: str = "x") -> int:
        part = Restoration(export_id=export_id, last_event=0, flows=tuple(flows))
        return (await transfer_of(store).restore(part)).flows

    async def test_restored_flows_keep_their_times_and_come_only_once(self, store: Store, clock: SettableClock) -> None:
        flows = [a_flow("a", registered_at=START - DAY, by="bob"), a_flow("b", registered_at=START - SECOND)]

        counts = [await self._restore(store, flows), await self._restore(store, flows)]
        clock.advance(SECOND)
        counts.append(await self._restore(store, flows, "y"))

        assert counts == [2, 0, 0]
        listed = await store.catalog(ListFlows(with_texts=True))
        assert listed == [replace(flow, used_at=START) for flow in flows]
        (rule,) = await store.catalog(ListTypes())
        assert rule.runtime == FLOW_RUNTIME

    async def test_a_restored_flow_is_kept_until_its_runs_had_time_to_come(
        self, store: Store, clock: SettableClock
    ) -> None:
        flows = [a_flow("a", registered_at=START - 100 * DAY), a_flow("b", registered_at=START - 99 * DAY)]
        await self._restore(store, flows)
        clock.advance(DAY - 1)
        early = await store.prune(10, retention=0)
        clock.advance(2)

        assert (early.flows, (await store.prune(10, retention=0)).flows) == (0, 1)

    async def test_a_restored_flow_may_become_the_newest_by_a_registration(self, store: Store) -> None:
        await self._restore(store, [a_flow("a", registered_at=START + DAY)])

        assert (await register(store, a_flow("b"))).definition.registered_at == START + DAY + 1

    async def test_a_flow_whose_type_is_code_here_is_not_restored(self, store: Store) -> None:
        await store.apply(OfferTypes(worker="host-1", offers=[CODE]))

        with pytest.raises(InvalidRequest, match="is code"):
            await self._restore(store, [a_flow("a", "other", registered_at=1), a_flow("a", registered_at=1)])

        assert await store.catalog(ListFlows()) == []

    async def test_a_version_that_was_compiled_differently_here_is_not_restored(self, store: Store) -> None:
        await register(store, a_flow("a"))

        with pytest.raises(InvalidRequest, match="compiled differently"):
            await self._restore(store, [a_flow("a", program="{}", registered_at=1)])

        assert len(await store.catalog(ListFlows())) == 1
