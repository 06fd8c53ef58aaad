"""Reads a Dockerfile, and runs its stages without a container: absolute paths become paths below a folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: Top-level folders of an image that its instructions name.
_FOLDERS = re.compile(r"(?<![\w./-])/(?=(?:opt|src|var|etc)/|src\b)")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass
class Stage:
    """The instructions of a stage, in order.

    Attributes:
        base: the image that it starts from.
        name: its name, if it has one.
        instructions: pairs of instruction and arguments.
    """

    base: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def of(self, instruction: str) -> list[str]:
        """The arguments of each instruction of this kind."""
        return [arguments for kind, arguments in self.instructions if kind == instruction]

    def command(self, instruction: str) -> list[str]:
        """The words of an instruction in JSON form, such as CMD."""
        (arguments,) = self.of(instruction)
        words: list[str] = json.loads(arguments[arguments.index("[") :])
        return words

    def variables(self, given: Mapping[str, str]) -> dict[str, str]:
        """The variables of ARG and ENV. `given` are those of the build and of the base image."""
        found = dict(given)
        for kind, arguments in self.instructions:
            for name, _, value in (word.partition("=") for word in arguments.split()):
                if kind == "ENV" or (kind == "ARG" and value and name not in given):
                    found[name] = substituted(value, found)
        return found


def stages(text: str) -> list[Stage]:
    """The stages of a Dockerfile."""
    found: list[Stage] = []
    for kind, arguments in _instructions(text):
        if kind == "FROM":
            base, _, name = arguments.partition(" AS ")
            found.append(Stage(base, name))
        elif found:
            found[-1].instructions.append((kind, arguments))
    return found


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = "\n".join(line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n\s*", " ", lines).splitlines():
        kind, _, arguments = line.partition(" ")
        yield kind, arguments


def substituted(text: str, variables: Mapping[str, str]) -> str:
    """The text with the values of its variables."""
    return _VARIABLE.sub(lambda match: variables.get(match[1], ""), text)


def below(root: Path, text: str) -> str:
    """The text with the paths of the image moved below a folder."""
    return _FOLDERS.sub(f"{root}/", text)


def run_build(stage: Stage, root: Path, context: Path, variables: Mapping[str, str]) -> None:
    """Copies and runs what a stage does, with this Python in the place of the base image's."""
    environment = os.environ | stage.variables(variables)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for kind, arguments in stage.instructions:
        if kind == "COPY":
            copy(arguments, root, context)
        elif kind == "RUN":
            subprocess.run(["sh", "-c", below(root, arguments)], check=True, env=environment, cwd=root)


def copy(arguments: str, root: Path, context: Path) -> None:
    """Copies files and folders of the build context, as COPY does; those of another stage are in place."""
    *sources, target = arguments.split()
    if sources[0].startswith("--from="):
        return
    destination = Path(below(root, target))
    for source in (context / each for each in sources):
        if source.is_dir():
            shutil.copytree(source, destination, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            destination.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, destination)
