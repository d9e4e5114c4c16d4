"""The API reference is what the docstrings say, and has every public name and member."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from inspect import get_annotations
from typing import Any, TypedDict, is_typeddict

import msgspec
import pytest

import holdfast
from tests.docs.page import DOCS, PROJECT, pages
from tests.docs.reference.declarations import INTERNAL, declaration_of, internal_members, is_contract
from tests.docs.reference.pages import PAGES, contents, declarations, public_names

FOLDER = DOCS / "reference"

CLASSES = [name for name, (_, value) in public_names().items() if isinstance(value, type)]
OPTIONS = [name for name in CLASSES if is_typeddict(public_names()[name][1])]

RIDDLES = re.compile(
    r"\b(whoever|whatever|however often|so many|was told|is told|was said|is said|somebody|he|his)\b", re.IGNORECASE
)


@cache
def made() -> dict[str, str]:
    return contents()


def test_the_folder_has_the_pages_and_nothing_else() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(made()), "run `make reference`"


def test_the_pages_are_what_the_docstrings_say() -> None:
    written = {name: (FOLDER / name).read_text(encoding="utf-8") for name in made() if (FOLDER / name).exists()}

    assert written == made(), "run `make reference`, and look at the difference"


def test_every_public_name_has_one_entry() -> None:
    entries = Counter(entry.name for page in PAGES for entry in page.entries if not entry.title)

    assert entries == Counter(list(public_names()))


def test_a_name_with_several_entries_says_which_members_each_has() -> None:
    entries = [entry for page in PAGES for entry in page.entries]
    in_parts = {entry.name for entry in entries if entry.title}

    assert [entry.name for entry in entries if entry.name in in_parts and not entry.members] == []


def test_every_public_name_is_in_the_index_with_the_module_to_import_it_from() -> None:
    index = dict(re.findall(r"^\| \[`(\w+)`\]\(\S+\) \| `(\S+)` \| \S", made()["README.md"], re.MULTILINE))

    assert index == {name: home for name, (home, _) in public_names().items()}


def test_every_name_of_holdfast_is_also_on_a_page_that_teaches_it() -> None:
    words = {word for page in pages() if page.path.parent != FOLDER for word in re.findall(r"\w+", page.text)}

    assert set(holdfast.__all__) - words == set()


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name in public_names() if not declarations()[name].doc] == []


def test_every_public_member_is_described() -> None:
    assert {name: found for name in CLASSES if (found := undescribed(public_names()[name][1]))} == {}


def test_every_public_member_is_on_a_page() -> None:
    assert {name: found for name in CLASSES if (found := missing(public_names()[name][1], sections(name)))} == {}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_a_docstring_of_its_own(name: str) -> None:
    declaration = declarations()[name]

    assert {member.name for member in declaration.members} == set(public_names()[name][1].__annotations__)
    assert [member.name for member in declaration.members if not member.doc] == []


def test_docstrings_are_in_plain_english() -> None:
    docs = {name: declarations()[name].doc for name in public_names()}
    docs |= {f"{name}.{member.name}": member.doc for name in public_names() for member in declarations()[name].members}

    assert {what: found[0] for what, doc in docs.items() if (found := RIDDLES.search(doc))} == {}


def test_members_that_are_not_for_users_exist() -> None:
    kinds = {base.__name__: base for value in _classes() for base in value.__mro__}

    assert {name: INTERNAL[name] - {*dir(kinds[name]), *_attributes(kinds[name])} for name in INTERNAL} == {
        name: set() for name in INTERNAL
    }


# The checks above fail when they should.


class Exhibit:
    """Has a `noted` attribute."""

    def __init__(self) -> None:
        self.noted = 1
        self.described = 2
        """What it is."""
        self.bare = 3

    def explained(self) -> None:
        """Say what it does."""

    def silent(self) -> None: ...

    @property
    def mute(self) -> int:
        return 1


class ExhibitRecord(msgspec.Struct):
    """A record."""

    told: int
    """What it is."""
    untold: int


class ExhibitOptions(TypedDict, total=False):
    """Options."""

    known: int
    """What it is."""
    unknown: int


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(Exhibit, ["bare", "mute", "silent"]), (ExhibitRecord, ["untold"]), (ExhibitOptions, ["unknown"])],
)
def test_a_member_without_a_description_is_found(
    kind: type, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.docs.reference.declarations._is_ours", lambda base: base is kind)

    assert undescribed(kind) == expected


def test_a_member_that_is_on_no_page_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.reference.declarations._is_ours", lambda base: base is Exhibit)
    text = "## Exhibit\n\n### `exhibit.explained`\n\n### `exhibit.silently`\n"

    assert missing(Exhibit, text) == ["mute", "silent"]


def test_a_signature_has_its_overloads_and_says_what_is_awaited() -> None:
    text = made()["starting.md"]

    assert "await hf.start(workflow: Startable[R], /, *args, **options: StartOptions) -> RunHandle[R]\n" in text
    assert "    workflow: str, payload: Mapping[str, Any] | None = None, /, **options: StartOptions,\n" in text
    assert "await ctx.sleep(length: float | timedelta)\n" in made()["waiting.md"]


def undescribed(kind: Any) -> list[str]:
    """The public members of a class that have no docstring and are not named in that of the class either."""
    declaration = declaration_of(kind)
    described = {member.name for member in declaration.members if member.doc}
    described |= set(re.findall(r"`(\w+)`", declaration.doc))
    return sorted((_visible(kind) | {member.name for member in declaration.members}) - described)


def missing(kind: Any, text: str) -> list[str]:
    """The public members of a class that a text has no heading, item or row for."""
    return sorted(name for name in _visible(kind) if not _is_shown(name, text))


def _is_shown(name: str, text: str) -> bool:
    return re.search(rf"^(### `|- `|- \[`|\| `)([\w.]+\.)?{name}(\(…\)|:| =|`)", text, re.MULTILINE) is not None


def sections(name: str) -> str:
    """What the pages say about a class: its entry, and the parts of it on other pages."""
    titles = {(page.file, entry.title or entry.name) for page in PAGES for entry in page.entries if entry.name == name}
    found = []
    for file, title in sorted(titles):
        parts = re.split(r"^## ", made()[f"{file}.md"], flags=re.MULTILINE)
        found += [part for part in parts if part.splitlines()[0] == title]
    assert len(found) == len(titles)
    return "\n".join(found)


def _visible(kind: Any) -> set[str]:
    """The public members that a class has at run time, without those of its public bases."""
    if is_contract(kind):
        return set()
    names = {name for name in dir(kind) if not name.startswith("_") and _owner(kind, name) in _own_bases(kind)}
    names |= {name for base in _own_bases(kind) for name in get_annotations(base)}
    return {name for name in names if not name.startswith("_")} - internal_members(kind)


def _own_bases(kind: Any) -> list[type]:
    """The class, and those bases that have no entry of their own."""
    public = {value for _, value in public_names().values() if isinstance(value, type)}
    elsewhere = {base for one in kind.__mro__[1:] if one in public for base in one.__mro__}
    modules = ("holdfast.", __name__)
    return [base for base in kind.__mro__ if base not in elsewhere and base.__module__.startswith(modules)]


def _owner(kind: Any, name: str) -> type | None:
    return next((base for base in kind.__mro__ if name in vars(base)), None)


def _classes() -> Iterable[type]:
    return [public_names()[name][1] for name in CLASSES]


def _attributes(kind: type) -> set[str]:
    """The names that the methods of a class assign to."""
    source = PROJECT / "src" / f"{kind.__module__.replace('.', '/')}.py"
    return set(re.findall(r"self\.(\w+)\b(?:: [^=\n]+)?(?: =|$)", source.read_text(encoding="utf-8"), re.MULTILINE))
