"""Every Python and SQL block of the documentation runs, and prints what the page says."""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType

import pytest

from holdfast import Holdfast
from holdfast.testing.patience import GUARD_SECONDS
from tests.docs.page import Block, Page, pages
from tests.duration import lasting
from tests.postgres import find_installation

RUNNABLE = ("python", "sql")
PAGES = [page for page in pages() if any(page.blocks(language) for language in RUNNABLE)]

_ID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


@pytest.fixture
def url(page: Page, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The store for the blocks of a page."""
    if page.store == "sqlite":
        yield f"sqlite:///{tmp_path}/page.db"
        return
    if page.store == "redis":
        yield request.getfixturevalue("redis_url")
        return
    address: str = request.getfixturevalue("postgres_url")
    try:
        yield address
    finally:
        # Roles belong to the server, not to the database, so cleaning the database does not remove them.
        for role in {role for block in page.blocks("sql") for role in re.findall(r"\bcreate role (\w+)", block.text)}:
            psql(address, f"drop owned by {role} cascade; drop role {role};")


@lasting(20)  # a page may start servers
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_in_order(
    page: Page, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HOLDFAST_URL", url)

    with _program(page) as program, asyncio.Runner() as runner:
        for block, expected in _with_output(page):
            printed = psql(url, block.text) if block.language == "sql" else _run(block, page, program, runner)
            if expected is not None:
                _check_output(page, expected, printed)
            elif block.language == "sql":
                assert "ERROR" not in printed, f"{page.name}:{block.line}: {printed}"
        for value in list(vars(program).values()):
            if isinstance(value, Holdfast):
                runner.run(value.close())


def test_only_fragments_are_skipped() -> None:
    blocks = [(page, block) for page in PAGES for language in RUNNABLE for block in page.blocks(language)]
    skipped = [f"{page.name}:{block.line}" for page, block in blocks if block.skip_reason]

    assert len(skipped) <= 3, f"make them run instead: {skipped}"


def psql(url: str, text: str) -> str:
    """Return the output of psql for this input, errors included."""
    command = [str(find_installation().psql), "--no-psqlrc", "--quiet", "--set", "VERBOSITY=terse", url]
    typed = subprocess.run(
        command,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=GUARD_SECONDS,
        check=True,
    )
    return typed.stdout


@contextmanager
def _program(page: Page) -> Iterator[ModuleType]:
    """A module for the blocks of a page, registered so that classes can find their module."""
    program = ModuleType(f"docs_{page.path.stem.replace('-', '_')}")
    known = set(sys.modules)
    sys.modules[program.__name__] = program
    try:
        yield program
    finally:
        saved = {Path(name).stem for block in page.blocks("python") if (name := block.file_name)}
        for name in (set(sys.modules) - known) & {program.__name__, *saved}:
            del sys.modules[name]


def _with_output(page: Page) -> Iterator[tuple[Block, Block | None]]:
    """Yield the blocks to run, each with the block of its expected output, if there is one."""
    blocks = page.blocks()
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block.language in RUNNABLE and block.skip_reason is None:
            is_output = following is not None and following.language == "text"
            is_below = following is not None and following.after == f"```{block.language}"
            yield block, following if is_output and is_below else None


def _run(block: Block, page: Page, program: ModuleType, runner: asyncio.Runner) -> str:
    if block.file_name is not None:
        Path(block.file_name).write_text(block.text, encoding="utf-8")
        return ""
    # Blank lines before it, so that a traceback names the line of the page.
    source = "\n" * (block.line - 1) + block.text
    source = source.replace('if __name__ == "__main__":', "if True:")  # the block is the program that a reader runs
    code = compile(source, str(page.path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with redirect_stdout(io.StringIO()) as printed:
        if code.co_flags & inspect.CO_COROUTINE:
            runner.run(eval(code, vars(program)))  # noqa: S307 - our own documentation
        else:
            exec(code, vars(program))  # noqa: S102 - likewise
    return printed.getvalue()


def _check_output(page: Page, expected: Block, printed: str) -> None:
    pattern = ".*?".join(re.escape(part) for part in _comparable(expected.text).split("…"))
    matches = re.fullmatch(pattern, _comparable(printed), re.DOTALL)

    assert matches, f"{page.name}:{expected.line} says\n{expected.text}\nbut this is printed:\n{printed}"


def _comparable(text: str) -> str:
    """Remove trailing blanks of psql, and replace ids, which differ in each run."""
    lines = _ID.sub("<id>", text).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")
