"""A worker inside a web application: it lives as long as the app, and requests start runs.

Starlette and FastAPI accept `lifespan` unchanged: `FastAPI(lifespan=lifespan)`. This example needs neither: `main`
enters `lifespan`, handles three requests and leaves it.

Run it: python -m examples.web_app
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from holdfast import Context, Holdfast, RunNotFound, RunState

hf = Holdfast()


@hf.step
async def resize(image: str, width: int) -> str:
    await asyncio.sleep(0.05)
    return f"{image}@{width}"


@hf.workflow("images.thumbnails.v1")
async def thumbnails(ctx: Context, image: str) -> list[str]:
    ctx.set_value("image", image)
    return await asyncio.gather(*(resize(image, width) for width in (64, 256, 1024)))


class App:
    """A stand-in for a web framework's application object."""

    hf: Holdfast | None = None


@asynccontextmanager
async def lifespan(app: App) -> AsyncIterator[None]:
    # A deploy stops the app: running steps get five seconds to finish, and the next process continues the rest.
    async with hf, hf.worker(concurrency=50, grace_seconds=5):
        app.hf = hf
        yield


async def post_image(image: str, request_id: str) -> dict[str, Any]:
    """`POST /images`. The request id is the key: a client that repeats a request after a timeout gets the same run."""
    run = await hf.start(thumbnails, image, key=request_id)
    return {"status": 202, "id": run.id, "created": run.created}


async def get_image(run_id: str) -> dict[str, Any]:
    """`GET /images/{id}`."""
    try:
        info = await hf.run(run_id).info()
    except RunNotFound:
        return {"status": 404}
    if info.state is RunState.SUCCEEDED:
        return {"status": 200, "thumbnails": info.result}
    return {"status": 202, "state": info.state.value}


async def main() -> None:
    async with lifespan(App()):
        request_id = uuid4().hex
        posted = await post_image("cat.png", request_id)
        print(posted["status"], posted["created"])
        again = await post_image("cat.png", request_id)
        print(again["status"], again["created"], again["id"] == posted["id"])
        await hf.run(posted["id"]).result()
        print(await get_image(posted["id"]))


if __name__ == "__main__":
    asyncio.run(main())
