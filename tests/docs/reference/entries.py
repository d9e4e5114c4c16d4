"""Entries: one public class or function as Markdown."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tests.docs.reference.declarations import Declaration, Function, Member, declaration_of
from tests.docs.reference.prose import linked, markdown, summary, wrapped
from tests.docs.reference.signatures import laid_out, parameters, readable, returns, signature, signatures


@dataclass(frozen=True)
class Entry:
    """A public name on a page.

    `receiver` is what users call an object of it, such as `hf`. `members` chooses some of its members, in their order;
    a class that is on two pages has such entries, and all but the first have a `title`. `is_constructed`: users make
    it themselves. `is_list`: its members are items that link to their classes. `like` is the receiver of the async
    version whose methods it mirrors.
    """

    name: str
    receiver: str = ""
    members: Sequence[str] | None = None
    title: str = ""
    is_constructed: bool = False
    is_list: bool = False
    like: str = ""

    def chosen(self, declaration: Declaration) -> list[Member]:
        """Its members, in the order of the page."""
        known = {member.name: member for member in declaration.members}
        return list(known.values()) if self.members is None else [known[name] for name in self.members]

    def headings(self, declaration: Declaration) -> Iterator[str]:
        """The headings below it, which can be linked to."""
        if not self.title:
            yield self.name
        if self.like or self.is_list or _is_decorator(declaration):
            return
        for member in self.chosen(declaration):
            if member.kind == "method" or not _is_listed(declaration):
                yield f"{self.receiver}.{member.name}"


def rendered(entry: Entry, declaration: Declaration, home: str, links: Mapping[str, str]) -> Iterator[str]:
    """The parts of an entry. `home` is the module that users import the name from."""
    yield f"## {entry.title or entry.name}"
    if not entry.title:
        if home != "holdfast":
            yield f"From `{home}`."
        if entry.is_constructed:
            yield _constructor(declaration)
        elif not isinstance(declaration.node, ast.ClassDef):
            yield _block([signature(declaration.node, declaration.source, entry.name)])
        yield markdown(declaration.doc, links)
        if also := [f"[`{base.__name__}`]({links[base.__name__]})" for base in declaration.public_bases]:
            yield f"It has the members of {' and '.join(also)}, too."
        if also := [f"`{name}`" for name in declaration.builtin_bases]:
            yield f"It is also a {' and a '.join(also)}."
    members = entry.chosen(declaration)
    if _is_decorator(declaration):
        yield from _decorator(entry, declaration, links)
    elif entry.like:
        yield _mirror(entry, members, links)
    elif entry.is_list:
        yield "\n".join(
            wrapped(f"[`{name}`]({links[name]}): {linked(member.doc, links)}", first="- ", rest="  ")
            for member in members
            if (name := f"{entry.receiver}.{member.name}")
        )
    else:
        yield from _rendered_members(entry, declaration, members, links)


def _rendered_members(
    entry: Entry, declaration: Declaration, members: Sequence[Member], links: Mapping[str, str]
) -> Iterator[str]:
    listed = [member for member in members if _is_listed(declaration) and member.kind != "method"]
    if listed:
        yield "\n".join(_item(member, declaration, links) for member in listed)
    for member in members:
        if member not in listed:
            receiver = f"{entry.receiver}." if entry.receiver else ""
            yield f"### `{receiver}{member.name}`"
            is_decorator = member.annotation.endswith("Decorator")
            yield _decorator_block(member, receiver) if is_decorator else _block(signatures(member, receiver))
            yield markdown(member.doc, links)
            if member.kind == "property" and member.annotation in links:
                yield f"See [`{member.annotation}`]({links[member.annotation]})."


def _is_listed(declaration: Declaration) -> bool:
    """Whether fields and properties are items of one list. Those of `Holdfast` and its like have headings."""
    return declaration.name not in {"Holdfast", "Context"}


def _item(member: Member, declaration: Declaration, links: Mapping[str, str]) -> str:
    kind: Any = declaration.value
    if isinstance(kind, type) and issubclass(kind, Enum) and member.kind == "field":
        text = f"{kind.__name__}.{member.name} = {member.default}"
    else:
        annotation = readable(member.annotation, member.source)
        text = f"{member.name}: {annotation}" if annotation else member.name
        text += f" = {member.default}" if member.default and annotation and member.kind == "field" else ""
    doc = linked(" ".join(member.doc.split()), links)
    return wrapped(f"`{text}`: {doc}" if doc else f"`{text}`", first="- ", rest="  ")


def _constructor(declaration: Declaration) -> str:
    found = [one for one in declaration.node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    if found:
        return _block([signature(found[0], declaration.source, declaration.name)])
    fields = [member for member in declaration.members if member.kind == "field"]
    return _block(
        [laid_out(declaration.name, [f"{one.name}={one.default}" if one.default else one.name for one in fields])]
    )


def _block(lines: Sequence[str]) -> str:
    return "```py\n" + "\n".join(lines) + "\n```"


# Decorators


def _is_decorator(declaration: Declaration) -> bool:
    return declaration.name.endswith("Decorator")


def _decorator(entry: Entry, declaration: Declaration, links: Mapping[str, str]) -> Iterator[str]:
    """A decorator, bare and with options."""
    yield _block(_forms(declaration, f"@{entry.receiver}"))
    yield markdown(ast.get_docstring(_calls(declaration)[-1]) or "", links)


def _decorator_block(member: Member, receiver: str) -> str:
    return _block(_forms(declaration_of(member.source.value(member.annotation)), f"@{receiver}{member.name}"))


def _forms(declaration: Declaration, name: str) -> list[str]:
    with_options = next(one for one in _calls(declaration) if one.args.kwonlyargs)
    return [name, laid_out(name, list(parameters(with_options, declaration.source)))]


def _calls(declaration: Declaration) -> list[Function]:
    return [one for one in declaration.node.body if isinstance(one, ast.FunctionDef) and one.name == "__call__"]


# Blocking versions


def _mirror(entry: Entry, members: Sequence[Member], links: Mapping[str, str]) -> str:
    """The members of a blocking class, each with what it returns and the async member that describes it."""
    rows = ["| member | returns | |", "| --- | --- | --- |"]
    for member in members:
        if member.kind == "method":
            forms = dict.fromkeys(_returned(function, member) for function in member.functions)
            shown, returned = f"{entry.receiver}.{member.name}(…)", ", or ".join(f"`{form}`" for form in forms)
        else:
            shown, returned = f"{entry.receiver}.{member.name}", f"`{member.annotation}`"
        behind = f"{entry.like}.{member.name}"
        about = f"like [`{behind}`]({links[behind]})" if behind in links else linked(summary(member.doc), links)
        cell = returned.replace("|", "\\|")
        rows.append(f"| `{shown}` | {cell} | {about} |")
    return "\n".join(rows)


def _returned(function: Function, member: Member) -> str:
    returned, _ = returns(function, member.source)
    if member.made_by != "{}":
        returned = returned.removeprefix("AsyncList[").removesuffix("]")
    return member.made_by.format(returned)
