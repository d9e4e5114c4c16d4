"""Cron: the same instants as a scan of every minute finds, across clock changes. Errors are marked in the text."""

from __future__ import annotations

import calendar
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from holdfast import InvalidRequest
from holdfast.core import schedules
from holdfast.core.clock import instant, moment
from holdfast.core.schedules import check_cron, check_zone, next_fire
from tests.plugin.tiers import amount
from tests.rows import each_row

# The scan is independent of cronsim: it visits every minute of real time and reads the local clock.

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
MINUTE = timedelta(minutes=1)


def values_of(field: str, low: int, high: int, names: list[str], first: int) -> set[int]:
    """Return the values that the terms of a field stand for."""
    found: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        if span == "*":
            start, end = low, high
        else:
            parts = [names.index(part) + first if part in names else int(part) for part in span.split("-")]
            start, end = parts[0], parts[-1]
            if step and len(parts) == 1:
                end = high
        found |= set(range(start, end + 1, int(step or 1)))
    return found


class Walk:
    """A literal cron expression."""

    def __init__(self, expression: str) -> None:
        minute, hour, day, month, weekday = expression.split()
        self.minutes = values_of(minute, 0, 59, [], 0)
        self.hours = values_of(hour, 0, 23, [], 0)
        self.days = values_of(day, 1, 31, [], 0)
        self.months = values_of(month, 1, 12, MONTHS, 1)
        self.weekdays = {number % 7 for number in values_of(weekday, 0, 7, DAYS, 0)}
        self.needs_both = day.startswith("*") or weekday.startswith("*")

    def is_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        both = (day.day in self.days, (day.weekday() + 1) % 7 in self.weekdays)
        return all(both) if self.needs_both else any(both)

    def matches(self, wall: datetime) -> bool:
        return wall.minute in self.minutes and wall.hour in self.hours and self.is_day(wall.date())

    def fires(self, zone: str, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield all instants of a span at which it fires, by checking every minute."""
        place = ZoneInfo(zone)
        at = start.replace(second=0, microsecond=0)
        before = (at - MINUTE).astimezone(place)
        seen: set[datetime] = set()  # local times seen so far, to detect repeated ones
        first = at - timedelta(hours=6)
        while first < at:
            seen.add(first.astimezone(place).replace(tzinfo=None, fold=0))
            first += MINUTE
        while at <= end:
            here = at.astimezone(place)
            wall = here.replace(tzinfo=None, fold=0)
            if self.hours == set(range(24)):
                is_fire = self.matches(wall)
            else:
                is_fire = self.matches(wall) and wall not in seen
                skipped = before.replace(tzinfo=None, fold=0) + MINUTE
                while skipped < wall:  # the clocks jumped forward: skipped times are due now
                    is_fire = is_fire or (self.matches(skipped) and skipped not in seen)
                    seen.add(skipped)
                    skipped += MINUTE
            seen.add(wall)
            before = here
            if is_fire and at > start:
                yield at
            at += MINUTE


# Instants around clock changes, in zones with different rules.
CHANGES = {
    "Europe/Rome": ("2026-03-29T01:00", "2026-10-25T01:00"),
    "America/New_York": ("2026-03-08T07:00", "2026-11-01T06:00"),
    "Australia/Lord_Howe": ("2026-10-03T15:30", "2026-04-04T15:00"),  # by half an hour
    "America/Sao_Paulo": ("2018-11-04T03:00", "2018-02-18T02:00"),  # at midnight
    "Africa/Casablanca": ("2026-02-15T02:00", "2026-03-22T02:00"),  # around Ramadan, in the opposite direction
    "America/Havana": ("2026-03-08T05:00", "2026-11-01T05:00"),  # midnight is repeated
    "Pacific/Apia": ("2011-12-30T10:00", "2011-09-24T14:00"),  # a whole day was skipped
    "Asia/Kathmandu": ("2026-03-29T01:00", "1985-12-31T18:30"),  # an offset of 45 minutes; a change long ago
    "Europe/Dublin": ("2026-03-29T01:00", "2026-10-25T01:00"),  # winter time is the exception
    "Antarctica/Troll": ("2026-03-29T01:00", "2026-10-25T01:00"),  # by two hours
    "UTC": ("2026-03-29T01:00", "2026-10-25T01:00"),
}


def listed(*choices: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(choices), min_size=1, max_size=3, unique=True).map(",".join)


MINUTES = st.sampled_from(["*", "*/15", "*/7"]) | listed("0", "1", "15", "20-40/5", "30", "45", "59")
HOURS = st.sampled_from(["*", "0-23", "*/2", "*/3"]) | listed("0", "1", "2", "3", "1-4", "23", "22-23", "12")
MONTHDAYS = st.sampled_from(["*"] * 4 + ["*/2"]) | listed("1", "8", "18", "25", "28-31", "29")
MONTH_FIELDS = st.sampled_from(["*"] * 4 + ["mar-nov", "jan,feb,dec", "*/2"])
WEEKDAYS = st.sampled_from(["*"] * 4 + ["mon-fri", "0", "7", "sun", "sat,sun", "5-7"])
EXPRESSIONS = st.tuples(MINUTES, HOURS, MONTHDAYS, MONTH_FIELDS, WEEKDAYS).map(" ".join)
EDGES = st.sampled_from([(zone, change) for zone, changes in CHANGES.items() for change in changes])


@settings(max_examples=amount(short=40, long=400))
@given(expression=EXPRESSIONS, edge=EDGES, start_minutes=st.integers(-200, 100), seconds=st.sampled_from([0, 0, 1, 59]))
@example(expression="30 2 * * *", edge=("Europe/Rome", "2026-03-29T01:00"), start_minutes=-200, seconds=0)
@example(expression="0,30 2 * * *", edge=("Europe/Rome", "2026-10-25T01:00"), start_minutes=-200, seconds=0)
@example(expression="*/5 2 * * *", edge=("Europe/Rome", "2026-03-29T01:00"), start_minutes=-30, seconds=0)
@example(expression="0 * * * *", edge=("Australia/Lord_Howe", "2026-10-03T15:30"), start_minutes=-100, seconds=0)
@example(expression="30 * * * *", edge=("Australia/Lord_Howe", "2026-10-03T15:30"), start_minutes=-1, seconds=0)
@example(expression="*/20 * 17 2 *", edge=("America/Sao_Paulo", "2018-02-18T02:00"), start_minutes=-20, seconds=1)
@example(expression="0 0 * * *", edge=("America/Sao_Paulo", "2018-11-04T03:00"), start_minutes=-100, seconds=0)
@example(expression="0 9 * * *", edge=("Pacific/Apia", "2011-12-30T10:00"), start_minutes=-100, seconds=0)
def test_fire_times_equal_those_of_a_scan_of_every_minute(
    expression: str, edge: tuple[str, str], start_minutes: int, seconds: int
) -> None:
    zone, change = edge
    at = datetime.fromisoformat(change).replace(tzinfo=UTC)
    start = at + timedelta(minutes=start_minutes, seconds=seconds)
    end = start + timedelta(hours=30)

    found = []
    after = instant(start)
    while (fire := next_fire(expression, zone, after)) is not None and moment(fire) <= end:
        found.append(moment(fire))
        after = fire

    assert found == list(Walk(expression).fires(zone, start, end))


@settings(max_examples=amount(short=40, long=400))
@given(expression=EXPRESSIONS, zone=st.sampled_from(list(CHANGES)), day=st.dates(date(2020, 1, 1), date(2040, 1, 1)))
def test_a_fire_time_is_the_first_after_the_given_instant(expression: str, zone: str, day: date) -> None:
    after = instant(datetime(day.year, day.month, day.day, tzinfo=UTC))

    fire = next_fire(expression, zone, after)

    if fire is not None:
        assert fire > after
        assert next_fire(expression, zone, fire - 1) == fire
        assert next_fire(expression, zone, (after + fire) // 2) == fire


def fires(expression: str, zone: str, start: str, count: int) -> list[str]:
    """Return the next fire times in local time of the zone."""
    place = ZoneInfo(zone)
    at = instant(datetime.fromisoformat(start).replace(tzinfo=place))
    shown = []
    for _ in range(count):
        found = next_fire(expression, zone, at)
        assert found is not None
        at = found
        shown.append(moment(at).astimezone(place).isoformat(timespec="minutes"))
    return shown


def test_a_skipped_local_time_fires_when_the_clocks_jump() -> None:
    assert fires("30 2 * * *", "Europe/Rome", "2026-03-28T12:00", 2) == [
        "2026-03-29T03:00+02:00",
        "2026-03-30T02:30+02:00",
    ]


def test_a_repeated_local_time_fires_the_first_time_only() -> None:
    assert fires("30 2 * * *", "Europe/Rome", "2026-10-24T12:00", 2) == [
        "2026-10-25T02:30+02:00",
        "2026-10-26T02:30+01:00",
    ]


def test_an_hourly_expression_follows_real_time() -> None:
    assert fires("30 * * * *", "Europe/Rome", "2026-10-25T01:00", 4) == [
        "2026-10-25T01:30+02:00",
        "2026-10-25T02:30+02:00",
        "2026-10-25T02:30+01:00",
        "2026-10-25T03:30+01:00",
    ]
    assert fires("30 * * * *", "Europe/Rome", "2026-03-29T01:00", 2) == [
        "2026-03-29T01:30+01:00",
        "2026-03-29T03:30+02:00",
    ]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 9 * * MON-fri", "2030-01-01T09:00"),
        ("0 0 L * *", "2030-01-31T00:00"),
        ("0 0 LW 3 *", "2030-03-29T00:00"),
        ("0 0 * * mon#2", "2030-01-14T00:00"),
        ("0 0 * * 5L", "2030-01-25T00:00"),
        ("0 0 29 2 *", "2032-02-29T00:00"),
        ("0 0 13 * fri", "2030-01-04T00:00"),  # day of month or weekday, as usual in cron
    ],
)
def test_expressions_have_their_cron_meaning(expression: str, expected: str) -> None:
    assert check_cron(expression) == expression
    at = next_fire(expression, "UTC", instant(datetime(2030, 1, 1, tzinfo=UTC)))
    assert at is not None
    assert moment(at) == datetime.fromisoformat(expected).replace(tzinfo=UTC)


def test_an_expression_is_stored_with_single_spaces() -> None:
    assert check_cron("  0   9 * *   mon-fri ") == "0 9 * * mon-fri"


# Invalid expressions


@each_row(
    ("expression", "marked", "says"),
    [
        ("0 25 * * *", "25", "column 3: '25' is not a valid hour: use \\* or 0-23"),
        ("60 * * * *", "60", "column 1: '60' is not a valid minute"),
        ("0 9 * * mon-fry", "mon-fry", "'mon-fry' is not a valid day of the week: use \\* or 0-7 or sun-sat"),
        ("0 9 * * fri-mon", "fri-mon", "'fri-mon' is not a valid day of the week"),
        ("0 9 1,15,32 * *", "32", "column 10: '32' is not a valid day of the month"),
        ("0 9 * foo *", "foo", "'foo' is not a valid month: use \\* or 1-12 or jan-dec"),
        ("*/0 * * * *", "*/0", "'\\*/0' is not a valid minute"),
        ("0 9 1,,2 * *", ",", "column 7: a day of the month is missing"),
        ("0 0 31 2 *", "31", "column 5: the expression never fires"),
        ("0 0 30,31 feb *", "30,31", "the expression never fires"),
        ("0 0 9 * * *", "*", "found 6 fields, but expected 5 fields.*no field for seconds: use an interval"),
        ("0 9 * *", "", "column 8: day of the week missing; expected 5 fields"),
        ("@daily", "@daily", "named expressions are not supported; write '0 0 \\* \\* \\*'"),
        ("every day", "", "day of the month, month, day of the week missing"),
        ("0 9 * * \u0661", "\u0661", "is not a valid day of the week"),
    ],
)
def test_an_error_is_marked_at_its_position(expression: str, marked: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        check_cron(expression)

    _, shown, marks = str(caught.value).splitlines()
    start, end = marks.index("^"), marks.rindex("^") + 1
    assert shown[4:] == expression
    assert shown[start:end] == marked


@each_row("expression", ["", " ", "\t", "0 9 * * *\n", None, 5, "0 " * 150, "\0"])
def test_an_invalid_expression_is_refused(expression: object) -> None:
    with pytest.raises(InvalidRequest):
        check_cron(expression)


@settings(max_examples=amount(short=60, long=1_000))
@given(st.text(alphabet="0123456789*/,-#LW @abcfijmnorstuvé", max_size=30) | st.text(max_size=20))
@example("0 0 L/2 * *")
@example("0 0 * * 1#2/3")
@example("0 0 * * L")
@example("0 0 1-31/99999999999999999999 * *")
def test_any_text_is_an_expression_that_fires_or_is_refused(text: str) -> None:
    try:
        expression = check_cron(text)
    except InvalidRequest:
        return
    assert next_fire(expression, "Europe/Rome", instant(datetime(2030, 1, 1, tzinfo=UTC))) is not None


@pytest.mark.parametrize(
    ("zone", "says"),
    [
        ("Europa/Rome", "did you mean 'Europe/Rome'"),
        ("rome", "did you mean 'Europe/Rome'"),
        ("new york", "did you mean 'America/New_York'"),
        ("europe/rome", "did you mean 'Europe/Rome'"),
        ("America", "unknown time zone 'America'"),
        ("../../etc/passwd", "unknown time zone"),
        ("/etc/localtime", "unknown time zone"),
        ("localtime", "unknown time zone 'localtime'"),
        ("qqqqqq", "use a region and city"),
    ],
)
def test_an_unknown_zone_is_refused_with_similar_names(zone: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        check_zone(zone)


def test_a_machine_without_time_zones_gets_an_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "available_timezones", set)
    monkeypatch.setattr(schedules, "ZoneInfo", zoneinfo.ZoneInfo.no_cache)
    zoneinfo.reset_tzpath([])
    try:
        with pytest.raises(InvalidRequest, match="pip install tzdata"):
            check_zone("Europe/Rome")
        assert check_zone("UTC") == "UTC"
    finally:
        zoneinfo.reset_tzpath()


def test_the_scan_itself_knows_leap_years() -> None:
    """The reference is tested too: a scan of February finds the days of the calendar."""
    fires = list(Walk("0 0 * 2 *").fires("UTC", datetime(2028, 1, 31, tzinfo=UTC), datetime(2028, 3, 2, tzinfo=UTC)))

    assert len(fires) == calendar.monthrange(2028, 2)[1]
