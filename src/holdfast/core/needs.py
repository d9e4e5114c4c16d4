"""Needs: what a command reads first, so that a store can load it in one trip.

A command names its needs (`Command.needs`), and each store translates them into its own reads. An operation that reads
more asks its store for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.core.model import Event, MessageToRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The first reads of a command. A run, type or schedule that does not exist is needed all the same.

    - `runs`: runs without their payloads
    - `endings`: runs that may end, with what their end entails
    - `histories`: runs with their payloads and histories
    - `inboxes` and `audits`: ids of the runs whose inboxes and audits are needed
    - `reopenings`: runs whose lost descendants may be reopened, with the number of descendants
    - `messages` and `events`: those that the command delivers
    - `types` and `flows`: types whose rules and whose registrations as flows are needed
    - `letters` and `schedules`: numbers of dead letters, names of schedules
    - `is_ruling`: no claim may happen meanwhile
    """

    runs: Sequence[str] = ()
    endings: Sequence[str] = ()
    histories: Sequence[str] = ()
    inboxes: Sequence[str] = ()
    audits: Sequence[str] = ()
    reopenings: Mapping[str, int] = field(default_factory=dict)
    messages: Sequence[MessageToRun] = ()
    events: Sequence[Event] = ()
    types: Sequence[str] = ()
    flows: Sequence[str] = ()
    letters: Sequence[int] = ()
    schedules: Sequence[str] = ()
    is_ruling: bool = False
