"""Draw `holdfast explain` and `holdfast show` as they look in a terminal: `make pictures` writes terminal.svg.

The runs are real: those of `holdfast demo`, one of whose workers is killed, and one that waits for an approval.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from holdfast import Context, Holdfast

WIDTH = 104
PICTURE = Path(__file__).with_name("terminal.svg")
HOLDFAST = Path(sys.executable).with_name("holdfast")
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_DATABASE = re.compile(r"sqlite:///\S+\.db")

COLOURS = [(240, 113, 120), (126, 200, 120), (229, 192, 92), (97, 175, 239), (198, 140, 230), (86, 190, 200)]
THEME = TerminalTheme(
    (24, 26, 31),
    (214, 218, 224),
    [(54, 58, 66), *COLOURS, (171, 178, 191)],
    [(92, 99, 112), *COLOURS, (255, 255, 255)],
)


def main() -> None:
    url = _play_demo()
    asyncio.run(_wait_for_approval(url))
    console = Console(record=True, width=WIDTH, force_terminal=True, file=io.StringIO())
    for words in (["explain", "key:refund-4"], ["show", "key:order-A-2"]):
        console.print(Text.assemble(("$ ", "dim"), (f"holdfast {' '.join(words)}", "bold")))
        console.print(Text.from_ansi(_typed(url, *words)))
    drawn = console.export_svg(title="holdfast", theme=THEME, unique_id="holdfast")
    # A picture in a page may load nothing, so it uses a font that the reader has.
    drawn = re.sub(r"@font-face {.*?}\s*", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r"font-family: [^;]+;", f"font-family: {FONTS};", drawn)
    PICTURE.write_text(drawn, encoding="utf-8")
    sys.stdout.write(f"{PICTURE}\n")


def _play_demo() -> str:
    """Play the demo, and keep its database."""
    played = subprocess.run(
        [HOLDFAST, "demo", "--headless", "--keep", "--seconds", "7.5"], capture_output=True, text=True, check=True
    )
    found = _DATABASE.search(played.stdout + played.stderr)
    assert found is not None, played.stdout + played.stderr
    return found.group(0)


async def _wait_for_approval(url: str) -> None:
    hf = Holdfast(url)

    @hf.workflow("shop.refund.v1")
    async def refund(ctx: Context, order: str) -> str:
        await ctx.step("look up", lambda: f"order {order}")
        return str(await ctx.receive("approve", timeout=3 * 86_400))

    async with hf:
        await hf.start(refund, "A-4", key="refund-4")
        await hf.worker().run_until_idle()


def _typed(url: str, *words: str) -> str:
    """Return the output of a command on a terminal of this width."""
    environment = {**os.environ, "COLUMNS": str(WIDTH), "HOLDFAST_URL": url}
    typed = subprocess.run(
        [HOLDFAST, "--color", "always", *words], capture_output=True, text=True, check=True, env=environment
    )
    return typed.stdout


if __name__ == "__main__":
    main()
