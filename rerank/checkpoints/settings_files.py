"""Reads the JSON files of a model's folder, and refuses dangerous settings.

sentence-transformers, transformers and peft import the classes that these files name, and make objects of the sizes
that the files state. A downloaded folder could name any function of any installed package, such as one that starts a
process. So `check_settings` compares names and sizes with lists of allowed ones before a library reads the folder.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from rerank.checkpoints.counted_files import check_counts
from rerank.errors import CheckpointError, ConfigError
from rerank.util.files import LFS_POINTER_BYTES, LFS_WAY_OUT, denied, is_lfs_pointer, read_text

#: Configuration of an adapter of peft, next to its weights.
ADAPTER_FILE = "adapter_config.json"

#: The modules of sentence-transformers that make up encoders, sparse encoders and cross-encoders. Asym is the earlier
#: name of Router; PyLate's Dense is read as sentence-transformers' own.
_MODULE = re.compile(
    r"sentence_transformers(\.\w+)*\.(Transformer|MLMTransformer|Pooling|Dense|LayerNorm|Normalize|LogitScore|"
    r"MultiVectorMask|SpladePooling|SparseStaticEmbedding|Router|Asym)|pylate\.models\.Dense\.Dense"
)
_ACTIVATION = (
    r"torch\.nn\.(modules\.(activation|linear)\.)?(ELU|GELU|Hardsigmoid|Hardtanh|Identity|LeakyReLU|LogSigmoid|Mish|"
    r"ReLU|ReLU6|SELU|SiLU|Sigmoid|Softplus|Softsign|Tanh)"
)
#: Attention of torch and of installed packages. transformers takes any other name for a repository with code.
_ATTENTION = r"eager|sdpa|flash_attention_[234]|flex_attention"
#: Key, at any depth of any file → the values that are allowed.
_ALLOWED = {
    key: re.compile(pattern)
    for key, pattern in {
        "_attn_implementation": _ATTENTION,
        "attn_implementation": _ATTENTION,
        "activation_function": rf"[^.]*|{_ACTIVATION}",  # a name without a dot is looked up in a list of transformers
        "sbert_ce_default_activation_function": _ACTIVATION,
        "feature_extractor_type": r"\w+(FeatureExtractor|ImageProcessor)",
        "image_processor_type": r"\w+ImageProcessor(Fast|Pil)?",
        "megatron_core": r"megatron\.core",
        # Adapters that are a change of weights. Others read further folders, or have custom code.
        "peft_type": r"ADALORA|BOFT|BONE|C3A|DELORA|FOURIERFT|HRA|IA3|LN_TUNING|LOHA|LOKR|LORA|MISS|OFT|RANDLORA|ROAD|"
        r"SHIRA|VBLORA|VERA|WAVEFT",
        "processor_class": r"\w+Processor",
        "tokenizer_class": r"\w+(Tokenizer|TokenizerFast|Backend)",
        "transformer_task": r"any-to-any|feature-extraction|fill-mask|sequence-classification|text-generation",
        "video_processor_type": r"\w+VideoProcessor",
    }.items()
}
#: Methods of a model that compute the hidden states of texts.
_METHOD = re.compile(r"forward|get_multimodal_features|get_text_features")
#: Keys of sentence_bert_config.json with options for the loaders of transformers, and the options that are allowed. The
#: option `weights_only`, for example, would let pickled code run.
_OPTION_KEYS = ("config_args", "config_kwargs", "model_args", "model_kwargs", "processor_kwargs", "tokenizer_args")
_OPTION = re.compile(
    r"add_eos_token|add_pooling_layer|attn_implementation|device_map|dtype|local_files_only|low_cpu_mem_usage|"
    r"model_max_length|num_labels|padding_side|quantization_config|revision|subfolder|token|torch_dtype|truncation_side|"
    r"trust_remote_code|use_cache|use_fast|use_safetensors|variant"
)

#: Key, or the part of a key after its last "_" → the largest number. The libraries make an object in memory for each
#: layer, label and so on, before they see that the weights have other sizes.
_MAX_SIZES = {"layers": 1000, "layer": 1000, "heads": 10_000, "experts": 10_000, "num_labels": 100_000}
#: The libraries make tables and buffers of these sizes even if no weight has such a size.
_MAX_SIZES |= {"size": 100_000_000, "embeddings": 20_000_000, "positions": 20_000_000, "dim": 1_000_000}
_MAX_SIZES |= {"r": 16_384, "rank_pattern": 16_384}  # keys of adapter_config.json
#: Keys whose numbers must be at least 1.
_POSITIVE = re.compile(
    r"hidden_size|max_position_embeddings|n_embd|n_(head|positions)|num_(attention|key_value)_heads|r|vocab_size"
)

#: Files with settings for the libraries. Other JSON files are vocabularies, or notes of a training.
_SETTINGS = re.compile(
    r"(adapter_config|config(\..*)?|config_sentence_transformers|generation_config|(video_)?preprocessor_config|"
    r"processor_config|router_config|sentence_.*_config|tokenizer_config)\.json"
)
#: Suffixes of the files that a loader reads. The hub's cache has links to them, which may be broken.
_NEEDED = (".bin", ".jinja", ".json", ".model", ".safetensors", ".txt", ".yaml")
_BYTE_ORDER_MARK = "\ufeff"
_CHAT_TEMPLATES = "additional_chat_templates"
#: The largest file of settings.
_MAX_FILE_BYTES = 16 * 1024 * 1024
#: The largest chat template.
_MAX_TEMPLATE_BYTES = 1024 * 1024
#: The most folders of a model, its modules and the base of its adapter.
_MAX_FOLDERS = 100
#: The most files in one folder.
_MAX_FILES = 100_000


def check_settings(folder: Path) -> list[Path]:
    """Checks the files of a model's folder in milliseconds, without importing anything that they name.

    It reads the settings of the folder, of the folders of its modules, and of the folder of an adapter's base model.

    Args:
        folder: folder of a dense or sparse encoder, a cross-encoder, a causal LM or an adapter; or a file in it.

    Returns:
        The folders that were read; the first is the model's.

    Raises:
        CheckpointError: a name is not allowed, a size is too large or too small, or a file cannot be read, such as a
            pipe instead of weights.
    """
    seen, waiting = list[Path](), [folder.parent if folder.is_file() else folder]
    while waiting:
        here = waiting.pop()
        if here in seen or not here.is_dir():
            continue
        seen.append(here)
        if len(seen) > _MAX_FOLDERS:
            raise CheckpointError(f"{folder} has modules in more than {_MAX_FOLDERS} folders; use another model")
        waiting += [*_module_folders(here, ((module.get("path"), module.get("type")) for module in read_modules(here)))]
        waiting.append(here / _CHAT_TEMPLATES)
        for name in _files(here):
            check_counts(here / name)
            if _SETTINGS.fullmatch(name):
                waiting += _check_file(here / name)
    return seen


def refuse_code(where: Path, config: Mapping[str, Any], kind: str = "model") -> None:
    """Refuses a model whose class is code in its folder; any other class would have random weights.

    Args:
        where: folder of the model, for the error.
        config: content of its config.json.
        kind: the kind of model to use instead, for the error.

    Raises:
        CheckpointError: `auto_map` of the config.json names a class of a model.
    """
    code = [f"{name}" for key, name in object_at(config, "auto_map").items() if key.startswith("AutoModel")]
    if code:
        raise CheckpointError(
            f"{where} needs code from its publisher ({', '.join(code)}), which this service does not run; use a "
            f"{kind} whose architecture transformers has"
        )


def object_at(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Returns the object at a key; empty for a value of another type, which a loader refuses."""
    return value if isinstance(value := content.get(key), dict) else {}


