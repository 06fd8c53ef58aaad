"""Decides which classes and sizes the files of a model's folder may name.

sentence-transformers, transformers and peft import what the JSON files of a folder name, and call it. A folder from
elsewhere could name any function of any installed package, such as one that starts a process. So every name has to be
in the lists of this module before a library sees the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any

from rerank.errors import CheckpointError, ConfigError
from rerank.util.files import read_text


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ACTIVATION_CLASSES = _words(
    "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax Mish PReLU ReLU ReLU6 "
    "RReLU SELU Sigmoid SiLU Softmax Softmax2d Softmin Softplus Softshrink Softsign Tanh Tanhshrink"
)
#: Activations of a cross-encoder or of a dense layer: modules of torch that are made without arguments.
ACTIVATIONS = frozenset(
    {f"{place}.{name}" for place in ("torch.nn", "torch.nn.modules.activation") for name in _ACTIVATION_CLASSES}
    | {"torch.nn.Identity", "torch.nn.modules.linear.Identity"}
)

#: Modules of sentence-transformers, with the file of each. In earlier versions the file was named like the class.
_MODULE_FILES = {
    "CLIPModel": "clip_model",
    "CNN": "cnn",
    "Dense": "dense",
    "Dropout": "dropout",
    "LSTM": "lstm",
    "LayerNorm": "layer_norm",
    "LogitScore": "logit_score",
    "MLMTransformer": "mlm_transformer",
    "Normalize": "normalize",
    "Pooling": "pooling",
    "Router": "router",
    "SparseAutoEncoder": "sparse_auto_encoder",
    "SparseStaticEmbedding": "sparse_static_embedding",
    "SpladePooling": "splade_pooling",
    "Transformer": "transformer",
    "WeightedLayerPooling": "weighted_layer_pooling",
} | {"Asym": "router"}  # the earlier name of Router
_MODULE_PLACES = (
    "sentence_transformers.base.modules",
    "sentence_transformers.cross_encoder.modules",
    "sentence_transformers.models",
    "sentence_transformers.sentence_transformer.modules",
    "sentence_transformers.sparse_encoder.models",
    "sentence_transformers.sparse_encoder.modules",
)
MODULES = frozenset(
    f"{place}.{name}"
    for place in _MODULE_PLACES
    for class_name, file in _MODULE_FILES.items()
    for name in (class_name, f"{class_name}.{class_name}", f"{file}.{class_name}")
)

#: Adapters of peft that are a change of weights. Others read further folders, or have code of their own.
_ADAPTERS = _words(
    "ADALORA BOFT BONE C3A DELORA FOURIERFT HRA IA3 LN_TUNING LOHA LOKR LORA MISS OFT RANDLORA ROAD SHIRA VBLORA VERA "
    "WAVEFT"
)
#: Attention of torch and of packages that are installed. Another name is that of a repository with code.
_ATTENTION = _words("eager flash_attention_2 flash_attention_3 flash_attention_4 flex_attention sdpa")
_TASKS = _words("any-to-any feature-extraction fill-mask sequence-classification text-generation")
#: Methods of a model that give the states of texts.
_METHODS = _words("forward get_multimodal_features get_text_features")
#: Options with which a folder may have its weights loaded. `weights_only`, for one, would let pickled code run.
_WEIGHT_OPTIONS = _words(
    "add_pooling_layer attn_implementation cache_dir device_map dtype local_files_only low_cpu_mem_usage "
    "quantization_config revision subfolder token torch_dtype trust_remote_code use_safetensors variant"
)
#: Key, at any place of any file → what it may say.
_ALLOWED: Mapping[str, frozenset[Any]] = {
    "_attn_implementation": _ATTENTION,
    "_configuration_file": frozenset({"config.json"}),
    "allow_all_kernels": frozenset({False}),
    "attn_implementation": _ATTENTION,
    "megatron_core": frozenset({"megatron.core"}),
    "peft_type": _ADAPTERS,
    "transformer_task": _TASKS,
    "use_kernels": frozenset({False}),
    "weights_only": frozenset({True}),
}
#: Keys whose value is a class of transformers that reads texts, images or sounds.
_PROCESSOR_KEYS = _words(
    "feature_extractor_type image_processor_type processor_class tokenizer_class video_processor_type"
)

#: Key, or what a key ends with after "_" → the largest number. Each layer, label and so on is an object in memory
#: before the libraries see that the weights have other sizes.
_MOST = {"layers": 1000, "layer": 1000, "heads": 10_000, "experts": 10_000, "num_labels": 100_000}
_MOST |= {"r": 16_384, "rank_pattern": 16_384}  # of an adapter
#: A model has at least one of these numbers.
_POSITIVE = _words(
    "hidden_size max_position_embeddings n_embd n_head n_positions num_attention_heads num_key_value_heads r vocab_size"
)

#: Files from which the libraries take settings. Other JSON files are vocabularies, or notes of a training.
_SETTINGS = _words(
    "adapter_config.json cnn_config.json config.*json config_sentence_transformers.json generation_config.json "
    "lstm_config.json preprocessor_config.json processor_config.json router_config.json sentence_*_config.json "
    "tokenizer_config.json video_preprocessor_config.json"
)
_MAX_FILE_BYTES, _MAX_FOLDERS = 16 * 1024 * 1024, 100


@dataclass
class NamedClasses:
    """The classes that the files of a folder name.

    Attributes:
        modules: full names of modules and activations, which are among `MODULES` and `ACTIVATIONS`.
        processors: names of classes of transformers that read texts, images or sounds; they may be unknown to it.
    """

    modules: set[str] = field(default_factory=set)
    processors: set[str] = field(default_factory=set)


def check_class_names(folder: Path) -> NamedClasses:
    """Checks what the files of a model's folder name, without importing any of it, which takes milliseconds.

    It reads the settings of the folder, of the folders of its modules, and of the folder of an adapter's base model.

    Args:
        folder: of a dense or sparse encoder, a cross-encoder, a causal LM or an adapter; or a file in such a folder.

    Raises:
        CheckpointError: a name is not one of those that are known, a size is none of a model, or a file cannot be read.
    """
    named, seen = NamedClasses(), set[Path]()
    waiting = [folder.parent if folder.is_file() else folder]
    while waiting:
        if (here := waiting.pop()) in seen:
            continue
        seen.add(here)
        if len(seen) > _MAX_FOLDERS:
            raise CheckpointError(f"{folder} has modules in more than {_MAX_FOLDERS} folders; use another model")
        modules = read_modules(here)
        named.modules |= _check_modules(here / "modules.json", [module.get("type") for module in modules])
        waiting += _folders(here, [module.get("path") for module in modules])
        for path in sorted(path for pattern in _SETTINGS for path in here.glob(pattern)):
            content = read_settings(path)
            named.processors |= _check_values(path, content)
            named.modules |= _check_classes(path, content)
            if isinstance(types := content.get("types"), dict):  # of a router
                named.modules |= _check_modules(path, types.values())
                waiting += _folders(here, types)
            base = content.get("base_model_name_or_path")  # of an adapter
            if isinstance(base, str) and "\0" not in base and Path(base).is_dir():
                waiting.append(Path(base))
    return named


def check_known_classes(folder: Path) -> None:
    """Checks what the files of a model's folder name, and the type of each class that a library will call.

    To be called before sentence-transformers, transformers or peft see the folder.

    Raises:
        CheckpointError: see `check_class_names`, or a name is that of something else than a module or a processor.
    """
    named = check_class_names(folder)
    for name in sorted(named.modules):
        _check_module(folder, name)
    for name in sorted(named.processors):
        _check_processor(folder, name)


def _check_module(folder: Path, name: str) -> None:
    from sentence_transformers.util import import_from_string  # takes seconds, which the check of names does not need
    from torch import nn

    try:
        found = import_from_string(name)
    except ImportError as error:
        raise CheckpointError(f"{folder} needs {name}, which is not installed: {error}") from error
    _check_type(folder, name, found, (nn.Module,))


def _check_processor(folder: Path, name: str) -> None:
    import transformers

    processors = (
        transformers.PreTrainedTokenizerBase,
        transformers.ProcessorMixin,
        transformers.FeatureExtractionMixin,
        transformers.ImageProcessingMixin,
    )
    found = getattr(transformers, name, None)  # None: the libraries take the usual class instead
    if found is not None and not _is_placeholder(found):
        _check_type(folder, name, found, processors)


def _is_placeholder(found: object) -> bool:
    """Returns True for transformers' placeholder of a class whose package is missing."""
    return str(getattr(found, "__module__", "")).startswith("transformers.utils.dummy_")


