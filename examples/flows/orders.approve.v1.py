"""Approve an order: small ones at once, large ones by a clerk, very large ones by a clerk and the manager."""

AT_ONCE = 100
ALONE = 1_000


async def main(order: str, amount: float, patience: float):
    approvers = approvers_of(amount)
    votes = []
    for approver in approvers:
        vote = await ask(order, approver, patience)
        votes.append({"by": approver, "vote": vote})
        set_value("votes", votes)
        if vote != "yes":
            return {"order": order, "state": "refused", "by": approver, "vote": vote}
    return {"order": order, "state": "approved", "by": [vote["by"] for vote in votes]}


def approvers_of(amount):
    if amount < AT_ONCE:
        return []
    return ["clerk"] if amount < ALONE else ["clerk", "manager"]


async def ask(order, approver, patience):
    """Ask one person. A vote has the name of the person, so early votes of others wait until they are asked."""
    await call("orders.ask.v1", order=order, approver=approver)
    try:
        return await receive(f"vote-{approver}", timeout=patience)
    except WaitTimeout:
        return "no answer"