def base_folder(folder: Path) -> Path:
    """Returns the folder of an adapter's base model; for any other model, the folder itself.

    Raises:
        CheckpointError: the base that the adapter names is not a folder, such as a model that was not downloaded.
    """
    if not (folder / ADAPTER_FILE).is_file():
        return folder
    base = read_settings(folder / ADAPTER_FILE).get("base_model_name_or_path")
    if not (isinstance(base, str) and Path(base).is_dir()):
        raise CheckpointError(
            f"{folder} is an adapter of {base}, and there is no such folder; download it, and set "
            f"base_model_name_or_path in {ADAPTER_FILE} to its folder"
        )
    return Path(base)


def architecture_in(config: Mapping[str, Any]) -> str:
    """Returns the class of the model that a config.json names; empty if it names none."""
    architectures = config.get("architectures")
    return str(architectures[0]) if isinstance(architectures, list) and architectures else ""


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
        raise CheckpointError(f"{path} cannot be read: it is not a list of objects; copy the checkpoint again")
    return modules


def _read(path: Path, kind: type[dict[str, Any]] | type[list[Any]]) -> Any:
    if not path.is_file():
        return kind()
    try:
        text = read_text(path, _MAX_FILE_BYTES)
        if text.startswith(_BYTE_ORDER_MARK):
            raise CheckpointError(
                f"{path} begins with a byte order mark, which the libraries that load the model cannot read; save it "
                "without one"
            )
        content = json.loads(text)
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