def refuse_code(where: Path, config: Mapping[str, Any], kind: str = "model") -> None:
    """Raises: CheckpointError if the model's class is code of its folder: without it, weights would be random."""
    code = [str(name) for key, name in (config.get("auto_map") or {}).items() if key.startswith("AutoModel")]
    if code:
        raise CheckpointError(
            f"{where} needs code from its publisher ({', '.join(code)}), which this service does not run; use a "
            f"{kind} whose architecture transformers has"
        )


def read_settings(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file that belongs to a model, empty if there is no such file.

    Raises:
        CheckpointError: the file cannot be read, is too large, or holds something else.
    """
    return dict(_read(path, dict))


def read_modules(folder: Path) -> list[dict[str, Any]]:
    """Returns the modules of a model that sentence-transformers saved; none if it has no modules.json.

    Raises:
        CheckpointError: see `read_settings`.
    """
    modules = list(_read(path := folder / "modules.json", list))
    if not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{path} cannot be read: it is no list of objects; copy the checkpoint again")
    return modules


def _read(path: Path, kind: type[dict[str, Any]] | type[list[Any]]) -> Any:
    if not path.is_file():
        return kind()
    try:
        content = json.loads(read_text(path, _MAX_FILE_BYTES))
    except ConfigError as error:
        raise CheckpointError(f"{error}; copy the checkpoint again") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; copy the checkpoint again") from error
    if not isinstance(content, kind):
        expected = {dict: "an object in braces", list: "a list"}[kind]
        raise CheckpointError(
            f"{path} cannot be read: expected {expected}, found {type(content).__name__}; copy the checkpoint again"
        )
    return content


def _check_values(path: Path, content: Any) -> set[str]:
    """Checks what keys at any depth say: names and sizes. Returns: the names of processors."""
    processors = set[str]()
    waiting: list[tuple[str, str, Any]] = [("", "", content)]
    while waiting:
        parent, key, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(key, name, each) for name, each in value.items()]
        elif isinstance(value, list):
            waiting += [(parent, key, each) for each in value]
        elif value is not None:
            for name in {parent, key} & _ALLOWED.keys():  # each part of a model may have an attention of its own
                _check_name(path, f"{name}: ", value, _ALLOWED[name])
            if key in _PROCESSOR_KEYS and isinstance(value, str):
                processors.add(value)
            if isinstance(value, int | float):
                _check_size(path, parent, key, value)
    return processors


def _check_size(path: Path, parent: str, key: str, size: float) -> None:
    for end, most in _MOST.items():
        if size > most and (end in (parent, key) or key.endswith(f"_{end}")):
            raise CheckpointError(f"{path} has {key} {size}, and a model has at most {most}; copy the checkpoint again")
    if key in _POSITIVE and size < 1:
        raise CheckpointError(f"{path} has {key} {size}, and a model has at least 1; copy the checkpoint again")


def _check_modules(path: Path, names: Iterable[Any]) -> set[str]:
    """Returns: the names. Raises: CheckpointError if one is not that of a module of sentence-transformers."""
    modules = {str(name) for name in names}
    for name in sorted(modules):
        _check_name(path, "", name, MODULES)
    return modules


def _check_classes(path: Path, content: dict[str, Any]) -> set[str]:
    """Checks the activations of a file, and the options with which it is loaded. Returns: the activations."""
    stated = [content.get("sbert_ce_default_activation_function")]
    stated.append(_object(content, "sentence_transformers").get("activation_fn"))
    if path.name == "config_sentence_transformers.json":
        stated.append(content.get("activation_fn"))
    if "." in str(function := content.get("activation_function")):  # one without a dot is looked up in a list
        stated.append(function)
    activations = {str(name) for name in stated if name is not None}
    for name in sorted(activations):
        _check_name(path, "", name, ACTIVATIONS)
    if path.name.startswith("sentence_"):
        for key in ("model_args", "model_kwargs"):
            for option in _object(content, key):
                _check_name(path, f"{key}: ", option, _WEIGHT_OPTIONS)
        for reading in _object(content, "modality_config").values():
            method = reading.get("method", "forward") if isinstance(reading, dict) else reading
            _check_name(path, "method: ", str(method), _METHODS)
    return activations


def _folders(here: Path, parts: Iterable[Any]) -> Iterator[Path]:
    """Yields the folders of modules. Raises: CheckpointError if one is not inside of the folder that names it."""
    for part in parts:
        where = PureWindowsPath(part) if isinstance(part, str) else None  # it knows the roots of Unix, too
        if where is None or where.anchor or ".." in where.parts or "\0" in str(part):
            raise CheckpointError(f"{here} has a module in {part!r}, which is not inside of this folder")
        yield here / str(part)


def _object(content: dict[str, Any], key: str) -> dict[str, Any]:
    """Returns the object at a key, empty if there is something else, which a loader refuses."""
    return value if isinstance(value := content.get(key), dict) else {}


def _check_name(path: Path, key: str, name: Any, allowed: frozenset[Any]) -> None:
    if name not in allowed:
        raise CheckpointError(
            f"{path} needs code from its publisher ({key}{name}), which this service does not run; use a model whose "
            "architecture transformers has"
        )


def _check_type(folder: Path, name: str, found: object, types: tuple[type, ...]) -> None:
    if not (isinstance(found, type) and issubclass(found, types)):
        expected = " or ".join(each.__name__ for each in types)
        raise CheckpointError(f"{folder} names {name}, which is no {expected}; use another model")
