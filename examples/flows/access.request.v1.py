"""Grant access for a while, after an approver agreed. The approvers get a reminder each day, for three days."""

REMINDERS = 3


async def main(user: str, hours: int = 8):
    answer = await decision(user, await call("access.approvers.v1", user=user))
    if answer is None:
        return {"state": "expired"}
    if not answer["approved"]:
        return {"state": "denied", "by": answer["by"]}
    await call("access.grant.v1", user=user)
    try:
        why, note = await race({"time": sleep(hours * 3600), "revoked": receive("revoke")})
        log(f"access of {user} ends: {why} {note}")
    finally:
        await call("access.revoke.v1", user=user)
    return {"state": "ended", "why": why}


async def decision(user, approvers):
    for reminder in range(REMINDERS):
        set_value("reminders", reminder)
        for approver in approvers:
            start("mail.send.v1", to=approver, text=f"{user} asks for access (mail {reminder + 1})")
        try:
            return await receive("decision", timeout=days(1))
        except WaitTimeout:
            continue
    return None
