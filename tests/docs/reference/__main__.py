"""`make reference`: write the API reference to `docs/reference`, and the page about the language of flows."""

from __future__ import annotations

from tests.docs.page import DOCS
from tests.docs.reference import flow_language
from tests.docs.reference.pages import contents

FOLDER = DOCS / "reference"

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    made = contents()
    for path in FOLDER.iterdir():
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    (DOCS / flow_language.FILE).write_text(flow_language.flow_language(), encoding="utf-8")