def _files(folder: Path) -> Iterator[str]:
    """Yields the names of the files of a folder.

    Raises:
        CheckpointError: the folder has too many files; a chat template is too long; a file is a pointer of Git LFS or a
            broken link, or may not be read; or an entry is neither a file nor a folder, such as a pipe, which a loader
            would read without an end.
    """
    if problem := denied(folder):
        raise CheckpointError(problem)
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            try:
                state = entry.stat()
            except OSError as error:
                if entry.name.endswith(_NEEDED):
                    raise CheckpointError(_broken_link(Path(entry.path))) from error
                continue
            if number >= _MAX_FILES:
                raise CheckpointError(f"{folder} has more than {_MAX_FILES:,} files; copy the model's files alone")
            if entry.name.endswith(".jinja") and state.st_size > _MAX_TEMPLATE_BYTES:
                raise CheckpointError(
                    f"{entry.path} has {state.st_size:,} bytes; a chat template has at most {_MAX_TEMPLATE_BYTES:,}"
                )
            if stat.S_ISREG(state.st_mode):
                if not os.access(entry.path, os.R_OK, effective_ids=True) and (problem := denied(Path(entry.path))):
                    raise CheckpointError(problem)
                if state.st_size < LFS_POINTER_BYTES and is_lfs_pointer(Path(entry.path).read_bytes()):
                    raise CheckpointError(f"{entry.path} {LFS_WAY_OUT} (hf download)")
                yield entry.name
            elif not stat.S_ISDIR(state.st_mode):
                raise CheckpointError(f"{entry.path} is a pipe or a device, not a file; copy the checkpoint again")


def _broken_link(path: Path) -> str:
    return (
        f"{path} is a link to {os.readlink(path)}, which is not there; download the model again, or copy it with what "
        "its links lead to: cp -rL"
    )


def _check_file(path: Path) -> list[Path]:
    """Checks a file of settings. Returns the folders that it names: a router's modules, or an adapter's base."""
    content = read_settings(path)
    _check_values(path, content)
    stated = [object_at(content, "sentence_transformers").get("activation_fn")]
    if path.name == "config_sentence_transformers.json":
        stated.append(content.get("activation_fn"))
    for name in stated:
        if name is not None:
            _check_name(path, "", name, re.compile(_ACTIVATION))
    if path.name.startswith("sentence_"):
        _check_options(path, content)
    base = content.get("base_model_name_or_path")
    bases = [Path(base)] if isinstance(base, str) and "\0" not in base else []
    return [*_module_folders(path.parent, object_at(content, "types").items()), *bases]


def _check_options(path: Path, content: Mapping[str, Any]) -> None:
    """Checks the options that a file of sentence-transformers passes to the loaders of transformers."""
    for key in _OPTION_KEYS:
        for option in object_at(content, key):
            _check_name(path, f"{key}: ", option, _OPTION)
    for reading in object_at(content, "modality_config").values():
        method = reading.get("method", "forward") if isinstance(reading, dict) else reading
        _check_name(path, "method: ", method, _METHOD)


def _check_values(path: Path, content: Any) -> None:
    """Checks names and sizes at any depth."""
    waiting: list[tuple[str, str, Any]] = [("", "", content)]
    while waiting:
        parent, key, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(key, name, part) for name, part in value.items()]
        elif isinstance(value, list):
            waiting += [(parent, key, part) for part in value]
        elif value is not None:
            for name in {parent, key} & _ALLOWED.keys():  # each part of a model may have another attention
                _check_name(path, f"{name}: ", value, _ALLOWED[name])
            if isinstance(value, int | float):
                _check_size(path, parent, key, value)


def _check_size(path: Path, parent: str, key: str, size: float) -> None:
    for end, largest in _MAX_SIZES.items():
        if size > largest and (end in (parent, key) or key.endswith(f"_{end}")):
            raise CheckpointError(
                f"{path} has {key} {size}, and a model has at most {largest}; copy the checkpoint again"
            )
    if size < 1 and _POSITIVE.fullmatch(key):
        raise CheckpointError(f"{path} has {key} {size}, and a model has at least 1; copy the checkpoint again")


def _module_folders(here: Path, modules: Iterable[tuple[Any, Any]]) -> Iterator[Path]:
    """Checks the types of modules, and yields their folders.

    Raises:
        CheckpointError: a type is not allowed, or a module's folder is not inside of `here`.
    """
    for part, name in modules:
        _check_name(here, "", name, _MODULE)
        where = PureWindowsPath(part) if isinstance(part, str) else None  # knows absolute paths of both systems
        if where is None or where.anchor or ".." in where.parts or "\0" in str(part):
            raise CheckpointError(f"{here} has a module in {part!r}, which is not inside of this folder")
        yield here / str(part)


def _check_name(path: Path, key: str, name: Any, allowed: re.Pattern[str]) -> None:
    if not (isinstance(name, str) and allowed.fullmatch(name)):
        raise CheckpointError(
            f"{path} needs code from its publisher ({key}{name}), which this service does not run; use a model whose "
            "architecture transformers has"
        )
