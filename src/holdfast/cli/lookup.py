"""Lookup of a run by its id, by the beginning of its id, or by `key:…`."""

from __future__ import annotations

from datetime import datetime

from holdfast.app import Holdfast, session_of
from holdfast.cli.exits import Refusal
from holdfast.cli.output import cleaned
from holdfast.cli.summary import age_word, state_word, type_word
from holdfast.core.clock import moment
from holdfast.core.errors import RunNotFound
from holdfast.core.questions import Query
from holdfast.engine.info import RunInfo

_CANDIDATES = 10


async def find_run(hf: Holdfast, name: str) -> str:
    """Return the id of the run. Raises `RunNotFound`, or a `Refusal` that lists the candidates."""
    if name.startswith("key:"):
        details = await session_of(hf).store.get(key=name[4:])
        if details is None:
            raise RunNotFound(f"no run has the key {name[4:]!r}; `holdfast ls` lists the runs")
        return details.run.id
    if not name:
        raise Refusal("the name of the run is empty; give its id, the beginning of its id, or key:…")
    if await session_of(hf).store.get(name) is not None:
        return name
    # Read one more than is shown, to know whether there are more.
    matching = await session_of(hf).store.list(Query(id_prefix=name, limit=_CANDIDATES + 1))
    if not matching:
        raise RunNotFound(f"there is no run {name!r}; `holdfast ls` lists the runs")
    if len(matching) == 1:
        return matching[0].run.id
    now = moment(await session_of(hf).store.now())
    runs = [RunInfo.of(details) for details in matching[:_CANDIDATES]]
    lines = [
        f"{run.id}  {state_word(run.state):<9}  {type_word(run.type)}  {age_word(run.created_at, now)}" for run in runs
    ]
    if len(matching) > _CANDIDATES:
        lines.append("… and more")
    raise Refusal("\n".join([f"several run ids begin with {cleaned(name)!r}; give more of the id:", *lines]))


async def store_now(hf: Holdfast) -> datetime:
    """Return the time of the store, which decides when runs are due."""
    return moment(await session_of(hf).store.now())
