"""Ways to damage the folder of a model: files that are cut, of the wrong kind, or with values that fit nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.json_files import change_json

Damage = Callable[[Path], None]
Tensors = dict[str, torch.Tensor]

#: Contents that no JSON file of a model may have.
_CONTENTS: Mapping[str, bytes] = {
    "empty": b"",
    "cut": b'{"a": ',
    "list of numbers": b"[5]",
    "no UTF-8": b"\xff\xfe{}",
    "deep": b"[" * 100_000,
    "long number": b'{"hidden_size": ' + b"9" * 5000 + b"}",
}
_SIZES = (0, 10**9, 10**30, "a", {}, float("nan"))
#: Keys that a transformer of each architecture has.
_SIZE_KEYS = ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
_WRONG_VALUES: Mapping[str, tuple[Any, ...]] = {
    "model_type": (5, "nothing", None, [], {}),
    "architectures": (5, [5], {}, "BertModel"),
    "max_position_embeddings": (-1, "a", {}),
    "num_labels": (10**12, "a"),
    "hidden_act": ("nothing", []),
    "quantization_config": (5, {"quant_method": "nothing"}),
    "auto_map": ({"AutoModel": "publisher--modeling.Model"},),
    "dtype": ("nothing",),
}


def content(file: str, data: bytes) -> Damage:
    return lambda folder: (folder / file).write_bytes(data) and None


def removed(file: str) -> Damage:
    return lambda folder: (folder / file).unlink()


def as_folder(file: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / file).unlink()
        (folder / file).mkdir()

    return damage


def setting(file: str, key: str, value: object) -> Damage:
    return lambda folder: change_json(folder / file, **{key: value})


def tensors_changed(file: str, change: Callable[[Tensors], Tensors]) -> Damage:
    """Changes the tensors of a file in the safetensors format."""

    def damage(folder: Path) -> None:
        save_file(change(load_file(folder / file)), folder / file, metadata={"format": "pt"})

    return damage


def damaged_json(file: str) -> Iterator[tuple[str, Damage]]:
    yield from ((f"{file} {name}", content(file, data)) for name, data in _CONTENTS.items())
    yield f"{file} as a folder", as_folder(file)


def wrong_values(file: str, values: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[str, Damage]]:
    for key, part in values.items():
        yield from ((f"{file} {key} {value!r}", setting(file, key, value)) for value in part)


def wrong_sizes(file: str) -> Iterator[tuple[str, Damage]]:
    yield from wrong_values(file, dict.fromkeys(_SIZE_KEYS, _SIZES) | _WRONG_VALUES)


def of_weights(file: str) -> Iterator[tuple[str, Damage]]:
    """Damage of a file in the safetensors format."""

    def cut(size: float) -> Damage:
        def damage(folder: Path) -> None:
            whole = (folder / file).read_bytes()
            (folder / file).write_bytes(whole[: int(size * len(whole)) if size < 1 else int(size)])

        return damage

    yield from ((f"{file} cut at {size}", cut(size)) for size in (0, 5, 0.5, 0.99))
    yield f"{file} removed", removed(file)
    yield f"{file} as a folder", as_folder(file)
    yield f"{file} of noise", content(file, b"\x93\x12\xff" * 9000)
    yield f"{file} with a long header", content(file, b"\xff\xff\xff\xff\xff\xff\xff\x7f{}")
    yield f"{file} without tensors", tensors_changed(file, lambda tensors: {})
    yield f"{file} without half of them", tensors_changed(file, lambda tensors: dict(sorted(tensors.items())[::2]))
    yield f"{file} of other shapes", tensors_changed(file, lambda tensors: {n: torch.zeros(3, 5) for n in tensors})
    yield f"{file} of NaN", tensors_changed(file, lambda tensors: {n: t * float("nan") for n, t in tensors.items()})


def pickled(file: str, contents: object) -> Damage:
    """Pickled objects instead of weights in the safetensors format."""

    def damage(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        torch.save(contents, folder / file)

    return damage
