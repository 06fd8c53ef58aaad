"""Checks settings and the files that they name before models are loaded, and describes to the operator what is served.

It imports none of the libraries that load models.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rerank.access.addresses import check_address, check_loopback
from rerank.access.keys import read_keys
from rerank.access.tls import check_certificates, check_pem
from rerank.checkpoints import bundled
from rerank.checkpoints.bundled import SMOLLM2, locate_sparse_encoder
from rerank.checkpoints.hub import is_hub_name
from rerank.checkpoints.manifest import TEMPLATE_FILE
from rerank.collections.judgements import read_judgements
from rerank.config import HttpConfig, LanguageModel, ModelConfig, PERankModel, ServiceConfig, TelemetryConfig
from rerank.config.models import needs_sparse
from rerank.config.named import BUNDLED
from rerank.errors import CheckpointError, ConfigError
from rerank.prompting.templates import TEXT_FIELDS, VECTOR_FIELDS, load_template
from rerank.retrieval.index_format import check_sizes
from rerank.util.addresses import reachable_address
from rerank.util.files import is_missing_folder, missing_model_hint, missing_path_hint
from rerank.util.header_values import check_header_value

if TYPE_CHECKING:
    from rerank.reranking.reranker import AsyncReranker

#: The packages that make and send traces.
_TRACING_PACKAGES = (
    "opentelemetry.sdk",
    "opentelemetry.exporter.otlp.proto.grpc",
    *("opentelemetry.instrumentation.asgi", "opentelemetry.instrumentation.grpc"),
)
#: The ends of the names of the exporter's environment variables that name files.
_TRACING_FILES = ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")


def check_before_loading(config: ServiceConfig, binds: bool = True) -> None:
    """Checks addresses, folders, keys, certificates and judgements of a configuration, without importing torch.

    Relative paths begin at the working directory.

    Args:
        binds: whether the addresses must be free.

    Raises:
        ConfigError: an address cannot be bound or is open to strangers, the file of the keys or a certificate cannot be
            used, or the folder or template of a model or the folder of the encoder is missing.
        IndexMismatch: the folder of the index holds no index of this version, or one of its files has the wrong size.
        CollectionError: the judgements cannot be read.
    """
    check_address(config.listen, "--listen", binds)
    if config.http is not None:
        _check_http(config.http, binds)
    _check_telemetry(config.telemetry, binds)
    _check_access(config)
    if config.keys is not None:
        read_keys(config.keys)
    if config.tls is not None:
        check_certificates(config.tls)
    if config.index is not None:
        check_sizes(config.index)
    if is_missing_folder(name := config.encoder.name):
        where = missing_path_hint(Path(name))
        raise ConfigError(f"encoder: there is no folder {name}{where}; give the folder of a model, or its name")
    if any(needs_sparse(model) for model in config.models):
        _check_sparse_encoder(config.sparse_encoder)
    for model in config.models:
        check_model_files(model)


def description(address: str, reranker: AsyncReranker) -> Iterator[str]:
    """The lines that tell an operator what runs at an address: models, index, limits, and how to call it."""
    for model in reranker.models():
        default = ", the default" if model.is_default else ""
        served = "not served, for the reason above" if model.problem else f"strategy {model.default_strategy}"
        served += f"; {model.info.warning}" if model.info.warning else ""
        served += "" if model.is_loaded else "; loaded when it is first asked for"
        yield f"model {model.name}{default}: {model.info.kind}, {served}"
    config = reranker.config
    yield from overlooked_models(config.models)
    if reranker.index is None:
        yield "index: none, so Search is refused; `--index` names the folder of one"
    else:
        manifest = reranker.index.manifest
        yield f"index: {manifest.passages:,} passages of {manifest.collection}, vectors of {manifest.encoder.name}"
    limits = config.limits
    yield (
        f"limits: {limits.max_candidates:,} candidates and {limits.max_request_s:g} s per request, "
        f"{limits.max_passage_chars:,} characters per passage, {limits.max_message_bytes:,} bytes per message"
    )
    target = f"--target {reachable_address(address)}{' --tls-ca FILE' if config.tls else ''}"
    example = 'rank --query "…" FILE' if reranker.index is None else 'search "…"'
    key = "with the key in RERANK_API_KEY, " if config.keys else ""
    yield f"try: {key}rerank {example} {target}, or rerank models {target}"


def overlooked_models(models: Sequence[ModelConfig]) -> Iterator[str]:
    """Warnings if the first model is not the one that is named `default`, and of models that replace bundled ones."""
    first = models[0].name
    if first != "default" and any(model.name == "default" for model in models):
        yield (
            f"model {first} answers requests that do not name a model, and another one those that name `default`; "
            "under the name `default` (--model default=PATH) it would answer both"
        )
    for model in models:
        replaced = BUNDLED.get(model.name) if model.name != "default" else None
        if replaced and (model.ranker, _checkpoint(model)) != (replaced.ranker, _checkpoint(replaced)):
            by = _checkpoint(model) or model.ranker
            cascade = f" in a cascade after {replaced.preranker}" if replaced.preranker else ""
            yield (
                f"model {model.name}: {by} replaces the bundled model of this name ({replaced.ranker}{cascade}); under "
                f"another name, such as my-{model.name}, both would be served"
            )


def _checkpoint(model: ModelConfig) -> Path | None:
    """The folder of a model's checkpoint, or of the bundled one that it uses by default; None if it has neither."""
    return bundled.PE_RANK if model.checkpoint is None and model.ranker == "pe-rank" else model.checkpoint


