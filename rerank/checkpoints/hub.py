"""Downloads models of the Hugging Face hub by their names: settings and tokenizer, then weights, and never code.

The files are in huggingface_hub's cache (HF_HOME), which other programs share. Each file is compared with the hash that
the hub gives. Settings are checked before the weights are downloaded, because weights take gigabytes.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from rerank import profiles
from rerank.checkpoints.manifest import TEMPLATE_FILE
from rerank.checkpoints.settings_files import check_settings, object_at, read_modules, read_settings
from rerank.errors import CheckpointError, ConfigError
from rerank.util.files import atomic_file, damage_of, is_missing_folder, missing_path_hint, sha256_of_files
from rerank.util.json_files import read_saved, write_synced

log = logging.getLogger(__name__)

#: ORGANISATION/MODEL@REVISION
_NAME = re.compile(r"(?P<repository>\w[\w.-]*(/\w[\w.-]*)?)(@(?P<revision>\w[\w./-]*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
#: Files of settings and tokenizers. artifact.metadata has the maximum lengths of ColBERT's texts.
_SETTINGS = re.compile(r"[^/]+\.(jinja|json|model|tiktoken|txt)|template\.yaml|artifact\.metadata")
_SAFETENSORS = re.compile(r"(?!consolidated)[^/]+\.safetensors")  # Mistral's own copies of the weights begin so
_TORCH = re.compile(r"(adapter_model|model|pytorch_model)([.-][\w-]+)?\.bin")
#: Weights of PE-Rank, which may lie beside safetensors files.
_PE_RANK_WEIGHTS = {"projector.bin", "non_lora_trainables.bin"}
_CONFIGS = ("config.json", "adapter_config.json")
#: File in the folder of a commit that records what was downloaded.
_RECORD_FILE = ".rerank-download.json"
#: Time in which the hub must list the files of a model.
_TIMEOUT_S = 10.0
#: An incomplete download without a new byte for this long was left by a killed process.
_ABANDONED_S = 3600.0
_MAX_FILES = 100_000
_MAX_REASON_CHARS = 200


def is_hub_name(name: str) -> bool:
    """True for ORGANISATION/MODEL, with or without @REVISION.

    The name is a path instead if the working directory has a folder of this name, or a folder ORGANISATION.
    """
    found = _NAME.fullmatch(name)
    if found is None or "/" not in found["repository"]:
        return False
    return not os.path.isdir(name) and not is_missing_folder(found["repository"])


def repository_of(name: str) -> str:
    """The name of a model on the hub, without its revision."""
    return name.partition("@")[0]


def download(name: str, weights: bool = True) -> Path:
    """Downloads the missing files of a model; returns its folder in the cache.

    If the hub does not answer, the commit in the cache is used, and the log says so.

    Args:
        name: MODEL, ORGANISATION/MODEL, or one of these with @REVISION: a branch, a tag or a commit.
        weights: False downloads settings and tokenizers only.

    Raises:
        ConfigError: the hub has no such model or denies access to it; the hub does not answer, and the cache lacks the
            model; the disk is too small; the download stopped; or a file has another hash than the hub says.
        CheckpointError: the settings are refused, or the model has no weights that can be read.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ConfigError(f"{name!r} is no name of a model; write ORGANISATION/MODEL, or ORGANISATION/MODEL@REVISION")
    model = _find_model(found["repository"], found["revision"] or "main", weights)
    folders = _fetch_settings(model)
    if weights:
        _fetch_weights(model, folders)
    return model.folder


class _NotListedError(ConfigError):
    """The hub did not list the files of a model."""


class _Record(NamedTuple):
    """The files of a commit that were downloaded.

    Attributes:
        files: path → size in bytes, for the files whose hash equals the hub's.
        is_complete: whether these are all files of the model, with its weights.
    """

    files: dict[str, int]
    is_complete: bool


@dataclass(frozen=True)
class _Model:
    """A model at one commit.

    Attributes:
        store: the model's folder in the cache, which has a folder for each commit.
        sizes: path of each file → size in bytes.
    """

    repository: str
    revision: str
    commit: str
    store: Path
    sizes: Mapping[str, int]

    @property
    def folder(self) -> Path:
        return _snapshot(self.store, self.commit)

    def files_in(self, folder: PurePosixPath) -> list[str]:
        return sorted(path for path in self.sizes if PurePosixPath(path).parent == folder)


