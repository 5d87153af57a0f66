"""What the pages of the documentation show: their commands and blocks of code.

What belongs here: finding them. What does not: running them (`test_commands`).
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    """Return the contents of a page's blocks in a language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def commands(page: str) -> list[str]:
    """Return the commands that a page tells people to type."""
    return [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]