def _check_sparse_encoder(name: str) -> None:
    folder = locate_sparse_encoder(name)
    if not folder.is_dir():
        raise ConfigError(f"sparse_encoder: there is no folder {folder}{missing_path_hint(folder)}; give one")


def _check_http(http: HttpConfig, binds: bool) -> None:
    _check_installed("http", ("starlette", "uvicorn"), "http")
    check_address(http.listen, "--http", binds)
    if http.qrels is not None:
        read_judgements(http.qrels)


def _check_telemetry(telemetry: TelemetryConfig, binds: bool) -> None:
    if telemetry.metrics is not None:
        _check_installed("telemetry.metrics", ("prometheus_client", "starlette", "uvicorn"), "observability")
        check_address(telemetry.metrics, "telemetry.metrics", binds)
    if telemetry.traces:
        _check_installed("telemetry.traces", _TRACING_PACKAGES, "observability")
        for prefix in ("OTEL_EXPORTER_OTLP", "OTEL_EXPORTER_OTLP_TRACES"):
            variables = {name: os.environ.get(f"{prefix}_{name}") for name in (*_TRACING_FILES, "HEADERS")}
            check_header_value(f"the environment variable {prefix}_HEADERS", variables.pop("HEADERS") or "")
            for name, path in variables.items():
                if path:
                    check_pem(Path(path), f"the environment variable {prefix}_{name}")


def _check_installed(setting: str, packages: Sequence[str], extra: str) -> None:
    """Raises: ConfigError for a package that the setting needs and that is not installed."""
    for name in packages:
        try:
            is_installed = find_spec(name) is not None
        except ModuleNotFoundError:  # of a package above it
            is_installed = False
        if not is_installed:
            raise ConfigError(f"{setting} needs {name}, which is not installed; install rerank-listwise[{extra}]")


def _check_access(config: ServiceConfig) -> None:
    """Raises: ConfigError if other machines can reach an address without a key, and `insecure` does not allow it."""
    if config.insecure or config.requires_authentication:
        return
    addresses = {"listen": config.listen}
    if config.http is not None:
        addresses["http"] = config.http.listen
    for name, address in addresses.items():
        check_loopback(name, address)


def check_model_files(model: ModelConfig) -> None:
    """Checks the paths and the template that the settings of a model name, and the key of its servers.

    The files inside a checkpoint's folder are checked when the model is loaded. A fault in them stops this model only.

    Raises:
        ConfigError: a folder or file is missing or of another kind, the template cannot be used, or the environment
            variable of a server's key is not set.
    """
    try:
        if model.servers is not None:
            model.servers.api_key()
        if model.checkpoint is not None and str(model.checkpoint) != SMOLLM2:
            _check_folder(model.checkpoint, may_be_a_name=model.servers is not None)
        if not isinstance(model, LanguageModel):
            return
        if model.template is not None and model.template != str(Path(model.path or "") / TEMPLATE_FILE):
            load_template(model.template, VECTOR_FIELDS if isinstance(model, PERankModel) else TEXT_FIELDS)
    except (ConfigError, CheckpointError) as error:
        raise ConfigError(f"model {model.name}: {error}") from error
    except OSError as error:
        raise ConfigError(f"model {model.name}: {error.filename} cannot be read: {error.strerror}") from error


def _check_folder(path: Path, may_be_a_name: bool) -> None:
    """Checks the folder of a checkpoint, or its name on a model hub.

    Args:
        may_be_a_name: whether any name is allowed that is not a path, and not only ORGANISATION/MODEL.

    Raises:
        ConfigError: there is no such folder, and the path cannot be a name.
    """
    if os.path.isdir(path) or is_hub_name(str(path)):
        return
    if not may_be_a_name or is_missing_folder(str(path)):
        raise ConfigError(f"there is no folder {path}{missing_model_hint(path)}")
