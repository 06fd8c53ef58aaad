"""The walk of a request or a command counts the functions that ran for it, in the order of their first run."""

import importlib
import json
import sys

from scripts.bench import walk
from scripts.bench.walk import Function, Recorder, figures

MODULE = """
def at_import():
    pass

at_import()

class Model:
    at_import()

    def rank(self):
        return [score() for _ in range(3)]

def score():
    pass
"""


def test_functions_that_run_while_a_module_is_imported_do_not_count(tmp_path, monkeypatch):
    (tmp_path / "walked_module.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(walk, "_PACKAGES", (str(tmp_path),))
    recorder = Recorder(out := tmp_path / "calls.json")
    recorder.switch()
    sys.setprofile(recorder.on_event)
    try:
        importlib.import_module("walked_module").Model().rank()
    finally:
        sys.setprofile(None)
    recorder.switch()
    calls = {name: count for _, name, count in json.loads(out.read_text(encoding="utf-8")) if "<" not in name}
    assert calls == {"Model.rank": 1, "score": 3}


def test_return_is_a_step_to_a_file_that_was_left():
    rows = [Function("a", "f", 1), Function("a", "g", 1), Function("b", "h", 2), Function("a", "i", 3)]
    assert figures(rows) == {"files": 2, "functions": 4, "returns": 1, "calls": 7}
    assert figures([]) == {"files": 0, "functions": 0, "returns": 0, "calls": 0}
