"""Reads the Dockerfile, and moves the paths of its image below a folder, so that its commands run without one."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from string import Template

#: Top-level folders of the image that its instructions name.
_FOLDERS = re.compile(r"(?<![\w./-])/(?=(?:opt|src|var|etc)\b)")


class Stage(list[tuple[str, str]]):
    """The instructions of a stage, in order: pairs of a keyword and its arguments, FROM first."""

    def of(self, keyword: str) -> list[str]:
        """The arguments of each instruction of this kind."""
        return [arguments for kind, arguments in self if kind == keyword]

    def command(self, keyword: str) -> list[str]:
        """The words of an instruction in JSON form, such as CMD."""
        (arguments,) = self.of(keyword)
        words: list[str] = json.loads(arguments[arguments.index("[") :])
        return words

    def variables(self, path: str) -> dict[str, str]:
        """The variables of ENV, in an image whose search path is `path`."""
        pairs = (word.split("=", 1) for arguments in self.of("ENV") for word in arguments.split())
        return {name: Template(value).substitute(PATH=path) for name, value in pairs}


def stages(text: str) -> list[Stage]:
    text = re.sub(r"^\s*(#.*)?\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    instructions = [(kind, arguments) for kind, _, arguments in (line.partition(" ") for line in text.splitlines())]
    starts = [number for number, (kind, _) in enumerate(instructions) if kind == "FROM"]
    return [Stage(instructions[start:end]) for start, end in pairwise([*starts, len(instructions)])]


def below(root: Path, text: str) -> str:
    """The text with the paths of the image moved below a folder."""
    return _FOLDERS.sub(f"{root}/", text)
