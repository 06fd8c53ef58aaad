"""The manifest of a checkpoint (`rerank.json`): its base model, training command, data, template and metrics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rerank.errors import CheckpointError, ConfigError
from rerank.util.files import atomic_file, hub_name_of, sha256_of_files
from rerank.util.json_files import read_json
from rerank.util.validation import problems_of

MANIFEST_FILE = "rerank.json"
TEMPLATE_FILE = "template.yaml"
#: Folder of the trained checkpoint in the folder of a run.
RESULT_FOLDER = "final"
#: Kinds of rankers that have manifests.
TrainedRanker: TypeAlias = Literal["first", "pe-rank", "e2rank"]
#: The largest window of a training, in passages.
_MAX_WINDOW = 100_000
_WAY_OUT = "fetch it again, or remove the manifest to use it as it is"


class CheckpointManifest(BaseModel):
    """The manifest of a checkpoint: training writes it, serving checks it against the files next to it.

    Attributes:
        format: version of this file format.
        ranker: kind of the ranker.
        base: the model or checkpoint that training started from, as given on the command line.
        base_revision: SHA-256 of the weights of `base`.
        weights_sha256: SHA-256 of the weights of this checkpoint.
        template_sha256: SHA-256 of `template.yaml` next to the manifest; empty for a ranker without a prompt.
        identifiers: kind of the passage identifiers; empty for a ranker that uses none.
        prompt: keys of the prompts' style in training that differ from their defaults, see
            `rerank.prompting.style.PromptStyle`.
        window_size: size of the largest training window, in passages.
        passage_tokens: limit on the tokens of a passage in the prompt; 0 for a ranker that shows no text.
        instructions: number of training lists whose query has an instruction; counted for pe-rank only.
        instruction: what the prompts of e2rank asked for; empty for other rankers.
        command: the command that trained the checkpoint.
        data: name → SHA-256 of each training file.
        metrics: name → value on the held-out lists at the end of training.
        versions: package → version at training.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    ranker: TrainedRanker
    base: str
    base_revision: str
    weights_sha256: str
    template_sha256: str
    identifiers: Literal["letters", "numbers", ""] = ""
    prompt: dict[str, object] = Field(default_factory=dict)
    window_size: Annotated[int, Field(ge=2, le=_MAX_WINDOW, strict=True)]
    passage_tokens: int = 0
    instructions: int = 0
    instruction: str = ""
    command: str
    data: dict[str, str]
    metrics: dict[str, float]
    versions: dict[str, str]


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Writes the manifest of a checkpoint folder atomically, over an existing one."""
    with atomic_file(folder / MANIFEST_FILE) as path:
        path.write_text(manifest.model_dump_json(indent=2, exclude_none=True) + "\n", encoding="utf-8")


def weights_in(folder: Path) -> list[Path]:
    """Returns the files whose SHA-256 a manifest states: safetensors, or else files of torch."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))


def read_manifest(folder: Path) -> CheckpointManifest | None:
    """Returns the manifest of a checkpoint, checked against its files, or None if the folder has no manifest.

    Raises:
        CheckpointError: the manifest cannot be read, or the SHA-256 of weights or template differ from it.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        return None
    try:
        content = read_json(path)
        manifest = CheckpointManifest.model_validate(content)
    except ConfigError as error:
        raise CheckpointError(f"{error}; {_WAY_OUT}") from error
    except ValidationError as error:
        problems = problems_of(error, content, CheckpointManifest, lambda _: str(path))
        raise CheckpointError(f"{problems}; {_WAY_OUT}") from error
    _check(folder, "weights", manifest.weights_sha256, weights_in(folder))
    if manifest.template_sha256:
        _check(folder, "template", manifest.template_sha256, [folder / TEMPLATE_FILE])
    return manifest


def model_id(checkpoint: Path) -> str:
    """Returns the name of a checkpoint in results: its name on the hub, or the name of its run or folder.

    `runs/mine/final` is `mine`, and `runs/mine/checkpoint-200`, a save of the run, is `mine/checkpoint-200`.
    """
    folder = checkpoint.absolute()
    if name := hub_name_of(folder):
        return name
    if folder.name == RESULT_FOLDER:
        return folder.parent.name
    return f"{folder.parent.name}/{folder.name}" if re.fullmatch(r"checkpoint-\d+", folder.name) else folder.name


def stated_ranker(folder: Path) -> str | None:
    """Returns the kind of ranker in a manifest; None without a readable manifest. See `trained_window`."""
    ranker = _stated(folder, "ranker")
    return str(ranker) if ranker in get_args(TrainedRanker) else None


def trained_window(folder: Path) -> int | None:
    """Returns the window size of a checkpoint's training, in passages; None without a readable manifest.

    Does not compare the checkpoint's files with the manifest; `read_manifest` does when the model is loaded.
    """
    size = _stated(folder, "window_size")
    return size if isinstance(size, int) and 2 <= size <= _MAX_WINDOW else None


def trained_with_instructions(folder: Path) -> bool:
    """Returns True if the manifest counts training lists with instructions; see `trained_window`."""
    count = _stated(folder, "instructions")
    return isinstance(count, int) and count > 0


def _stated(folder: Path, key: str) -> object:
    """Returns the value of a key in a manifest, unchecked; None without the key or a readable manifest."""
    try:
        return read_json(folder / MANIFEST_FILE).get(key)
    except ConfigError:
        return None


def _check(folder: Path, what: str, expected: str, files: list[Path]) -> None:
    if missing := [file.name for file in files if not file.is_file()] or ([] if files else ["*.safetensors"]):
        raise CheckpointError(f"{folder} has no {', '.join(missing)}, which its {MANIFEST_FILE} requires")
    if (found := sha256_of_files(files)) != expected:
        raise CheckpointError(
            f"{folder}: SHA-256 of the {what} is {found}, but {MANIFEST_FILE} expects {expected}; the checkpoint was "
            f"changed after training: {_WAY_OUT}"
        )
