"""Settings of what the service tells its operators about itself: metrics, traces and the log."""

from __future__ import annotations

from typing import Literal

from rerank.config.settings import Address, Settings


class TelemetryConfig(Settings):
    """Metrics, traces and the form of the log. Metrics and traces need the extra `observability`.

    Attributes:
        metrics: HOST:PORT at which Prometheus finds /metrics; port 0 chooses a free one. Default: no metrics.
        traces: whether calls are traced with OpenTelemetry. The exporter is set by the standard environment variables,
            such as OTEL_EXPORTER_OTLP_ENDPOINT. Default: no.
        log_format: "text" for people, or "json", one object per line. Default: text.
        log_texts: whether the line of a call also has its query and its passages. Default: no.
    """

    metrics: Address | None = None
    traces: bool = False
    log_format: Literal["text", "json"] = "text"
    log_texts: bool = False
