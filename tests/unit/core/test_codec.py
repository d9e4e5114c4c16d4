"""The codec: a stored value comes back equal, or is refused with a reason."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import math
import threading
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.codec import (
    DEPTH_LIMIT,
    VALUE_LIMIT_BYTES,
    Codec,
    decode_any,
    encode_any,
    same_json,
)
from holdfast.core.errors import InvalidRequest, NotSerializable, PayloadTooLarge
from holdfast.core.intent import Signature, result_codec
from tests.rows import each_row

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]

NAN, INFINITY = math.nan, math.inf


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Item:
    sku: str
    count: int = 1


@dataclasses.dataclass(frozen=True)
class Order:
    id: UUID
    items: tuple[Item, ...]
    placed_at: datetime
    total: Decimal
    colour: Colour = Colour.RED
    tags: frozenset[str] = frozenset()
    weight: float | None = None


@dataclasses.dataclass
class BigItem(Item):
    size: int = 0


@dataclasses.dataclass(eq=False)
class Nameless:
    count: int


@dataclasses.dataclass
class Entity:  # noqa: PLW1641 - never hashed
    """A class that is equal by its id alone, as entities often are."""

    id: int
    score: float | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entity) and other.id == self.id


class Point(NamedTuple):
    x: int
    y: int


class Address(TypedDict):
    street: str
    number: int


class Reading(msgspec.Struct):
    value: float | None
    unit: str = "m"


class Renamed(msgspec.Struct, rename="camel", omit_defaults=True):
    first_name: str
    last_name: str = ""


class Model(pydantic.BaseModel):
    name: str
    at: datetime | None = None
    ratio: float | None = None
    counts: dict[int, str] = {}


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    at: datetime
    tags: set[str]
    other: str = pydantic.Field("", alias="theOther")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def tag_count(self) -> int:
        return len(self.tags)


class Secretive(pydantic.BaseModel):
    password: pydantic.SecretStr


class UserId(str):
    __slots__ = ()


class Connection:
    """An object without a JSON form."""


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def stored(hint: Any, value: Any) -> Any:
    """Return the result of a fresh step, after checking that a replay returns the same."""
    codec: Codec[Any] = Codec(hint)
    text, fresh = codec.store(value)
    assert codec.decode(text) == fresh or fresh != fresh  # noqa: PLR0124 - NaN as a Decimal
    return fresh


TYPED_VALUES: list[tuple[Any, Any]] = [
    (None, None),
    (int, 2**80),
    (int, -(2**80)),
    (float, -0.0),
    (float, 1e308),
    (float, 3),
    (str, "a\0b"),
    (str, "żółć 🎈"),
    (bytes, b"\x00\xff"),
    (datetime, datetime.fromisoformat("2024-02-29T12:00:00.000001")),
    (datetime, datetime(2024, 2, 29, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))),
    (datetime, datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Berlin"))),
    (date, date(1, 1, 1)),
    (time, time(23, 59, 59, 999_999, tzinfo=UTC)),
    (timedelta, timedelta(microseconds=-1)),
    (timedelta, timedelta.max),
    (UUID, UUID(int=7)),
    (Decimal, Decimal("1.50")),
    (Colour, Colour.BLUE),
    (Level, Level.HIGH),
    (set[int], {1, 2, 3}),
    (frozenset[str], frozenset("ab")),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2)),
    (dict[int, str], {1: "a"}),
    (dict[float, str], {1.5: "a"}),
    (dict[UUID, int], {UUID(int=1): 1}),
    (dict[Colour, list[date]], {Colour.RED: [date(2024, 1, 1)]}),
    (int | None, None),
    (int | str | None, "a"),
    (Item | None, Item("a")),
    (Point, Point(1, 2)),
    (Address, {"street": "Long", "number": 1}),
    (Reading, Reading(None)),
    (list[Renamed], [Renamed("Ada"), Renamed("Alan", "Turing")]),
    (Order, Order(UUID(int=1), (Item("a", 2),), datetime(2024, 1, 1, tzinfo=UTC), Decimal(3), Colour.BLUE)),
    (dict[str, list[Model]], {"a": [Model(name="x", at=datetime(2024, 1, 1, tzinfo=UTC), counts={1: "a"})]}),
    (Model | None, Model(name="x")),
    (Strict, Strict(at=datetime(2024, 1, 1, tzinfo=UTC), tags={"a", "b"}, theOther="o")),
    (UserId, UserId("u1")),
    (list[object], [1, "a", None]),
]


@pytest.mark.parametrize(("hint", "value"), TYPED_VALUES, ids=lambda each: type(each).__name__)
def test_a_typed_value_comes_back_equal_and_of_the_same_type(hint: Any, value: Any) -> None:
    back = stored(hint, value)
    assert back == value
    assert type(back) is type(value) or (hint is float and value == 3)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=30,
)


@given(JSON_VALUES)
def test_every_json_value_comes_back_equal_without_a_hint(value: Any) -> None:
    text, fresh = Codec[Any]().store(value)
    assert repr(fresh) == repr(value)
    assert repr(decode_any(text)) == repr(value)
    assert "\0" not in text


OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))

ORDERS = st.builds(
    Order,
    id=st.uuids(),
    items=st.lists(st.builds(Item, st.text(st.characters(codec="utf-8")), st.integers())).map(tuple),
    placed_at=st.datetimes(timezones=st.none() | OFFSETS),
    total=st.decimals(allow_nan=False, allow_infinity=False),
    colour=st.sampled_from(Colour),
    tags=st.frozensets(st.text(st.characters(codec="utf-8"))),
    weight=st.none() | st.floats(allow_nan=False, allow_infinity=False),
)


@given(st.lists(ORDERS, max_size=3))
def test_every_typed_value_comes_back_equal(orders: list[Order]) -> None:
    assert stored(list[Order], orders) == orders


class Mixed(NamedTuple):
    day: date
    hour: time
    pause: timedelta
    numbers: set[int]
    blobs: dict[int, bytes]
    points: tuple[Point, ...]
    level: Level


@given(st.builds(Mixed))
def test_every_value_of_the_standard_types_comes_back_equal(values: Mixed) -> None:
    assert stored(Mixed, values) == values


@given(st.floats() | st.recursive(st.floats(), lambda inner: st.lists(inner) | st.dictionaries(st.text("ab"), inner)))
def test_floats_come_back_equal_or_are_refused(value: Any) -> None:
    is_finite = "nan" not in repr(value) and "inf" not in repr(value)
    try:
        assert repr(stored(Any, value)) == repr(value)
        assert is_finite
    except NotSerializable:
        assert not is_finite


# Without a hint


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2,)), [1, [2]]),
        ({3}, [3]),
        (datetime(2024, 1, 1, tzinfo=UTC), "2024-01-01T00:00:00Z"),
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), str(UUID(int=1))),
        (b"a", "YQ=="),
        (Colour.RED, "red"),
        (Item("a"), {"sku": "a", "count": 1}),
        (Point(1, 2), [1, 2]),
        (Renamed("Ada"), {"firstName": "Ada"}),
        (Model(name="a"), {"name": "a", "at": None, "ratio": None, "counts": {}}),
        ([Nameless(1)], [{"count": 1}]),
        (UserId("u1"), "u1"),
        (collections.OrderedDict(a=1), {"a": 1}),
    ],
)
def test_without_a_hint_a_value_becomes_plain_json_at_once(value: Any, plain: Any) -> None:
    assert stored(Any, value) == plain


@pytest.mark.parametrize(
    "value", [{1: "a"}, [{"a": {1.5: 2}}], {Level.LOW: 1}, {1: "a", "1": "b"}, Model(name="", counts={1: ""})]
)
def test_keys_that_are_not_strings_are_refused_without_a_hint(value: Any) -> None:
    with pytest.raises(NotSerializable, match=r"add a type hint such as dict\[int, str\]"):
        encode_any(value)


@pytest.mark.parametrize("key", [True, None, (1, 2)])
def test_keys_that_json_cannot_have_are_refused(key: Any) -> None:
    with pytest.raises(NotSerializable, match=r"`\$\.a` has keys that JSON does not support"):
        encode_any({"a": {key: 1}})


def test_keys_that_a_loose_hint_would_turn_into_text_are_refused() -> None:
    with pytest.raises(NotSerializable, match="the key 1, which would come back as a string"):
        Codec(dict[int | str, int]).encode({1: 1})


# Values that JSON lacks


@each_row("number", [NAN, INFINITY, -INFINITY])
@each_row(
    ("hint", "build"),
    [
        (Any, lambda x: x),
        (Any, lambda x: {"a": [1, {"b": x}]}),
        (Any, lambda x: (1, x)),
        (Any, Reading),
        (Any, lambda x: [Entity(1, x)]),
        (Any, lambda x: Model(name="", ratio=x)),
        (float, lambda x: x),
        (float | None, lambda x: x),
        (list[float], lambda x: [0.0, x]),
        (Reading, Reading),
        (Entity, lambda x: Entity(1, x)),
        (list[Entity], lambda x: [Entity(1, x)]),
        (Model, lambda x: Model(name="", ratio=x)),
        (dict[int, list[Model]], lambda x: {1: [Model(name="", ratio=x)]}),
    ],
)
def test_nan_and_infinity_are_refused_wherever_they_are(hint: Any, build: Any, number: float) -> None:
    with pytest.raises(NotSerializable, match=f"is {number!r}, which JSON does not support"):
        Codec(hint).encode(build(number))


def test_a_refusal_names_the_stored_value_and_the_path() -> None:
    with pytest.raises(NotSerializable, match=r"^result of 'charge' cannot be stored as JSON: `\$\.a\[1\]` is nan"):
        encode_any({"a": [1, NAN]}, "result of 'charge'")


def test_a_decimal_nan_is_text_and_comes_back() -> None:
    assert str(stored(Decimal, Decimal("NaN"))) == "NaN"
    assert str(Codec(Decimal).store(Decimal("sNaN"))[1]) == "sNaN"


@pytest.mark.parametrize("value", ["\ud800", ["a", "\udfff"], {"\ud800": 1}, Model(name="\ud800")])
def test_lone_surrogates_are_refused(value: Any) -> None:
    with pytest.raises(NotSerializable, match="surrogate"):
        encode_any(value)


def test_the_deepest_allowed_value_is_stored() -> None:
    assert stored(Any, nested(DEPTH_LIMIT)) == nested(DEPTH_LIMIT)


@pytest.mark.parametrize("levels", [DEPTH_LIMIT + 1, 500, 100_000])
def test_deeper_values_are_refused_naming_the_limit(levels: int) -> None:
    with pytest.raises(NotSerializable, match="it is nested deeper than 64 levels"):
        encode_any(nested(levels))


def test_brackets_in_text_and_many_siblings_are_not_depth() -> None:
    value = ["[{" * 100, *([] for _ in range(100))]
    assert stored(Any, value) == value


def test_depth_counts_typed_objects_too() -> None:
    @dataclasses.dataclass
    class Node:
        inner: Any = None

    node = Node()
    for _ in range(DEPTH_LIMIT):
        node = Node(node)
    with pytest.raises(NotSerializable, match="nested deeper than 64 levels"):
        Codec(Node).encode(node)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = [loop, loop]
    with pytest.raises(NotSerializable, match="or contains itself"):
        encode_any(loop)


def test_an_integer_of_too_many_digits_is_refused() -> None:
    with pytest.raises(NotSerializable, match=r"`\$\[0\]` cannot be written: .*4300 digits"):
        encode_any([10**5000])


@pytest.mark.parametrize("hint", [Any, datetime])
def test_a_time_zone_with_seconds_is_refused_because_they_would_be_dropped(hint: Any) -> None:
    with pytest.raises(NotSerializable, match="no UTC offsets with seconds"):
        Codec(hint).encode(datetime(1890, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")))


def test_a_time_in_the_repeated_hour_keeps_its_instant() -> None:
    later = datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert stored(datetime, later).timestamp() == later.timestamp()


# Objects without a JSON form


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Connection(), "Connection"),
        (threading.Lock(), "_thread.lock"),
        (1j, "complex"),
        (range(3), "range"),
        (ValueError("x"), "ValueError"),
        (Item, "type"),
    ],
)
def test_an_object_without_a_json_form_is_refused_by_its_name_and_path(value: Any, name: str) -> None:
    with pytest.raises(
        NotSerializable, match=rf"`\$\.a\[0\]` is of type .*{name}, which has no JSON form; use plain data"
    ):
        encode_any({"b": 1, "a": [value]})


def test_an_arbitrary_class_may_be_declared_but_not_stored() -> None:
    codec = Codec(Connection)
    with pytest.raises(NotSerializable, match=r"it is of type .*Connection, which has no JSON form"):
        codec.encode(Connection())


def test_an_arbitrary_class_that_is_declared_accepts_no_other_value() -> None:
    with pytest.raises(NotSerializable, match=r"declared as .*Connection, but this dict does not fit"):
        Codec(Connection).encode({"a": 1})  # type: ignore[arg-type]


def test_a_serializer_that_fails_is_a_refusal() -> None:
    class Broken(pydantic.BaseModel):
        @pydantic.model_serializer
        def fail(self) -> dict[str, Any]:
            raise KeyError("oops")

    with pytest.raises(NotSerializable, match="oops"):
        Codec(Broken).encode(Broken())


def test_an_object_whose_equality_fails_is_stored() -> None:
    @dataclasses.dataclass
    class Odd:  # noqa: PLW1641 - never hashed
        a: int

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("ambiguous")

    assert Codec(Odd).store(Odd(1))[1].a == 1


def test_an_object_whose_equality_returns_an_object_is_stored() -> None:
    class Number(float):  # as numpy floats do
        __hash__ = float.__hash__

        def __eq__(self, other: object) -> Any:
            return [True] if float(self) == other else []

    assert stored(Any, Number(1.5)) == 1.5


def test_a_class_without_equality_is_stored() -> None:
    assert Codec(Nameless).store(Nameless(5))[1].count == 5


# Values that would come back changed


def test_a_value_that_does_not_fit_its_declared_type_is_refused() -> None:
    with pytest.raises(NotSerializable, match="result is declared as int, but this str does not fit: Expected `int`"):
        Codec(int).store("x", "result")  # type: ignore[arg-type]


@pytest.mark.parametrize(("hint", "value"), [(int, 3.0), (int, True), (None, 1), (bool, 1), (list[int], [1, "a"])])
def test_values_are_not_converted_to_fit(hint: Any, value: Any) -> None:
    with pytest.raises(NotSerializable, match="does not fit"):
        Codec(hint).encode(value)


def test_an_integer_that_a_float_cannot_hold_is_refused() -> None:
    with pytest.raises(NotSerializable, match=rf"is {2**60 + 1} and would come back as 1\.15"):
        Codec(list[float]).encode([2**60 + 1])


@pytest.mark.parametrize("hint", [Item, list[Item]])
def test_a_subclass_is_refused_where_its_own_fields_would_be_lost(hint: Any) -> None:
    value = BigItem("a", 1, 5)
    with pytest.raises(NotSerializable, match=r"BigItem and would come back as a .*Item"):
        Codec(hint).encode(value if hint is Item else [value])


def test_a_key_that_a_typed_dict_does_not_have_is_refused() -> None:
    with pytest.raises(NotSerializable, match="the key 'zip', which the declared type does not have"):
        Codec(Address).encode({"street": "a", "number": 1, "zip": "x"})  # type: ignore[typeddict-unknown-key]


def test_duplicates_that_a_set_would_drop_are_refused() -> None:
    with pytest.raises(NotSerializable, match="duplicates"):
        Codec(set[int]).encode([1, 1])  # type: ignore[arg-type]


def test_a_model_that_hides_a_value_in_json_is_refused() -> None:
    with pytest.raises(NotSerializable, match=r"`\$\.password` is SecretStr"):
        Codec(Secretive).encode(Secretive(password=pydantic.SecretStr("x")))


def test_a_sequence_may_be_given_as_a_tuple() -> None:
    assert stored(Sequence[int], (1, 2)) == [1, 2]


# Limits


def test_a_value_of_exactly_the_limit_is_stored() -> None:
    assert encode_any("x" * 8, limit=10) == '"xxxxxxxx"'


def test_a_value_over_the_limit_is_refused_with_its_size_in_bytes() -> None:
    with pytest.raises(PayloadTooLarge, match="result has 12 bytes as JSON; the limit is 10"):
        encode_any("ż" * 5, "result", 10)


def test_the_default_limit_is_two_mebibytes() -> None:
    with pytest.raises(PayloadTooLarge, match="the limit is 2,097,152"):
        encode_any("x" * VALUE_LIMIT_BYTES)


# Decoding


@pytest.mark.parametrize("text", ["", "{", "[1]x", "NaN", '"\\ud800"', "01"])
def test_text_that_is_not_json_is_an_invalid_request(text: str) -> None:
    with pytest.raises(InvalidRequest, match="payload cannot be read as JSON"):
        decode_any(text, "payload")


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5000, "1e400", '"\ud800"'])
def test_json_that_python_cannot_hold_is_an_invalid_request(text: str) -> None:
    with pytest.raises(InvalidRequest):
        decode_any(text)


def test_text_that_does_not_fit_names_the_path() -> None:
    with pytest.raises(InvalidRequest, match=r"message does not fit list\[.*Item\]: .* - at `\$\[0\]\.sku`"):
        Codec(list[Item]).decode('[{"sku": 1}]', "message")


def test_the_message_of_pydantic_is_passed_on_in_one_line() -> None:
    with pytest.raises(InvalidRequest, match=r"Model\]: name: Field required; ratio: Input .* - at `\$\[0\]`$"):
        Codec(list[Model]).decode('[{"ratio": "x"}]')


def test_a_post_init_that_raises_is_an_invalid_request() -> None:
    @dataclasses.dataclass
    class Positive:
        a: int

        def __post_init__(self) -> None:
            raise LookupError("only positive")

    with pytest.raises(InvalidRequest, match="only positive"):
        Codec(Positive).decode('{"a": 1}')


# Hints


@pytest.mark.parametrize(
    "hint", [list[int] | set[int], Model | int, datetime | str, "Unknown", enum.Enum("E", {"A": 1.5})]
)
def test_a_hint_that_cannot_be_read_from_json_is_refused_when_the_codec_is_built(hint: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"a value declared as .* cannot be read from JSON"):
        Codec(hint)


@pytest.mark.parametrize("hint", [Any, object, NoReturn])
def test_a_hint_without_information_accepts_any_value(hint: Any) -> None:
    assert stored(hint, (1, None)) == [1, None]


def test_the_result_codec_follows_the_annotation_also_of_decorated_functions_and_classes() -> None:
    def find(*args: int) -> Item: ...  # type: ignore[empty-body]

    @functools.wraps(find)
    def wrapped(*args: Any) -> Any: ...

    class Finder:
        def __call__(self, sku: str) -> Item: ...  # type: ignore[empty-body]

        def method(self) -> Item: ...  # type: ignore[empty-body]

    for function in (find, wrapped, functools.partial(find, 1), Finder(), Finder().method, Item):
        assert result_codec(function).decode('{"sku": "a"}') == Item("a")


@pytest.mark.parametrize("function", [print, lambda x: x, len, str.upper])
def test_a_function_without_annotations_may_return_anything(function: Any) -> None:
    assert result_codec(function).store((1, 2))[1] == [1, 2]


def test_a_result_hint_that_cannot_be_read_names_the_function() -> None:
    def find() -> Model | int: ...  # type: ignore[empty-body]

    with pytest.raises(InvalidRequest, match=r"the result of .*find: a value declared as"):
        result_codec(find)


# Signatures


async def charge(ctx: Any, order: Order, cents: int, note: str = "none", *, colour: Colour = Colour.RED) -> Item:
    return Item("a")


def test_arguments_become_an_object_of_the_parameters_and_come_back() -> None:
    order = Order(UUID(int=1), (), datetime(2024, 1, 1, tzinfo=UTC), Decimal(1))
    signature = Signature(charge, skip=1)
    text = signature.encode((order, 5, "hello"))
    assert signature.names == ("order", "cents", "note", "colour")
    assert list(decode_any(text)) == ["order", "cents", "note"]
    assert signature.decode(text) == ((order, 5, "hello"), {})


def test_a_default_is_left_out_of_the_payload_and_filled_in_when_read() -> None:
    def send(to: str, subject: str = "hi", copies: int = 1) -> None: ...

    signature = Signature(send)
    assert signature.encode(("ada",)) == '{"to":"ada"}'
    assert signature.decode('{"copies": 3, "to": "ada"}') == (("ada", "hi", 3), {})


def test_a_keyword_only_parameter_with_a_default_may_be_given_by_name() -> None:
    def paint(what: str, *, colour: Colour = Colour.RED) -> None: ...

    signature = Signature(paint)
    assert signature.decode('{"what": "wall", "colour": "blue"}') == (("wall",), {"colour": Colour.BLUE})
    assert signature.decode(signature.encode(("wall",))) == (("wall",), {})


def test_none_is_accepted_where_it_is_the_default() -> None:
    def wait(seconds: int = None) -> None: ...  # type: ignore[assignment] # noqa: RUF013

    assert Signature(wait).decode(Signature(wait).encode((None,))) == ((None,), {})


def test_a_function_without_parameters_has_an_empty_payload() -> None:
    def tick() -> None: ...

    assert Signature(tick).encode(()) == "{}"
    assert Signature(tick).decode("{}") == ((), {})


def add(a: int, b: int, c: int = 0) -> int:
    return a + b + c


def test_missing_arguments_are_named() -> None:
    with pytest.raises(InvalidRequest, match=r"^add is missing arguments: b$"):
        Signature(add).encode((1,))


def test_extra_arguments_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^add takes 3 arguments \(a, b, c\), but 4 were given$"):
        Signature(add).encode((1, 2, 3, 4))


def test_arguments_that_do_not_fit_are_refused_when_they_are_given() -> None:
    message = r"^payload of 'add' does not fit add\(a, b, c\): Expected `int`, got `str` - at `\$\.b`$"
    with pytest.raises(InvalidRequest, match=message):
        Signature(add).encode((1, "x"), "payload of 'add'")
    with pytest.raises(InvalidRequest, match=message):
        Signature(add).decode('{"a": 1, "b": "x"}', "payload of 'add'")


def test_an_argument_that_json_cannot_hold_is_named() -> None:
    with pytest.raises(NotSerializable, match=r"payload cannot be stored as JSON: `\$\.b` is nan"):
        Signature(add).encode((1, NAN))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1}', "missing required field `b`"),
        ('{"a": 1, "b": 2, "d": 3}', "unknown field `d`"),
        ('{"a": 1, "b": "x"}', r"Expected `int`, got `str` - at `\$\.b`"),
        ("[1, 2]", "Expected `object`, got `array`"),
    ],
)
def test_a_payload_that_does_not_fit_names_function_parameter_and_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"payload of run 7 does not fit add\(a, b, c\): .*{reason}"):
        Signature(add).decode(text, "payload of run 7")


def test_star_parameters_are_refused_because_the_payload_has_names() -> None:
    def many(*items: int) -> None: ...
    def options(a: int, **more: int) -> None: ...

    with pytest.raises(InvalidRequest, match=r"many takes \*items, but its payload is a JSON object of named"):
        Signature(many)
    with pytest.raises(InvalidRequest, match=r"options takes \*\*more"):
        Signature(options)


def test_a_keyword_only_parameter_without_a_default_is_given_by_name() -> None:
    def paint(what: str, coats: int = 1, *, colour: str, gloss: bool = False) -> None: ...

    signature = Signature(paint)

    assert signature.encode(("wall",), kwargs={"colour": "red"}) == '{"what":"wall","colour":"red"}'
    assert signature.decode('{"what": "wall", "colour": "red"}') == (("wall", 1), {"colour": "red"})
    assert signature.decode(signature.encode(("wall", 2), kwargs={"colour": "red", "gloss": True})) == (
        ("wall", 2),
        {"colour": "red", "gloss": True},
    )
    with pytest.raises(
        InvalidRequest, match=r"paint is missing arguments: colour; pass colour by name, with bind\(colour="
    ):
        signature.encode(("wall",))


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {"waht": "wall"}, "unknown parameter waht of .*paint; did you mean what\\? the parameters of .*paint are"),
        ((), {"sky": "wall"}, "unknown parameter sky of .*paint; the parameters of .*paint are what, coats"),
        (("wall",), {"what": "door"}, "paint gets what twice: by position and by name"),
        ((), {"coats": 2}, "paint is missing arguments: what"),
        (("wall", 1, 2), {}, "paint takes 2 arguments \\(what, coats\\), but 3 were given"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(
    args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    def paint(what: str, coats: int = 1) -> None: ...

    with pytest.raises(InvalidRequest, match=words):
        Signature(paint).check(args, kwargs)


def test_a_function_without_room_for_the_context_is_refused() -> None:
    def tick() -> None: ...

    with pytest.raises(InvalidRequest, match="tick must first take 1 positional parameter"):
        Signature(tick, skip=1)


def test_a_parameter_whose_hint_cannot_be_read_is_named() -> None:
    def find(a: int, key: Model | int) -> None: ...

    with pytest.raises(InvalidRequest, match=r"parameter 'key' of .*find: a value declared as .*Model"):
        Signature(find)


def test_a_hint_that_cannot_be_resolved_is_any_and_does_not_affect_others() -> None:
    def find(a: Unknown, b: Item) -> Unknown: ...

    signature = Signature(find)
    assert signature.decode('{"a": [1], "b": {"sku": "x"}}') == (([1], Item("x")), {})
    assert signature.result.store((1,))[1] == [1]


def test_a_local_class_is_found_in_the_closure() -> None:
    @dataclasses.dataclass
    class Local:
        a: int

    def find(a: Local) -> Local:
        return Local(a.a)

    assert Signature(find).decode('{"a": {"a": 1}}') == ((Local(1),), {})
    assert Signature(find).result.decode('{"a": 1}') == Local(1)


def test_methods_and_partial_functions_have_signatures() -> None:
    class Shop:
        def sell(self, item: Item) -> None: ...

    assert Signature(Shop().sell).decode('{"item": {"sku": "x"}}') == ((Item("x"),), {})
    assert Signature(functools.partial(add, 1)).decode('{"b": 2}') == ((2, 0), {})


# Same JSON


@pytest.mark.parametrize(
    ("a", "b", "is_same"),
    [
        ('{"a": 1, "b": [1, 2]}', '{"b":[1,2],"a":1}', True),
        ('{"a": {"x": 1, "y": 2}}', '{"a": {"y": 2, "x": 1}}', True),
        ('"\\u0061"', '"a"', True),
        ("[1, 2]", "[2, 1]", False),
        ("1", "true", False),
        ("0", "false", False),
        ('{"a": null}', "{}", False),
        ("18446744073709551617", "18446744073709551616", False),
    ],
)
def test_texts_are_the_same_json_whatever_their_spelling(a: str, b: str, *, is_same: bool) -> None:
    assert same_json(a, b) is is_same


@given(JSON_VALUES)
def test_json_is_the_same_as_itself_with_spaces(value: Any) -> None:
    text = encode_any(value)
    assert same_json(text, msgspec.json.format(text))
