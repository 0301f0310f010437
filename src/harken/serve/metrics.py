"""Metrics of the server for Prometheus; no label holds what a client has sent."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from harken.serve.work.admission import Admission
from harken.serve.work.engine import Job
from harken.serve.work.live_job import LiveJob
from harken.serve.work.models import Models
from harken.types import SAMPLE_RATE

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
REJECTIONS = {401: "key", 403: "origin", 413: "too_large", 429: "busy", 503: "draining"}
"""Reasons for refusing requests, by status."""
LAG_SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class Metrics:
    """The counters and gauges of one server.

    Parameters
    ----------
    admission : Admission
    models : Models
        Asked for what is in progress whenever the metrics are read.
    """

    def __init__(self, admission: Admission, models: Models) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("harken_requests", "Requests answered.", ["route", "status"], registry=registry)
        self.request_seconds = Histogram(
            "harken_request_seconds",
            "Time to the end of a response.",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        )
        self.first_segment_seconds = Histogram(
            "harken_first_segment_seconds", "Time to the first segment.", buckets=SECONDS, registry=registry
        )
        self.audio_seconds = Counter("harken_audio_seconds", "Audio transcribed.", ["kind"], registry=registry)
        self.compute_seconds = Counter(
            "harken_compute_seconds", "Time that the engines have worked.", ["kind"], registry=registry
        )
        self.rejected = Counter("harken_rejected", "Requests refused.", ["reason"], registry=registry)
        self.cancelled = Counter(
            "harken_cancelled", "Work that nobody waited for any more.", ["kind"], registry=registry
        )
        self.segments = Counter("harken_segments", "Segments delivered.", ["kind"], registry=registry)
        self.stream_lag_seconds = Histogram(
            "harken_stream_lag_seconds",
            "Time from the arrival of a stream's samples to the end of their processing.",
            buckets=LAG_SECONDS,
            registry=registry,
        )
        for name, text, value in (
            ("harken_queue_jobs", "Files in progress.", lambda: admission.n_files),
            (
                "harken_queue_audio_seconds",
                "Length of the files in progress.",
                lambda: admission.queued_s,
            ),
            ("harken_streams_active", "Live streams.", lambda: admission.n_streams),
            (
                "harken_stream_load",
                "Share of the engines' time for live streams.",
                lambda: admission.load,
            ),
            ("harken_models_loaded", "Models in memory.", lambda: len(models.loaded)),
        ):
            Gauge(name, text, registry=registry).set_function(value)

    def record_response(self, route: str, status: int, seconds: float) -> None:
        """Record a response; the route is the pattern that its path matches, or empty."""
        self.requests.labels(route, status).inc()
        self.request_seconds.labels(route).observe(seconds)
        if status in REJECTIONS:
            self.rejected.labels(REJECTIONS[status]).inc()

    def record_step(self, job: Job, seconds: float) -> None:
        """Record the step of a job."""
        kind = "live" if job.live else "file"
        self.compute_seconds.labels(kind).inc(seconds)
        if isinstance(job, LiveJob):
            self.stream_lag_seconds.observe(job.lag_s)
            self.audio_seconds.labels(kind).inc(job.step_samples / SAMPLE_RATE)
            self.segments.labels(kind).inc(job.step_segments)

    def text(self) -> bytes:
        """Return all of them in the text format of Prometheus."""
        return generate_latest(self._registry)
