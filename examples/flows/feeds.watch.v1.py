"""Poll a feed for a year, more often while it changes. Keep the last three changes."""

SHORTEST = 6
LONGEST = 96


async def main(url: str, days_left: int = 365):
    end = now() + days(days_left)
    pause = SHORTEST
    seen = None
    changes = []
    polls = 0
    while now() < end:
        try:
            version = await call("feeds.fetch.v1", url=url)
        except ChildFailed:
            version = seen  # the feed is down: try again later
        polls += 1
        if version == seen:
            pause = min(pause * 2, LONGEST)
        else:
            pause = SHORTEST
            changes = (changes + [version])[-3:]
            emit("feeds.changed", {"url": url, "version": version})
        seen = version
        set_value("polls", polls)
        key, _ = await race({"time": sleep(hours(pause)), "stop": receive("stop")})
        if key == "stop":
            break
    return {"polls": polls, "changes": changes}
