"""The configuration of a single model, by its name or its folder."""

import re
from pathlib import Path

import pytest

from rerank.config.loading import load_config
from rerank.config.named import config_of_model, named_model
from rerank.errors import ConfigError


def test_folder_of_a_checkpoint_is_the_default_model():
    folder = Path(__file__).parents[3] / "rerank/checkpoints/pe_rank_minilm"
    (model, *_) = config_of_model(str(folder)).models
    assert (model.name, model.ranker) == ("pe_rank_minilm", "pe-rank")


@pytest.mark.parametrize("name", ["", "pe-runk", "no/such/folder"])
def test_other_name_is_refused_with_the_names_that_are_known(name):
    with pytest.raises(ConfigError, match="first, pe-rank-first, identity, and there is no such folder"):
        config_of_model(name)


def test_folder_without_a_manifest_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"has no rerank\.json.*write PROFILE:/") as caught:
        config_of_model(str(tmp_path))
    assert str(caught.value).startswith(f"model '{tmp_path}': {tmp_path} has no")
    assert "--model" not in str(caught.value)


def test_folder_without_a_model_is_refused_with_the_result_inside_it(tmp_path):
    missing = "rerank.json, config.json, adapter_config.json"
    with pytest.raises(ConfigError, match=f"holds no checkpoint: it has no {missing}; .* such as runs/mine/final"):
        config_of_model(str(tmp_path))
    (tmp_path / "final").mkdir()
    with pytest.raises(ConfigError, match=f"such as {tmp_path}/final"):
        config_of_model(str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"^--model a=no/such: there is no folder no/such, and https://.*HF_HUB_OFFLINE is set"
    ):
        named_model("a=no/such")


@pytest.mark.parametrize("form", ["", "mine="])
@pytest.mark.parametrize(
    ("config", "named", "unnamed"),
    [
        ("{}", ["rank-zephyr", "e2rank", "rank-gpt", "pe-rank"], []),
        (
            '{"model_type": "mistral", "architectures": ["MistralForCausalLM"]}',
            ["of a mistral (first-mistral, first-zephyr, rank-zephyr)", "(rank-gpt, ", "(first, generation)"],
            ["rank-vicuna", "pe-rank"],
        ),
        (
            '{"model_type": "phi", "architectures": ["PhiForCausalLM"]}',
            ["a profile of any chat model (rank-gpt, ", "(first, generation)"],
            ["rank-zephyr"],
        ),
        ('{"model_type": "embed_mistral"}', ["of a embed_mistral (pe-rank-mistral-jina)"], ["rank-zephyr"]),
        ('{"model_type": "bert", "architectures": ["BertModel"]}', ["a BertModel, ", "--encoder "], ["PROFILE"]),
    ],
)
def test_folder_without_a_manifest_is_refused_with_what_fits_its_architecture(config, named, unnamed, form, tmp_path):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError) as caught:
        config_of_model(f"{form}{tmp_path}")
    assert [text for text in named if text not in str(caught.value)] == []
    assert [text for text in unnamed if text in str(caught.value)] == []
    assert ("PROFILE" not in str(caught.value)) or f"write {form}PROFILE:{tmp_path}" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "meant"), [("foo", ""), ("rank-zefyr", "did you mean rank-zephyr?"), ("frist", "did you mean first?")]
)
def test_unknown_profile_is_refused_with_those_that_fit(kind, meant, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    for read in (named_model, config_of_model):
        with pytest.raises(ConfigError, match=f"'{kind}' is neither a profile nor a ranker;.*rank-vicuna") as caught:
            read(f"mine={kind}:{tmp_path}")
        assert meant in str(caught.value)


def test_command_line_without_a_folder_is_refused_with_the_form():
    for given, way_out in [("=x", "as in default=x"), ("frist", "did you mean first?")]:
        with pytest.raises(ConfigError, match=f"'{given}' is none of default, .*{re.escape(way_out)}"):
            named_model(given)


def test_model_of_one_call_is_given_as_to_the_service(tmp_path):
    folder = tmp_path / "lr=1"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    for given, name, ranker in [
        (f"mine=first:{folder}", "mine", "first"),
        (f"generation:{folder}", "lr=1", "generation"),
        (f"mine=rank-vicuna:{folder}", "mine", "generation"),
        ("mine=pe-rank", "mine", "pe-rank"),
    ]:
        model = config_of_model(given).models[0]
        assert (model.name, model.ranker) == (name, ranker)
    (folder / "rerank.json").write_text('{"ranker": "first"}')
    assert config_of_model(str(folder)).models[0].name == "lr=1"


def test_file_is_no_folder_of_a_model(tmp_path):
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ConfigError, match=r"model\.gguf is a file; give the folder"):
        named_model(f"mine={tmp_path / 'model.gguf'}")


def test_bundled_model_may_be_added_by_its_name():
    config = load_config(None, [named_model("pe-rank-first")])
    assert [model.name for model in config.models] == ["pe-rank-first", "default", "pe-rank", "first", "identity"]
    assert config.models[0] == config_of_model("pe-rank-first").models[0]
