"""The user's application: the `Holdfast` object that `MODULE:ATTR` names. Only commands that need its code load it."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.app import Holdfast, session_of
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.option import Settings
from holdfast.config.secret import scrubbed
from holdfast.config.settings import APPLICATION


def named_application(target: str | None, settings: Settings) -> tuple[str, Path | None]:
    """Return the MODULE:ATTR from the command line or the configuration, and the directory to import it from.

    If a settings file names it, the import starts in the directory of that file, for any current directory.
    """
    if target is not None:
        return target, None
    origin = settings.configuration.origin(APPLICATION)
    if origin.value is None:
        raise Refusal(
            "name your Holdfast object, as in shop:hf for `hf` in shop.py; or set `application` in the settings file, "
            f"or the variable {APPLICATION.variable}"
        )
    return origin.value, origin.folder


def load_application(target: str, url: str | None = None, directory: Path | None = None) -> Holdfast:
    """Import the object. The import path includes `directory`, by default the current directory.

    `url` is the URL from the command line.
    """
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise Refusal(f"{target!r}: name the module and the Holdfast object in it, as in shop:hf")
    if module_name.endswith(".py") or "/" in module_name:
        guess = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise Refusal(f"{target!r}: name the module, not its file: {guess}:{attribute}")
    here = str(directory or Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if url is not None:
        os.environ["HOLDFAST_URL"] = url  # `Holdfast()` in the application reads it
    found = _application(_imported(module_name, here), attribute)
    if url is not None and session_of(found).url != url:
        raise Refusal(
            f"{target} uses {scrubbed(session_of(found).url)}, but --url says {scrubbed(url)}; "
            "remove one of them: `Holdfast()` without a URL uses the URL from the command line"
        )
    return found


def _imported(name: str, here: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise Refusal(
                f"there is no module {error.name!r} in {here} or among the installed packages; "
                "is this the right directory?"
            ) from error
        raise Refusal(f"importing {name!r} failed: {error}", ExitCode.FAILED) from error
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}{_place(error)}"
        raise Refusal(f"importing {name!r} failed: {what}; -vv shows the traceback", ExitCode.FAILED) from error


def _place(error: BaseException) -> str:
    """Return the file and line that raised the error, which explains most mistakes in a module."""
    if isinstance(error, SyntaxError):
        return ""  # its message names the line
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f" ({traceback.tb_frame.f_code.co_filename}, line {traceback.tb_lineno})" if traceback else ""


def _application(module: ModuleType, path: str) -> Holdfast:
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            raise Refusal(f"{module.__name__!r} has no {path!r}; {_candidates(module)}")
        found = getattr(found, name)
    if not isinstance(found, Holdfast):
        raise Refusal(f"{module.__name__}:{path} is a {type(found).__name__}, not a Holdfast; {_candidates(module)}")
    return found


def _candidates(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Holdfast)]
    if not names:
        return "it contains no Holdfast object; add `hf = Holdfast()` to it"
    return f"did you mean {' or '.join(f'{module.__name__}:{name}' for name in names)}?"