def _endpoint() -> str:
    from huggingface_hub import constants  # here and below: commands that name no model of the hub need no client

    return constants.ENDPOINT


def _cache_folder() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def _store(cache_folder: Path, repository: str) -> Path:
    return cache_folder / f"models--{repository.replace('/', '--')}"


def _snapshot(store: Path, commit: str) -> Path:
    return store / "snapshots" / commit


def _find_model(repository: str, revision: str, weights: bool) -> _Model:
    """Returns the model with the files that the hub lists.

    It has the files in the cache if the revision is a commit that is complete there, or if the hub does not answer.
    """
    folder = _snapshot(_store(_cache_folder(), repository), revision)
    if _COMMIT.fullmatch(revision) and (record := _read_record(folder)) and record.is_complete:
        return _cached_model(repository, revision, revision)
    try:
        return _list_files(_endpoint(), _cache_folder(), repository, revision)
    except _NotListedError as problem:
        return _fall_back_to_cache(repository, revision, weights, problem)


@cache
def _list_files(endpoint: str, cache_folder: Path, repository: str, revision: str) -> _Model:
    """Asks the hub for the commit and the files of a model, once in this process.

    Raises:
        _NotListedError: the hub did not answer, or has no such model.
    """
    from huggingface_hub import HfApi

    no_folder = f"there is no folder {repository}, and {endpoint} cannot be asked for a model of this name"
    with _as_config_errors(repository, revision, no_folder):
        info = HfApi(endpoint=endpoint).model_info(
            repository, revision=revision, timeout=_TIMEOUT_S, files_metadata=True
        )
    files = info.siblings or ()
    if len(files) > _MAX_FILES:
        raise ConfigError(f"{repository} has more than {_MAX_FILES:,} files; use another model")
    commit = str(info.sha)
    _log_once("%s: commit %s (%s)", repository, commit, revision)
    sizes = {file.rfilename: file.size or 0 for file in files}
    return _Model(repository, revision, commit, _store(cache_folder, repository), sizes)


