"""A configuration with names on the hub: profiles by names, prompts, and the encoder that a model brings."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rerank import profiles
from rerank.checkpoints import hub as module
from rerank.checkpoints.publisher_prompt import template_of
from rerank.config import EncoderConfig, PERankModel, ServiceConfig, load_config
from rerank.config.hub_models import download_models
from rerank.config.named import config_of_model, named_model
from rerank.errors import ConfigError
from rerank.profiles import PublisherPrompt
from rerank.service.startup import check_model_files
from tests.hub_server import HubServer, running_hub, use_hub

FIRST, PE_RANK, RERANKER = "castorini/first_mistral", "liuqi6777/pe-rank-mistral-jina", "org/reranker"
SOURCE_FILE = f"{'0' * 40}/prompts.py"
SOURCE = b"P = f'Order for {query}.'\nB = f'[{i}] <V>'\nS = 'Now.'\n"
PROMPT = PublisherPrompt(
    repository="owner/code",
    files=(SOURCE_FILE,),
    literals={
        part: (hashlib.sha256(text.encode()).hexdigest(),)
        for part, text in {"prefix": "Order for {query}.", "body": "[{i}] <V>", "suffix": "Now."}.items()
    },
    replace={"{i}": "{rank}", "<V>": "{candidate}"},
    sha256=hashlib.sha256(
        template_of({"prefix": "Order for {query}.", "body": "[{rank}] {candidate}", "suffix": "Now."})
    ).hexdigest(),
)


def write_model(folder: Path, model_type: str, architecture: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": [architecture]}))
    (folder / "model.safetensors").write_bytes(b"weights of " + folder.name.encode())
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub with models whose profiles list them, and a cross-encoder that no profile lists."""
    found = profiles.load_profile("pe-rank-mistral-jina")
    changed = found.model_copy(update={"publisher_prompt": PROMPT})
    load = profiles.load_profile
    for user in ("rerank.config.hub_models", "rerank.config.models", "rerank.profiles"):
        monkeypatch.setattr(
            f"{user}.load_profile", lambda name: changed if name == "pe-rank-mistral-jina" else load(name)
        )
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with running_hub() as server:
        server.models = {
            FIRST: write_model(tmp_path / "first", "mistral", "MistralForCausalLM"),
            PE_RANK: write_model(tmp_path / "pe", "embed_mistral", "EmbedMistralForRankLM"),
            RERANKER: write_model(tmp_path / "reranker", "bert", "BertForSequenceClassification"),
            "org/chat": write_model(tmp_path / "chat", "mistral", "MistralForCausalLM"),
        }
        server.raw[f"/owner/code/{SOURCE_FILE}"] = SOURCE
        monkeypatch.setattr("rerank.checkpoints.publisher_prompt._SERVER", server.url)
        use_hub(server.url, tmp_path / "cache", monkeypatch)
        yield server


def test_name_alone_is_the_default_model_with_its_profile(hub):
    first, *others = load_config(None, [named_model(FIRST)]).models
    assert (first.name, first.profile, str(first.path)) == ("default", "first-mistral", FIRST)
    assert [model.name for model in others] == ["pe-rank", "first", "pe-rank-first", "identity"]
    assert hub.asked == []  # a profile lists it


@pytest.mark.parametrize(
    ("given", "name"),
    [(f"mine={FIRST}@main", "mine"), (f"first-mistral:{FIRST}", "default"), (f"mine=first-mistral:{FIRST}", "mine")],
)
def test_name_with_another_name_a_revision_and_a_profile(hub, given, name):
    path = given.removeprefix("mine=").removeprefix("first-mistral:")
    assert named_model(given) == {"name": name, "ranker": "first", "profile": "first-mistral", "path": path}


def test_model_of_one_call_has_the_last_part_of_its_name(hub):
    (model,) = config_of_model(f"{FIRST}@main").models
    assert (model.name, model.ranker) == ("first_mistral", "first")


def test_folder_alone_is_the_default_model(tmp_path):
    folder = write_model(tmp_path / "lr=1", "bert", "BertForSequenceClassification")
    assert named_model(str(folder)) == {"name": "default", "ranker": "cross-encoder", "path": str(folder)}


