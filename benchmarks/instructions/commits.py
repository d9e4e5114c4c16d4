"""The source of another commit, in a temporary worktree."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.instructions.counters import CannotMeasure

PROJECT = Path(__file__).parents[2]


def commit_named(name: str) -> str:
    """Return the full id of a commit."""
    return _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", trouble=f"there is no commit {name!r}")


def last_change_of(path: Path) -> str:
    """Return the commit that last changed a file."""
    found = _git("log", "-1", "--format=%H", "--", str(path), trouble="the history cannot be read")
    if not found:
        raise CannotMeasure(f"no commit has changed {path.name} yet; name the one to compare with: --base REV")
    return found


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A folder with the files of a commit, removed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="holdfast-base-") as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--detach", str(tree), commit, trouble=f"{commit} cannot be checked out")
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree), trouble=f"the worktree {tree} cannot be removed")


def _git(*words: str, trouble: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, text=True, check=False)  # noqa: S607
    except FileNotFoundError:
        raise CannotMeasure(f"{trouble}: git is not installed") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise CannotMeasure(f"{trouble}: {said[-1]}" if said else trouble)
    return done.stdout.strip()
