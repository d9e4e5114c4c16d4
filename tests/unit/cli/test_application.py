"""Finding the user's application."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.cli.application import load_application
from holdfast.cli.exits import ExitCode, Refusal


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new current directory, removed from the import path afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in [name for name in sys.modules if name.startswith("app_")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def test_an_application_is_found_in_the_current_directory(here: Path) -> None:
    (here / "app_good.py").write_text("from holdfast import Holdfast\nclass inner:\n    hf = Holdfast('memory://')\n")

    assert isinstance(load_application("app_good:inner.hf"), Holdfast)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("app", "'app': name the module and the Holdfast object in it, as in shop:hf"),
        ("app:", "name the module and the Holdfast object"),
        ("shop/app.py:hf", "name the module, not its file: shop.app:hf"),
        ("no_such_module:hf", "there is no module 'no_such_module' in"),
        ("json.no_such_module:hf", "there is no module 'json.no_such_module'"),
        ("json:hf", "'json' has no 'hf'; it contains no Holdfast object"),
        ("json:loads", "json:loads is a function, not a Holdfast"),
    ],
)
def test_a_wrong_name_is_a_usage_error(target: str, message: str) -> None:
    with pytest.raises(Refusal, match=message) as refusal:
        load_application(target)

    assert refusal.value.code is ExitCode.USAGE


def test_a_similar_object_is_suggested(here: Path) -> None:
    (here / "app_other.py").write_text("from holdfast import Holdfast\nengine = Holdfast('memory://')\n")

    with pytest.raises(Refusal, match=r"did you mean app_other:engine\?"):
        load_application("app_other:hf")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_dependency", "importing 'app_bad' failed: No module named 'no_such_dependency'"),
        ("x =", "SyntaxError: .*app_bad.py, line 1"),
        ("\n1 / 0", "ZeroDivisionError: division by zero .*app_bad.py, line 2"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_an_application_that_cannot_be_imported_says_why(here: Path, source: str, message: str) -> None:
    (here / "app_bad.py").write_text(source)

    with pytest.raises(Refusal, match=message) as refusal:
        load_application("app_bad:hf")

    assert refusal.value.code is ExitCode.FAILED
