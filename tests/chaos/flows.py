"""Flows of the storm: their texts, which the storm registers before its processes begin.

Each has fewer turns than a flow keeps snapshots, so that every entry that the witness has seen is still there.
"""

from __future__ import annotations

ERRANDS = """
async def errand(book, number):
    return await call("errand", book=book, number=number)

async def main(book: str, count: int):
    early = call("note", book=book)
    doubled = await map("errand", [{"book": book, "number": i} for i in range(count)], limit=2)
    both = await join({"a": errand(book, 10), "b": errand(book, 20)})
    why, nothing = await race({"time": sleep(0.2), "never": call("letters", count=1)})
    try:
        await call("hopeless", book=book)
    except ChildFailed as e:
        return {"doubled": doubled, "both": both, "why": why, "kind": e["kind"], "has_mark": len(await early) > 0}
"""
"""Children of every kind: a task, a map, workflows side by side, one that loses a race, one that fails."""

ERRANDS_CHILDREN = 5
"""Number of children of `ERRANDS`, besides the `count` of its map."""

LETTERS = """
async def main(count: int):
    found = []
    for i in range(count):
        found.append(await receive(["a", "b"]))
    return found
"""

WATCH = """
async def main(topic: str, count: int):
    found = []
    for i in range(count):
        found.append(await wait_event(topic))
    return found
"""

NAPS = """
async def main(lengths: list):
    early = 0
    for length in lengths:
        begun = now()
        await sleep(length)
        early += now() - begun < length - 0.00001
    return early
"""
"""The number of naps that were too short."""

BROKEN = """
async def main(book: str):
    await call("note", book=book)
    raise Error("broken", "it never works")
"""

TEXTS = {
    "flow.errands": ERRANDS,
    "flow.letters": LETTERS,
    "flow.watch": WATCH,
    "flow.naps": NAPS,
    "flow.broken": BROKEN,
}
"""The texts by type."""
