"""Settings of the service except for its models: addresses, HTTP, engine, limits, TLS and telemetry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from rerank.config.encoder import EncoderConfig
from rerank.config.models import FirstModel, FusionModel, IdentityModel, ModelConfig, PERankModel
from rerank.config.settings import Address, Positive, Settings
from rerank.errors import InvalidRequest
from rerank.names import FirstStageKind, FirstStageWeight, StrategyKind, first_stage_weight

#: gRPC counts milliseconds in 32 bits.
Seconds = Annotated[float, Field(gt=0, le=1_000_000, strict=True)]


def _weight(given: Any) -> FirstStageWeight:
    try:
        return first_stage_weight(given)
    except InvalidRequest as error:
        raise ValueError(error.description) from error


class HttpConfig(Settings):
    """Settings of the HTTP port. A text instead of a mapping is `listen`.

    Attributes:
        listen: HOST:PORT; port 0 chooses a free one. Default: 127.0.0.1:8080.
        model_aliases: name in requests → name of a model of the service, for clients that can only name the models of
            their vendor. "*" means all names that no model has. Replies and the log name the model that ran.
            Default: none.
        qrels: relevance judgements that the page at / shows: "pydoc", or a folder in BEIR layout. Default: none.
        allowed_hosts: further names of this machine, such as host.docker.internal. Requests without a key and requests
            for /metrics are answered only under these names, localhost and IP addresses. Default: none.
    """

    listen: Address = "127.0.0.1:8080"
    model_aliases: Mapping[str, str] = {}
    qrels: str | None = None
    allowed_hosts: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_address(cls, settings: Any) -> Any:
        if isinstance(settings, str):
            return {"listen": settings}
        if isinstance(settings, bool | int | float):
            raise ValueError(
                f"expected HOST:PORT, such as {cls.model_fields['listen'].default}, or a mapping with "
                f"{', '.join(cls.model_fields)}"
            )
        return settings


class EngineConfig(Settings):
    """Settings of the engine: batches, queue and deadlines.

    Attributes:
        max_batch_tokens: limit on the tokens of a batch. For comparison, 4096 tokens are a hundred PE-Rank windows of
            40 positions or eight windows of 512 tokens. Default: 512 on a CPU, 16,384 on CUDA; for a model that reads
            windows one by one, one window.
        max_queue_tokens: limit on the expected tokens of all requests in progress. Beyond it, a request of the caller
            with the most tokens fails with RESOURCE_EXHAUSTED: the new request if it is this caller's, otherwise this
            caller's latest. A single request may exceed the limit until another caller needs the room. A window counts
            as at least 16 tokens. Default: 1,000,000.
        text_vector_cache_bytes: size in bytes of the cache of text vectors, so that a text that several requests have
            is encoded once; see VectorCache. 0: no cache. Default: 64 MiB, enough for some 30,000 texts with vectors of
            384 numbers.
    """

    max_batch_tokens: Positive | None = None
    max_queue_tokens: Positive = 1_000_000
    text_vector_cache_bytes: Annotated[int, Field(ge=0, strict=True)] = 64 * 1024 * 1024


class Limits(Settings):
    """Limits on requests. A request that exceeds one fails with INVALID_ARGUMENT, unless another status is named.

    Attributes:
        max_candidates: number of candidates, and depth of a search. Default: 1,000.
        max_query_chars: length of the query, and of the instruction, in characters. Default: 8,000.
        max_passage_chars: length of a passage in characters. Default: 200,000.
        max_message_bytes: size of a request in bytes, below 2 GiB; gRPC refuses a larger one with RESOURCE_EXHAUSTED.
            Default: 16 MiB.
        max_request_s: time to answer a request, in seconds; later it fails with DEADLINE_EXCEEDED. Default: 120.
        max_calls: number of calls in flight. Beyond it, a call of the caller with the most calls fails with
            RESOURCE_EXHAUSTED: the new call if it is this caller's, otherwise first a call whose message has not come
            or whose answer is not read (the connection of an unread answer ends), then the latest call. Default: 1,000.
        max_bytes_in_flight: bytes of all requests and answers in flight; messages of up to 64 KiB do not count. Beyond
            it, a call of the caller with the most bytes fails, as for `max_calls`. A single message may exceed it.
            Default: 64 MiB.
        max_transfer_s: time in which a request must arrive and an answer be read, in seconds. A request that takes
            longer fails with RESOURCE_EXHAUSTED; if an answer takes longer, its connection ends. Default: 20.
        max_connection_age_s: the age of a gRPC connection, in seconds; an older one is closed after its calls, so that
            clients connect again and a load balancer can send them elsewhere. Default: none.
    """

    max_candidates: Positive = 1000
    max_query_chars: Positive = 8_000
    max_passage_chars: Positive = 200_000
    max_message_bytes: Annotated[int, Field(gt=0, lt=2**31, strict=True)] = 16 * 1024 * 1024
    max_request_s: Annotated[float, Field(gt=0, strict=True)] = 120.0
    max_calls: Positive = 1000
    max_bytes_in_flight: Positive = 64 * 1024 * 1024
    max_transfer_s: Annotated[float, Field(gt=0, strict=True)] = 20.0
    max_connection_age_s: Seconds | None = None


class TLSConfig(Settings):
    """Files for TLS, in PEM format. They are read again when they change, without a restart.

    Attributes:
        certificate: the certificate chain of the service.
        key: the private key of the certificate, without a password.
        client_ca: certificates of the authorities whose clients may connect; every client then needs a certificate
            (mTLS). Default: none, so that clients need no certificate.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None


LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


class TelemetryConfig(Settings):
    """Metrics, traces and the form of the log. Metrics and traces need the extra `observability`.

    Attributes:
        metrics: HOST:PORT of /metrics, for Prometheus; port 0 chooses a free one. Default: no metrics.
        traces: whether calls are traced with OpenTelemetry. The exporter is set by the standard environment variables,
            such as OTEL_EXPORTER_OTLP_ENDPOINT. Default: no.
        log_format: "text" for people, or "json", one object per line. Default: text.
        log_level: lowest level that is logged; a call's line has info. Default: info.
    """

    metrics: Address | None = None
    traces: bool = False
    log_format: Literal["text", "json"] = "text"
    log_level: LogLevel = "info"


#: The models of a service whose settings name none.
BUNDLED_MODELS: tuple[ModelConfig, ...] = (
    FusionModel(name="default", ranker="fusion"),
    PERankModel(name="pe-rank", ranker="pe-rank"),
    FirstModel(name="first", ranker="first", load="request"),
    FirstModel(
        name="pe-rank-first",
        ranker="first",
        strategy=StrategyKind.CASCADE,
        preranker="pe-rank",
        window_size=15,
        load="request",
    ),
    IdentityModel(name="identity", ranker="identity"),
)


class ServiceConfig(Settings):
    """All settings of `rerank serve`.

    Attributes:
        listen: HOST:PORT of the service; port 0 chooses a free one. Default: 127.0.0.1:50051.
        http: settings of the HTTP port, or its HOST:PORT. Default: no HTTP.
        index: folder of an index built by `rerank index`, which Search needs. Default: none.
        encoder: settings of the encoder, or its name or folder. Default: all-MiniLM-L6-v2.
        sparse_encoder: folder of a learned sparse model (SPLADE), whose score a fusion reads. Default:
            splade-tiny, which `make env` installs.
        first_stage_weight: weight of the first stage that ordered the candidates of a request: auto, the model decides
            (the default model derives it from each list); neural, for a strong dense or learned sparse first stage; or
            a number. A request may set it, too; searches use auto. Default: auto.
        device: auto, cpu, cuda or cuda:N. Default: auto.
        models: the models that requests may name; the first one answers requests that name none. Default: default
            (a fusion of signals), pe-rank, first, pe-rank-first (a cascade: pe-rank orders all candidates, then FIRST
            the best 15) and identity; the two with a language model are loaded when they are first asked
            for.
        engine: settings of the engine.
        limits: limits on requests.
        telemetry: metrics, traces and the form of the log.
        max_load_s: time that loading a model may take, in seconds; a model that takes longer is not served. Default:
            600.
        drain_s: time that calls in flight get to finish after SIGTERM, in seconds. Default: 30.
        keys: file of the API keys, which `rerank keys add` writes; every call but health checks then needs one.
            Default: none.
        tls: files to encrypt connections. Default: none, which is plain text.
        insecure: listen on another address than this machine's loopback although neither keys nor tls.client_ca keep
            strangers out. Default: false.
    """

    listen: Address = "127.0.0.1:50051"
    http: HttpConfig | None = None
    index: Path | None = None
    encoder: EncoderConfig = EncoderConfig()
    sparse_encoder: str = "splade-tiny"
    first_stage_weight: Annotated[FirstStageWeight, BeforeValidator(_weight)] = FirstStageKind.AUTO
    device: str = "auto"
    models: tuple[ModelConfig, ...] = BUNDLED_MODELS
    engine: EngineConfig = EngineConfig()
    limits: Limits = Limits()
    telemetry: TelemetryConfig = TelemetryConfig()
    max_load_s: Seconds = 600.0
    drain_s: Annotated[float, Field(ge=0, strict=True)] = 30.0
    keys: Path | None = None
    tls: TLSConfig | None = None
    insecure: bool = False

    @property
    def requires_authentication(self) -> bool:
        """True if every call needs a key or a client's certificate."""
        return self.keys is not None or (self.tls is not None and self.tls.client_ca is not None)
