"""Reads prompt templates of the package `rank-llm` without running its code, and checks their hashes."""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

from rerank.errors import ConfigError
from rerank.util.validation import suggestion

#: Prefix of the names of these templates, as in "rank-llm:rank_zephyr".
PREFIX = "rank-llm:"
#: Version of the package whose files have the hashes below.
_VERSION = "0.25.7"
#: Folder of the templates in the package.
_FOLDER = "rank_llm/rerank/prompt_templates"
#: Template → SHA-256 of its file. The other files of the package hold prompts of another form.
_SHA256 = {
    "qwen_thinking": "c3488ee55f8409080f112b4a300ee0d747b253a538b942107a7ebbdd7f511daf",
    "rank_gpt": "14ac512117ffe91987e708d6c1531203737c3a379d96110c825e8f8dc07297fe",
    "rank_gpt_apeer": "3ab297477f66fea2098323be831e34a68ed147221b178cab3352b605479606a5",
    "rank_zephyr": "30558fd5956f4213174cc9ad05351656051cb5d02c844442a838358102dad898",
    "rank_zephyr_alpha": "c370d2b7430239fe2872780167d831f115637f5d6be90c9b3e0a456367852eaf",
}
#: Templates whose prompts have another form → why they are refused, and what to use.
_OTHER_FORMS = {
    "rank_lrl": f"asks for names such as PASSAGE1, which this service does not write; use {PREFIX}rank_gpt",
    "insert_rank": f"shows scores of the first stage; use {PREFIX}rank_zephyr, and first_stage_weight for the scores",
}


def read_published(name: str) -> str:
    """Returns the YAML of a template whose name begins with PREFIX.

    Raises:
        ConfigError: there is no such template, the package is not installed, or its file has another SHA-256.
    """
    template = name.removeprefix(PREFIX)
    if template in _OTHER_FORMS:
        raise ConfigError(f"template {name!r} {_OTHER_FORMS[template]}")
    if template not in _SHA256:
        raise ConfigError(
            f"template {name!r} is not one of {', '.join(PREFIX + template for template in _SHA256)}"
            f"{suggestion(name, [PREFIX + template for template in _SHA256])}"
        )
    try:
        package = metadata.distribution("rank-llm")
        content = Path(str(package.locate_file(f"{_FOLDER}/{template}_template.yaml"))).read_bytes()
    except (metadata.PackageNotFoundError, OSError) as error:
        raise ConfigError(
            f"template {name} is a file of the package rank-llm, which is not installed here ({error}); "
            f"pip install --no-deps rank-llm=={_VERSION}, or give another template"
        ) from error
    if (found := hashlib.sha256(content).hexdigest()) != _SHA256[template]:
        raise ConfigError(
            f"template {name}: the file of rank-llm {package.version} has the SHA-256 {found}, but {_VERSION} has "
            f"{_SHA256[template]}; pip install --no-deps rank-llm=={_VERSION}, or give the path of a file as `template`"
        )
    return content.decode("utf-8")
