"""Reads users' YAML files, with line numbers; refuses content that Python would misread or never finish reading."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rerank.errors import ConfigError
from rerank.util.files import read_text

#: Allowed levels of mappings and lists inside one another; this package's files have five.
_MAX_LEVELS = 50
#: Larger numbers are not sizes, times or counts, and Python refuses to print numbers of more than 4,300 digits.
_MAX_NUMBER_BITS = 63


@dataclass(frozen=True)
class YamlFile:
    """The content of a YAML file, and the lines of its parts.

    Attributes:
        path: the path of the file, for messages.
        content: the value of the file; None if the file is empty.
    """

    path: Path | str
    content: Any
    _root: yaml.Node | None

    def line_of(self, location: Sequence[object]) -> int:
        """The 1-based line of a part, such as ("models", 0, "path"); of a missing part, the line of its parent."""
        node, line = self._root, 1
        for part in location:
            if (child := _child(node, part)) is not None:
                mark, node = child
                line = mark.line + 1
        return line

    def file_and_line(self, location: Sequence[object]) -> str:
        """The path of the file and the line of a part, for the beginning of a message."""
        return f"{self.path}: line {self.line_of(location)}"


def read_yaml(path: Path) -> YamlFile:
    """Reads a file. Raises: ConfigError if the file cannot be read or parsed; see `parse_yaml`."""
    return parse_yaml(read_text(path), path)


def parse_yaml(text: str, path: Path | str) -> YamlFile:
    """Parses the text of the file `path`.

    Raises:
        ConfigError: the text is not YAML, has a key twice in a mapping, more than 50 levels, or a value that cannot be
            read. The message names the line. It quotes only keys, tags and anchors, as values may be secret.
    """
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        return YamlFile(path, None if root is None else loader.construct_document(root), root)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"{path}: line {line}: the character U+{error.character:04X} is not allowed in YAML; remove it"
        ) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}: line {line}: {', '.join(filter(None, (error.context, error.problem)))}") from error


def _child(node: yaml.Node | None, part: object) -> tuple[yaml.Mark, yaml.Node] | None:
    """The position of a part of a node in the file, and its value; None if the node has no such part."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark, node.value[part]
    return None


class _Loader(yaml.SafeLoader):
    """PyYAML's loader in Python with limits. PyYAML's loader in C crashes at a hundred thousand brackets."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._levels = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._levels += 1
        if self._levels > _MAX_LEVELS:
            raise _problem(
                f"more than {_MAX_LEVELS} mappings and lists inside one another", self.peek_event().start_mark
            )
        node = super().compose_node(parent, index)
        self._levels -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in lines:
                    first = lines[key.value]
                    raise _problem(f"the key {reprlib.repr(key.value)} is in line {first} already", key.start_mark)
                lines[key.value] = key.start_mark.line + 1
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        # Keeps the last entry of each key, because a few merges (`<<`) of merges can have billions of entries.
        node.value = list({_identity(key): (key, value) for key, value in node.value}.values())

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:  # from int(), datetime() and PyYAML's own code
            kind = node.tag.rpartition(":")[2]
            problem = f"the value cannot be read as {kind}, or has too many digits"
            raise _problem(problem, node.start_mark) from error
        if isinstance(value, int) and value.bit_length() > _MAX_NUMBER_BITS:
            raise _problem("the number has too many digits; at most 18 are read", node.start_mark)
        if isinstance(value, str) and not _is_plain(value):
            raise _problem("the text has a NUL or half a character (a surrogate)", node.start_mark)
        return value


def _problem(text: str, mark: yaml.Mark) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=mark)


def _identity(key: yaml.Node) -> object:
    return (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)


def _is_plain(text: str) -> bool:
    """True if the text can be printed and used as a path: it has no NUL, and no half of a surrogate pair."""
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text)
