"""`make reference`: write the pages of the API reference to `docs/reference`."""

from __future__ import annotations

from tests.docs.page import DOCS
from tests.docs.reference.pages import contents

FOLDER = DOCS / "reference"

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    made = contents()
    for path in FOLDER.glob("*.md"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
