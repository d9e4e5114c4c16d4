"""Write the daily report. Slow queries begin at once; the flow awaits each of them only where it needs the result."""


async def main(day: str):
    sales = start("figures.sales.v1", day=day)
    visits = start("figures.visits.v1", day=day)
    weather = call("figures.weather.v1", day=day)  # nothing waits for it yet either
    text = await call("texts.opening.v1", day=day)

    text += f" {await sales} sold,"
    text += f" {await visits} visitors,"
    text += f" {await sunshine(weather)}."
    start("mail.send.v1", to="ada", text=text)  # never awaited: fire and forget
    return text


async def sunshine(weather):
    """Await a handle that another function began. Weather is nice to have: its failure does not matter."""
    try:
        return await weather
    except ChildFailed as e:
        return f"no weather ({e['cause']['message']})"
