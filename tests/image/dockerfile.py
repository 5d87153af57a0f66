"""Reading the Dockerfile: its instructions in order, by stage.

What belongs here: parsing what this project's Dockerfile uses. What does not: running it (`follow`).
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; `arguments` are as they stand there, with continued lines joined."""

    word: str
    arguments: str

    def words(self, variables: Mapping[str, str]) -> list[str]:
        """Return the arguments as words, with variables filled in."""
        return [fill(word, variables) for word in shlex.split(self.arguments)]

    def flags(self, variables: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
        """Return the leading `--name=value` words, and the rest."""
        words = self.words(variables)
        flags = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
        return flags, [word for word in words if not word.startswith("--")]


@dataclass(frozen=True, slots=True)
class Stage:
    """A FROM and what follows it."""

    base: str
    name: str
    instructions: tuple[Instruction, ...]


def fill(text: str, variables: Mapping[str, str]) -> str:
    """Fill `$X` and `${X}`; what is not set is empty, as the builder has it."""
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], ""), text)


def instructions(text: str) -> list[Instruction]:
    """Return all instructions of a Dockerfile."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", "", "\n".join(lines))
    found = (line.strip().split(None, 1) for line in joined.splitlines() if line.strip())
    return [Instruction(word.upper(), rest) for word, rest in found]


def stages(text: str, arguments: Mapping[str, str]) -> list[Stage]:
    """Return the stages; `arguments` replace the defaults of the ARG before the first FROM."""
    shared: dict[str, str] = {}
    found: list[tuple[str, str, list[Instruction]]] = []
    for one in instructions(text):
        if one.word == "FROM":
            base, _, name = fill(one.arguments, shared).partition(" AS ")
            found.append((base, name, []))
        elif found:
            found[-1][2].append(one)
        else:
            name, _, default = one.arguments.partition("=")
            shared[name] = arguments.get(name, default)
    return [Stage(base, name, tuple(some)) for base, name, some in found]
