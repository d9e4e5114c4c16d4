"""Fulfil an order: charge, pick and ship it. If something fails later, the money goes back."""


async def main(order: str, cents: int, items: list):
    payment = await call("money.charge.v1", order=order, cents=cents)
    try:
        picked = await map("stock.pick.v1", [{"item": item} for item in items], limit=2)
        parcel = await call("parcels.ship.v1", order=order, picked=picked, options={"tags": {"order": order}})
    except (ChildFailed, JoinFailed) as e:
        await call("money.refund.v1", payment=payment)
        return {"order": order, "state": "refunded", "why": reason(e)}
    return {"order": order, "state": "shipped", "parcel": parcel}


def reason(error):
    """Return the cause of the first child that failed."""
    if error["type"] == "JoinFailed":
        error = list(error["errors"].values())[0]
    return error["cause"]["message"]