def test_name_that_no_profile_lists_is_known_by_its_settings(hub):
    assert named_model(RERANKER) == {"name": "default", "ranker": "cross-encoder", "path": RERANKER}
    assert "model.safetensors" not in hub.downloaded
    (model, *_) = download_models(load_config(None, [named_model(RERANKER)])).models
    assert (model.path / "model.safetensors").read_bytes() == b"weights of reranker"


def test_name_whose_settings_do_not_say_how_it_ranks_gets_the_words_to_type(hub):
    with pytest.raises(ConfigError, match=r"^--model a=org/chat: org/chat has no .* write a=PROFILE:org/chat with"):
        named_model("a=org/chat")
    with pytest.raises(ConfigError, match=r"^model 'org/nothing': there is no folder org/nothing .* no such model"):
        config_of_model("org/nothing")


def test_path_in_a_file_may_be_a_name(hub, tmp_path):
    file = tmp_path / "service.yaml"
    file.write_text(
        f"models:\n- {{name: a, path: {FIRST}, window_size: 10}}\n- {{name: b, ranker: generation, path: {FIRST}}}\n"
        f"- {{name: c, profile: first-mistral, path: org/chat, template: first}}\n"
    )
    models = load_config(file).models
    assert [(model.ranker, getattr(model, "profile", None)) for model in models] == [
        ("first", "first-mistral"),
        ("generation", None),  # the profile of the name is of another ranker
        ("first", "first-mistral"),
    ]
    check_model_files(models[2])
    for model in download_models(ServiceConfig(models=models)).models:
        assert (model.checkpoint / "model.safetensors").is_file()
    with pytest.raises(ConfigError, match=r"models\[0\]: ranker is missing"):
        load_config(None, models=[{"name": "a", "path": "org/chat"}])


def test_pe_rank_brings_its_prompt_and_its_encoder(hub):
    config = load_config(None, [named_model(PE_RANK)])
    check_model_files(config.models[0])
    downloaded = download_models(config)
    (model, *_) = downloaded.models
    assert model.template == str(model.path / "template.yaml")
    assert json.loads(Path(model.template).read_text())["body"] == "[{rank}] {candidate}"
    assert downloaded.encoder.name == "jinaai/jina-embeddings-v2-base-en"
    assert download_models(downloaded) == downloaded


def test_given_encoder_and_template_are_kept(hub, tmp_path):
    config = load_config(None, [named_model(PE_RANK) | {"template": "pe_rank_text"}], encoder="org/mine")
    downloaded = download_models(config)
    assert downloaded.encoder == EncoderConfig(name="org/mine")
    assert downloaded.models[0].template == "pe_rank_text"


def test_prompt_that_cannot_be_read_is_named_before_the_weights_are_downloaded(hub, monkeypatch):
    hub.raw.clear()
    with pytest.raises(ConfigError, match=rf"^model default: the prompt of {PE_RANK} .*; repeat the command where"):
        download_models(load_config(None, [named_model(PE_RANK)]))
    assert "model.safetensors" not in hub.downloaded


def test_template_in_the_repository_is_preferred_to_the_profiles(hub):
    (hub.models[FIRST] / "template.yaml").write_text("{prefix: '{query}', body: '{rank} {candidate}', suffix: ''}")
    (model, *_) = download_models(load_config(None, [named_model(FIRST)])).models
    assert model.template == str(model.checkpoint / "template.yaml")


def test_models_with_different_encoders_are_refused(hub, monkeypatch):
    load = profiles.load_profile
    other = load("pe-rank-mistral-jina").model_copy(update={"encoder": "org/other"})
    monkeypatch.setattr("rerank.config.hub_models.load_profile", lambda name: other if name == "other" else load(name))
    profile_of = {"a": "pe-rank-mistral-jina", "b": "other"}
    models = [
        PERankModel(name=name, ranker="pe-rank", path="/x").model_copy(update={"profile": profile})
        for name, profile in profile_of.items()
    ]
    with pytest.raises(ConfigError, match=r"one encoder, and a needs jinaai/.*, b needs org/other; serve them by"):
        download_models(ServiceConfig(models=tuple(models)))


def test_cached_models_need_no_hub(hub, monkeypatch):
    config = load_config(None, [named_model(PE_RANK)])
    online = download_models(config)
    module._list_files.cache_clear()
    hub.asked.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert download_models(config) == online
    assert hub.asked == []
