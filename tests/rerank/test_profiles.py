"""Profiles of published models: every one is a valid configuration, and its facts reach the model."""

import hashlib
import importlib.util
import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from transformers import AutoTokenizer

from rerank import profiles
from rerank.config import ModelConfig, load_config
from rerank.config.named import named_model
from rerank.errors import ConfigError
from rerank.prompting import published as published_templates
from rerank.prompting.style import Guard
from rerank.prompting.templates import load_template
from rerank.reranking.load_models import ModelLoader
from rerank.reranking.registry import load_models
from rerank.service.startup import check_model_files
from tests.causal_lms import write_causal_lm
from tests.fakes import prepared_window
from tests.small_tokenizers import byte_level

pytest.importorskip("ftfy")


@pytest.mark.parametrize("name", profiles.names())
def test_profile_is_a_valid_configuration(name, tmp_path):
    model = load_config(None, [named_model(f"it={name}:{tmp_path}")]).models[0]
    profile = profiles.load_profile(name)
    assert (model.profile, model.ranker) == (name, profile.ranker)  # type: ignore[union-attr]
    assert all(0 < figure < 1 for figure in (profile.figures.ndcg_10 if profile.figures else {}).values())


def test_settings_of_the_profile_are_defaults():
    settings = {"name": "it", "ranker": "first", "profile": "first-mistral", "path": "x", "window_size": 10}
    model = TypeAdapter(ModelConfig).validate_python(settings)
    assert (model.window_size, model.identifiers) == (10, "letters")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ranker": "first", "profile": "rank-zephyr"}, "profile rank-zephyr is of ranker generation, not first"),
        ({"ranker": "first", "profile": "nothing"}, "no profile 'nothing'; the profiles are .*, e2rank, first-mistral"),
    ],
)
def test_profile_that_does_not_fit_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, [{"name": "it", "path": "x"} | settings])


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("published") / "first", "qwen3", byte_level())


def test_served_model_has_the_style_of_its_profile_and_warns_of_our_prompt(published, encoder):
    config = load_config(None, [named_model(f"it=first-qwen3:{published}") | {"template": "first"}])
    registry = load_models(config.models[:1], ModelLoader(encoder, "cpu"))
    ranker = registry.rankers["it"]
    (described,) = registry.describe()
    assert "needs its publisher's prompt (rank_zephyr_alpha_template.yaml of" in described.info.warning
    window = ranker.encode(prepared_window(ranker, "q", ["donâ€™t " * 500, "short"]))
    assert window.truncated == (0,)
    shown = AutoTokenizer.from_pretrained(published).decode(window.prompts[0])
    assert shown.count("don't ") + shown.count("don't\n") == 300
    assert described.info.prompt.startswith("prompt_tokens 4096, shorten words, max_words 300, repair passages")


def test_template_in_the_folder_is_the_publishers(published, encoder, tmp_path):
    folder = tmp_path / "with-template"
    folder.symlink_to(published)
    template = published / "template.yaml"
    template.write_text("{prefix: '{query}', body: '[{rank}] {candidate} ', suffix: 'order {num}'}", encoding="utf-8")
    try:
        models = load_config(None, [named_model(f"it=first-qwen3:{folder}")]).models[:1]
        assert models[0].template == str(folder / "template.yaml")  # type: ignore[union-attr]
        assert load_models(models, ModelLoader(encoder, "cpu")).describe()[0].info.warning == ""
    finally:
        template.unlink()


def test_prompt_of_the_program_that_reads_the_template_is_taken(tmp_path):
    """FIRST's own code reads its own prompt with other limits than RankLLM reads RankLLM's prompt."""
    (tmp_path / "template.yaml").write_text("{}", encoding="utf-8")
    own = load_config(None, [named_model(f"it=first-zephyr:{tmp_path}")]).models[0]
    rank_llms = load_config(None, [named_model("it=first-zephyr:elsewhere")]).models[0]
    assert (own.prompt.prompt_tokens, own.prompt.titles, own.prompt.repair) == (32768, "sentence", "prompt")
    assert (rank_llms.prompt.prompt_tokens, rank_llms.prompt.titles) == (4096, "labelled")
    assert own.prompt.guards == rank_llms.prompt.guards == (Guard.MARKUP,)


