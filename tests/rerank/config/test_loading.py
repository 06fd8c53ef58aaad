"""The configuration: reading, defaults, overrides, and the refusal of unknown keys and invalid values."""

import subprocess
import sys
from pathlib import Path

import pytest

from rerank.config import EngineConfig, IdentityModel, PERankModel, ServiceConfig, load_config
from rerank.errors import ConfigError
from rerank.names import FirstStageKind

TWO_MODELS = """
listen: 0.0.0.0:9
index: /some/index
models:
  - {name: a, ranker: identity, strategy: top_down, window_size: 7}
  - {name: b, ranker: pe-rank, path: /some/checkpoint, decoding: dynamic}
engine: {max_batch_tokens: 100}
drain_s: 0
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def test_settings_that_the_file_leaves_out_keep_their_default(path):
    path.write_text(TWO_MODELS)
    assert load_config(path) == ServiceConfig(
        listen="0.0.0.0:9",
        index=Path("/some/index"),
        models=(
            IdentityModel(name="a", ranker="identity", strategy="top-down", window_size=7),
            PERankModel(name="b", ranker="pe-rank", path=Path("/some/checkpoint"), window_size=200, decoding="dynamic"),
        ),
        engine=EngineConfig(max_batch_tokens=100, max_queue_tokens=1_000_000),
        drain_s=0.0,
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lissten: x", r"line 1: lissten: unknown setting; did you mean listen\?$"),
        ("drain_s: 1\nport: 3", r"line 2: port: unknown setting; leave it out$"),
        (
            "models: [{name: a, ranker: fist}]",
            r"models\[0\]: ranker should be one of identity, fusion, pe-rank, e2rank, first, generation, "
            r"fusion-in-decoder, jina-listwise, cross-encoder, late-interaction, api; did you mean first\?$",
        ),
        ("models: [{name: a}]", r"models\[0\]: ranker is missing$"),
        (
            "models: [{name: a, rankr: fusion}]",
            r"models\[0\]: ranker .* rankr is an unknown .*; did you mean ranker\?$",
        ),
        (
            "models:\n  - {name: a, ranker: identity}\n  - name: b\n    ranker: pe-rank\n    decoding: dynamik",
            r"line 5: models\[1\]\.decoding: should be 'one_step' or 'dynamic', given 'dynamik'$",
        ),
        ("http: true", r"http: expected HOST:PORT, such as 127.0.0.1:8080, or a mapping with listen, .*, given True$"),
        ("http:\n  model_aliases: {gpt: defualt}", r"line 2: http\.model_aliases names defualt, .* mean default\?$"),
        ("limits: {max_candidates: '20'}", r"limits\.max_candidates: expected a whole number, given '20'$"),
        (
            "limits: {max_connection_age_s: 1.0e+15}",
            r"limits\.max_connection_age_s: .* less than or equal to 1000000, g",
        ),
        ("listen: 50051", r"listen: expected HOST:PORT, such as 127\.0\.0\.1:50051, given 50051$"),
        ("- a list", r"expected keys and values, found list"),
        ("listen: a\nmodels: []\nlisten: b", r"line 3: the key 'listen' is in line 1 already$"),
    ],
)
def test_invalid_file_is_refused_with_the_name_of_the_key(path, text, problem):
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_command_line_beats_the_file_in_a_mapping_key_by_key(path):
    path.write_text("http: {listen: '127.0.0.1:1', allowed_hosts: [mine]}\n")
    config = load_config(path, http={"listen": "127.0.0.1:2"})
    assert (config.http.listen, config.http.allowed_hosts) == ("127.0.0.1:2", ("mine",))
    path.write_text("http: 127.0.0.1:1\n")
    assert load_config(path, http={"listen": "127.0.0.1:2"}).http.listen == "127.0.0.1:2"


@pytest.mark.parametrize(
    ("models", "first", "given"),
    [
        ("[]", [], "none"),
        ("[{name: a, ranker: identity}, {name: a, ranker: pe-rank}]", [], "a, a"),
        ("[{name: a, ranker: identity}]", [{"name": "a", "ranker": "identity"}], "a, a"),
    ],
)
def test_models_must_have_distinct_names(path, models, first, given):
    path.write_text(f"models: {models}")
    with pytest.raises(ConfigError, match=f"models must be one or more with distinct names, given: {given}$"):
        load_config(path, first)


def test_first_model_replaces_the_default_model_of_the_same_name():
    models = load_config(None, [{"name": "default", "ranker": "first", "path": "mine"}]).models
    assert [model.name for model in models] == ["default", "pe-rank", "first", "pe-rank-first", "identity"]
    assert models[0].path == Path("mine")


def test_each_problem_names_the_file_or_the_command_line(path):
    path.write_text("http:\n  listen: 3\n  qrels: 4\nmodels:\n- {name: b, ranker: x}")
    with pytest.raises(ConfigError) as caught:
        load_config(path, [{"name": "a", "ranker": "y"}], http={"listen": 5}, drain_s="soon")
    places = {problem.rpartition(": ")[0].removeprefix(str(path)) for problem in str(caught.value).split("; ")}
    assert places == {
        "command line: http.listen",
        ": line 3: http.qrels",
        "command line: models[0]",
        ": line 5: models[1]",
        "command line: drain_s",
    }


def test_default_window_is_that_of_the_checkpoint(path, tmp_path):
    (tmp_path / "rerank.json").write_text('{"window_size": 6}')
    path.write_text(
        f"models: [{{name: bundled, ranker: first}}, {{name: mine, ranker: first, path: {tmp_path}}}, "
        f"{{name: wide, ranker: first, window_size: 8}}, {{name: unknown, ranker: first, path: {tmp_path / 'none'}}}]"
    )
    models = load_config(path).models
    assert [model.read_window_size() for model in models] == [20, 6, 8, 20]


def test_importing_the_settings_opens_no_checkpoint():
    code = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
import rerank.config
print([path for path in opened if path.endswith((".json", ".safetensors"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


CASCADE = "{name: %s, ranker: first, strategy: cascade, preranker: %s}"
A_TO_B, IDENTITY = CASCADE % ("a", "b"), "{name: c, ranker: identity}"


@pytest.mark.parametrize(
    ("models", "problem"),
    [
        ("{name: a, ranker: first, strategy: cascade}", "the strategy cascade needs a preranker; name another model"),
        (A_TO_B, "preranker 'b' of a: there is no such model; add another model, or leave preranker out"),
        (f"{{name: a, ranker: first, preranker: a}}, {IDENTITY}", "preranker 'a' of a makes no cascade of .*; use c"),
        (f"{A_TO_B}, {CASCADE % ('b', 'a')}, {IDENTITY}", "preranker 'b' of a makes no cascade of at most 3 .*; use c"),
        (
            f"{A_TO_B}, {CASCADE % ('b', 'c')}, {CASCADE % ('c', 'd')}, {{name: d, ranker: identity}}",
            "preranker 'b' of a makes no cascade of at most 3 different models; use c or d",
        ),
    ],
)
def test_preranker_must_be_another_model_in_no_circle(path, models, problem):
    path.write_text(f"models: [{models}]")
    with pytest.raises(ConfigError, match=problem):
        load_config(path)


def test_model_decides_about_the_weight_of_a_kind(path):
    for ranker, weight in (("pe-rank", 0.25), ("e2rank", 0.0)):
        path.write_text(f"models: [{{name: a, ranker: {ranker}}}]")
        assert {load_config(path).models[0].weight_for(kind) for kind in FirstStageKind} == {weight}
    path.write_text("models: [{name: a, ranker: fusion}, {name: b, ranker: fusion, first_stage_weight: 0.5}]")
    by_list, fixed = load_config(path).models
    assert [by_list.weight_for(kind) for kind in FirstStageKind] == list(FirstStageKind)
    assert {fixed.weight_for(kind) for kind in FirstStageKind} == {0.5}
