"""A saga: flight, hotel and car come from three companies, and every failure cancels the bookings already made.

Each booking names its compensation with `undo=`. If the run fails or is cancelled, holdfast calls the undo functions in
reverse order, each with the result of its booking. They are recorded and retried like steps, and survive crashes.

Run it: python -m examples.trip
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from holdfast import Context, Fatal, Holdfast, RunCancelled, RunFailed

hf = Holdfast()

books: list[str] = []  # simulates the books of the three companies


async def give_back(booking: str) -> None:
    # An undo may run again after a crash, so a booking that is already gone is not an error.
    if booking in books:
        books.remove(booking)
    print(f"    gave back {booking}")


async def book(booking: str) -> str:
    """Simulate the client of a company; a real one would pass `step_info().idempotency_key`."""
    books.append(booking)
    print(f"    booked {booking}")
    return booking


@hf.step(undo=give_back)
async def book_flight(city: str) -> str:
    return await book(f"flight to {city}")


@hf.step(undo=give_back)
async def book_hotel(city: str) -> str:
    return await book(f"hotel in {city}")


@hf.step(undo=give_back)
async def book_car(city: str) -> str:
    if city == "Venice":
        raise Fatal("there are no cars in Venice")
    return await book(f"car in {city}")


@hf.workflow("travel.trip.v1")
async def trip(ctx: Context, city: str) -> list[str]:
    booked = [await book_flight(city), await book_hotel(city), await book_car(city)]
    ctx.set_value("is_booked", value=True)
    await ctx.receive("paid", timeout=timedelta(days=3))  # a timeout is an error too: it undoes all bookings
    return booked


async def main() -> None:
    async with hf, hf.worker():
        print("to Lisbon, and it is paid for")
        run = await hf.start(trip, "Lisbon")
        await run.send("paid")
        print(f"  {len(await run.result())} bookings")

        print("to Venice")
        try:
            await hf.execute(trip, "Venice")
        except RunFailed as error:
            print(f"  failed: {error.error.cause}")

        print("to Paris, but the customer changes her mind")
        run = await hf.start(trip, "Paris")
        while not await run.value("is_booked"):
            await asyncio.sleep(0.01)
        await run.cancel("the customer changed her mind")
        try:
            await run.result()
        except RunCancelled as error:
            print(f"  cancelled: {error.reason}")

    assert books == ["flight to Lisbon", "hotel in Lisbon", "car in Lisbon"], books
    print(f"in the books: {', '.join(books)}")


if __name__ == "__main__":
    asyncio.run(main())