def test_line_end_that_a_template_lost_is_a_warning(encoder, tmp_path):
    """YAML's | keeps one line end: FIRST's empty line after the query was lost, which moved 4 of 20 places."""
    folder = write_causal_lm(tmp_path / "first", "mistral", byte_level())

    def warning(prefix: str) -> str:
        parts = {"prefix": f"rank for {{query}}{prefix}", "body": "[{rank}] {candidate}\n", "suffix": "order {num}"}
        (folder / "template.yaml").write_text(json.dumps(parts), encoding="utf-8")
        models = load_config(None, [named_model(f"it=first-zephyr:{folder}")]).models[:1]
        return load_models(models, ModelLoader(encoder, "cpu")).describe()[0].info.warning

    message = "template.yaml differs from its publisher's prompt: prefix ends with 1 line ends, not 2; in YAML"
    assert message in warning("\n")
    assert warning("\n\n") == ""


@pytest.mark.parametrize(
    ("template", "way_out"),
    [
        ("rank_lrl", "names such as PASSAGE1.*use rank-llm:rank_gpt"),
        ("insert_rank", "scores.*use rank-llm:rank_zephyr"),
    ],
)
def test_template_of_another_form_names_the_one_to_use(template, way_out):
    with pytest.raises(ConfigError, match=way_out):
        load_template(f"rank-llm:{template}")


def test_settings_replace_keys_of_the_profiles_prompt_one_by_one():
    settings = named_model("it=rank-zephyr:x") | {"prompt": {"guards": [], "max_words": 200}}
    (model, *_) = load_config(None, [settings]).models
    assert (model.prompt.guards, model.prompt.max_words, model.prompt.order_tokens) == ((), 200, "exact")


@pytest.mark.parametrize(
    ("ranker", "prompt", "message"),
    [
        ("first", {"order_tokens": "exact"}, "order_tokens has no effect on this ranker"),
        ("first", {"encoder_tokens": 512}, "encoder_tokens has no effect"),
        ("generation", {"encoder_text": "shown"}, "encoder_text has no effect"),
        ("pe-rank", {"titles": "labelled", "max_words": 3}, "max_words, titles has no effect"),
        ("e2rank", {"order_tokens": "exact"}, "order_tokens has no effect"),
        ("first", {"max_word": 3}, "max_words"),
        ("first", {"shorten": "words"}, "needs max_words"),
    ],
)
def test_key_without_an_effect_is_refused(ranker, prompt, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, [{"name": "it", "path": "x", "ranker": ranker, "prompt": prompt}])


def test_exact_order_and_reasoning_exclude_one_another():
    model = {"name": "it", "path": "x", "ranker": "generation", "thinking_tokens": 9}
    with pytest.raises(ConfigError, match="order_tokens: exact has no effect with thinking_tokens"):
        load_config(None, [model | {"prompt": {"order_tokens": "exact"}}])


def write_package(folder: Path, **templates: str) -> None:
    """An installed package rank-llm, with these templates."""
    (folder / "rank_llm-9.9.dist-info").mkdir(parents=True)
    metadata = "Metadata-Version: 2.1\nName: rank-llm\nVersion: 9.9\n"
    (folder / "rank_llm-9.9.dist-info" / "METADATA").write_text(metadata, encoding="utf-8")
    inside = folder / "rank_llm" / "rerank" / "prompt_templates"
    inside.mkdir(parents=True)
    for name, text in templates.items():
        (inside / f"{name}_template.yaml").write_text(text, encoding="utf-8")


def test_template_of_the_package_is_read_without_its_code(tmp_path, monkeypatch):
    text = "{prefix: '{query}', body: '[{rank}] {candidate} ', suffix: 'order {num}'}"
    write_package(tmp_path, rank_zephyr=text)
    (tmp_path / "rank_llm" / "__init__.py").write_text("raise AssertionError", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    monkeypatch.setitem(published_templates._SHA256, "rank_zephyr", sha256)
    assert load_template("rank-llm:rank_zephyr").sha256 == sha256


def test_template_of_another_release_is_refused_with_both_hashes(tmp_path, monkeypatch):
    write_package(tmp_path, rank_zephyr="{}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"rank-llm 9\.9 has the SHA-256 44136fa.*0\.25\.7 has 30558fd"):
        load_template("rank-llm:rank_zephyr")


@pytest.mark.skipif(importlib.util.find_spec("rank_llm") is not None, reason="the package is installed")
def test_missing_package_and_template_are_named(published, tmp_path, monkeypatch):
    (model, *_) = load_config(None, [named_model(f"it=first-qwen3:{published}")]).models
    with pytest.raises(ConfigError, match=r"model it: .*not installed here.*pip install --no-deps rank-llm==0\.25\.7"):
        check_model_files(model)
    with pytest.raises(ConfigError, match=r"is not one of rank-llm:qwen_thinking.*did you mean rank-llm:rank_gpt\?"):
        load_template("rank-llm:rank_gtp")
    write_package(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="No such file"):
        load_template("rank-llm:rank_zephyr")
