"""YAML files: the line of each part, and what is refused with one line that names it."""

import time

import pytest

from rerank.errors import ConfigError
from rerank.util.yaml_files import parse_yaml


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: " + "1" * 5000, "line 1: the value cannot be read as int, or has too many digits"),
        ("b: 1\na: 0x" + "f" * 5000, "line 2: the number has too many digits; at most 18 are read"),
        ("[" * 100_000 + "]" * 100_000, "line 1: more than 50 mappings and lists inside one another"),
        ("- " * 5000, "line 1: more than 50"),
        ("a: 1\nb:\n  c: 2\n  c: 3", "line 4: the key 'c' is in line 3 already"),
        ("a: 2024-13-45", "line 1: the value cannot be read as timestamp"),
        ("a: !!int ''", "line 1: the value cannot be read as int"),
        ("a: 1\nb: \x00", r"line 2: the character U\+0000 is not allowed in YAML; remove it"),
        ('a: "\\0"', "line 1: the text has a NUL or half a character"),
        ('a: "\\ud800"', "line 1: the text has a NUL or half a character"),
        ("a: *b", "line 1: found undefined alias 'b'"),
        ("a: 1\n--- b", "line 2: expected a single document in the stream, but found another document"),
        ("a: !!python/object:os.system x", "line 1: could not determine a constructor for the tag"),
    ],
)
def test_text_that_cannot_be_read_is_refused_with_its_line(text, problem):
    with pytest.raises(ConfigError, match=rf"^settings\.yaml: {problem}") as caught:
        parse_yaml(text, "settings.yaml")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_line_is_that_of_the_part_or_of_what_is_around_it():
    file = parse_yaml("listen: x\nmodels:\n  - name: a\n    path: b\n  - {name: c,\n     path: d}\n", "f")
    lines = {("listen",): 1, ("models",): 2, ("models", 0, "path"): 4, ("models", 1): 5}
    lines |= {("models", 1, "tag", "path"): 6}
    assert {location: file.line_of(location) for location in lines} == lines
    assert file.line_of(("models", 1, "missing")) == 5
    assert file.line_of(("models", 7)) == 2
    assert file.line_of(()) == file.line_of(("missing",)) == 1


def test_merges_of_merges_take_no_time():
    levels = [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}], k{n}: 1}}" for n in range(1, 30)]
    start_s = time.monotonic()
    content = parse_yaml("\n".join(["a0: &a0 {k0: 1}", *levels]), "f").content
    assert len(content["a29"]) == 30
    assert time.monotonic() - start_s < 10  # without a bound, the age of the universe