def _fall_back_to_cache(repository: str, revision: str, weights: bool, problem: _NotListedError) -> _Model:
    """Returns the model at the commit that the cache has for a revision.

    Raises: ConfigError if the cache has no commit for it, or only a part of the files.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    store, commit = _store(_cache_folder(), repository), revision
    if not _COMMIT.fullmatch(revision):
        try:
            commit = (store / "refs" / revision).read_text(encoding="utf-8").strip()
        except OSError:
            raise problem from problem.__cause__
    folder = _snapshot(store, commit)
    if not (_COMMIT.fullmatch(commit) and folder.is_dir()):
        raise problem from problem.__cause__
    record, damage = _read_record(folder), ""
    if record is not None:
        damage = damage_of(folder, record.files) or ("" if record.is_complete or not weights else "weights are missing")
    else:  # another program downloaded it, and huggingface_hub may know whether it was interrupted
        try:
            snapshot_download(
                repository, revision=commit, local_files_only=True, allow_patterns=["*.json", "*.safetensors"]
            )
        except LocalEntryNotFoundError as error:
            damage = _reason(error)
    if damage:
        raise ConfigError(f"{problem}; the cache has only a part of it: {damage}") from problem.__cause__
    why = _reason(problem.__cause__ or problem)
    _log_once("%s: commit %s (%s) from the cache, as the hub cannot be asked (%s)", repository, commit, revision, why)
    return _cached_model(repository, revision, commit)


def _cached_model(repository: str, revision: str, commit: str) -> _Model:
    store = _store(_cache_folder(), repository)
    folder = _snapshot(store, commit)
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in (_RECORD_FILE, TEMPLATE_FILE)]
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    return _Model(repository, revision, commit, store, sizes)


def _fetch_settings(model: _Model) -> list[PurePosixPath]:
    """Downloads the settings and tokenizers of a model and of its modules, and checks them.

    Returns:
        The folders of the model and of its modules, relative to the model's.

    Raises:
        CheckpointError: the settings are refused, or the model has none.
    """
    if not model.sizes.keys() & set(_CONFIGS):
        raise CheckpointError(
            f"{model.repository} has no {' or '.join(_CONFIGS)}, so it is not in the format of transformers; use the "
            "repository that it was converted from"
        )
    if (known := profiles.of_checkpoint(model.repository)) and profiles.load_profile(known).publisher_prompt:
        _fetch(model, [file for file in ("README.md",) if file in model.sizes])  # the card may have the prompt's words
    folders, waiting = list[PurePosixPath](), [PurePosixPath()]
    while waiting:
        if (here := waiting.pop()) in folders:
            continue
        folders.append(here)
        _fetch(model, [file for file in model.files_in(here) if _SETTINGS.fullmatch(PurePosixPath(file).name)])
        check_settings(model.folder)  # before a name in them is used, such as the folder of a module
        parts = [module.get("path") for module in read_modules(model.folder / here)]
        parts += object_at(read_settings(model.folder / here / "router_config.json"), "types")
        further = [here / str(part) for part in (*parts, "additional_chat_templates")]
        waiting += [folder for folder in further if model.files_in(folder)]
    return folders


def _fetch_weights(model: _Model, folders: Iterable[PurePosixPath]) -> None:
    """Downloads the weights in these folders: safetensors, or else torch's.

    Raises: CheckpointError if there are none.
    """
    wanted = list[str]()
    for folder in folders:
        files = {PurePosixPath(file).name: file for file in model.files_in(folder)}
        safe = [file for name, file in files.items() if _SAFETENSORS.fullmatch(name)]
        wanted += safe or [file for name, file in files.items() if _TORCH.fullmatch(name)]
        wanted += [file for name, file in files.items() if name in _PE_RANK_WEIGHTS]
    if not wanted:
        kinds = sorted({PurePosixPath(file).suffix for file in model.sizes} - {""})
        raise CheckpointError(
            f"{model.repository} has no weights in *.safetensors or pytorch_model*.bin, only {', '.join(kinds)}; use "
            "another model"
        )
    _fetch(model, wanted, is_complete=True)
    if not _COMMIT.fullmatch(model.revision):
        reference = model.store / "refs" / model.revision  # where huggingface_hub looks for the commit of a branch
        with suppress(OSError):  # in a cache that cannot be written
            reference.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(reference) as path:
                path.write_text(model.commit, encoding="utf-8")


def _fetch(model: _Model, files: Sequence[str], is_complete: bool = False) -> None:
    """Downloads missing files, compares all of them with the hub's hashes, and records them.

    Raises:
        ConfigError: the disk is too small, the download stopped, or a file has another hash.
    """
    from huggingface_hub import snapshot_download

    record = _read_record(model.folder) or _Record({}, False)
    for file in files:
        path = model.folder / file
        if path.is_file() and path.stat().st_size != model.sizes[file]:  # cut by a power loss
            _remove(path)
    if missing := [file for file in files if not (model.folder / file).is_file()]:
        _check_free_space(model, missing, is_logged=is_complete)
        stopped = f"the download of {model.repository} stopped"
        with _as_config_errors(model.repository, model.revision, stopped):
            snapshot_download(model.repository, revision=model.commit, allow_patterns=[*map(glob.escape, missing)])
    new = {file: model.sizes[file] for file in files if file in missing or file not in record.files}
    with ThreadPoolExecutor() as pool:
        for problem in pool.map(lambda file: _hash_problem(model.folder / file), new):
            if problem:
                raise ConfigError(f"{model.repository}: {problem}")
    changed = _Record(record.files | new, is_complete or record.is_complete)
    if changed != record:
        with suppress(OSError):  # in a cache that cannot be written, files are compared again the next time
            write_synced(model.folder / _RECORD_FILE, changed._asdict())


def _check_free_space(model: _Model, files: Collection[str], is_logged: bool) -> None:
    """Compares the size of a download with the free space of the disk, and removes abandoned downloads.

    Raises: ConfigError if the disk has too little space.
    """
    needed = sum(model.sizes[file] for file in files)
    model.store.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(model.store).free
    where = _cache_folder()
    if needed > free:
        raise ConfigError(
            f"{model.repository} needs {_format_bytes(needed)} in {where}, where {_format_bytes(free)} are free; make "
            "room, or name another folder by HF_HOME"
        )
    if is_logged:
        sizes = _format_bytes(needed), where, _format_bytes(free)
        _log_once("%s: downloading %s to %s, where %s are free", model.repository, *sizes)
    for abandoned in (model.store / "blobs").glob("*.incomplete"):  # huggingface_hub does not resume them
        with suppress(OSError):
            if time.time() - abandoned.stat().st_mtime > _ABANDONED_S:
                abandoned.unlink()


def _format_bytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def _hash_problem(path: Path) -> str:
    """Compares a file with the hub's hash, and removes it if they differ. Returns the problem; empty if there is none.

    In the cache, a file is a link whose target has the hub's hash as its name: SHA-256, or SHA-1 as git computes it.
    """
    stated = os.path.basename(os.readlink(path)) if path.is_symlink() else ""
    if re.fullmatch(r"[0-9a-f]{64}", stated):
        found = {sha256_of_files([path])}
    elif _COMMIT.fullmatch(stated):
        found = {_sha1(path, b"blob %d\0" % path.stat().st_size), _sha1(path)}  # a mirror may give the plain SHA-1
    else:
        return ""
    if stated in found:
        return ""
    _remove(path)
    return (
        f"{path.name} has the hash {', '.join(sorted(found))}, and the hub says {stated}; the file was removed: give "
        "the same command again to download it"
    )


def _sha1(path: Path, start: bytes = b"") -> str:
    digest = hashlib.sha1(start)
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _remove(path: Path) -> None:
    """Removes a file, and the target of a link."""
    links = [path.parent / os.readlink(path)] if path.is_symlink() else []
    for part in (path.resolve(), *links, path):
        part.unlink(missing_ok=True)


def _read_record(folder: Path) -> _Record | None:
    content = read_saved(folder / _RECORD_FILE) if (folder / _RECORD_FILE).is_file() else None
    return _Record(content.get("files", {}), bool(content.get("is_complete"))) if content else None


@contextmanager
def _as_config_errors(repository: str, revision: str, what: str) -> Iterator[None]:
    """Turns an exception of huggingface_hub into a one-line error that says what to do.

    Args:
        what: what failed, for the beginning of the line unless the hub itself refused the model.

    Raises:
        _NotListedError: huggingface_hub raised any exception.
    """
    from huggingface_hub import errors

    endpoint = _endpoint()
    try:
        yield
    except errors.GatedRepoError as error:
        problem = (
            f"{repository} is gated: accept its terms at {endpoint}/{repository}, and log in by `hf auth login`, or "
            "set HF_TOKEN"
        )
        raise _NotListedError(problem) from error
    except errors.RevisionNotFoundError as error:
        problem = f"{repository} has no revision {revision}; choose one at {endpoint}/{repository}/commits/main"
        raise _NotListedError(problem) from error
    except errors.RepositoryNotFoundError as error:
        published = {
            name.lower(): name for profile in profiles.names() for name in profiles.load_profile(profile).checkpoints
        }
        close = get_close_matches(repository.lower(), published, n=1, cutoff=0.8)
        meant = f" did you mean {published[close[0]]}?" if close else ""
        raise _NotListedError(
            f"there is no folder {repository}{missing_path_hint(Path(repository))}, and {endpoint} has no such model "
            f"or does not show it;{meant} correct the name, or set HF_TOKEN if the model "
            "is private"
        ) from error
    except Exception as error:  # the HTTP library raises others
        raise _NotListedError(
            f"{what} ({_reason(error)}); give the same command again where {endpoint} can be reached (it downloads "
            "only the missing files), or give the folder of a checkpoint"
        ) from error


def _reason(error: BaseException) -> str:
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MAX_REASON_CHARS else f"{text[:_MAX_REASON_CHARS]}…"


@cache
def _log_once(message: str, *arguments: object) -> None:
    """Logs a line once; on standard error if logging is not set up, as in a notebook."""
    log.log(logging.INFO if log.hasHandlers() else logging.WARNING, message, *arguments)
