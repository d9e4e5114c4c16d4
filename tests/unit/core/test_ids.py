from __future__ import annotations

from uuid import UUID

from holdfast.core.model import derived_id, new_id


def test_a_new_id_is_a_uuid_of_version_7() -> None:
    made = UUID(new_id())
    assert made.version == 7
    assert made.variant == "specified in RFC 4122"


def test_ids_created_one_after_another_are_in_order_and_differ() -> None:
    made = []
    for _ in range(1000):
        sum(range(50))  # creating an intent takes at least a microsecond
        made.append(new_id())
    assert len(set(made)) == 1000
    assert made == sorted(made)


def test_a_derived_id_is_the_same_each_time() -> None:
    assert derived_id("run:1:child", 1_000_000) == derived_id("run:1:child", 1_000_000)
    assert derived_id("run:1:child", 1_000_000) != derived_id("run:1:child#2", 1_000_000)
