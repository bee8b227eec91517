"""Metrics of the service in the text format of Prometheus.

Label values are names of networks and endpoints, statuses and reasons that the service defines, never text of a client, so that their
number is bounded.
"""

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)


class ServiceMetrics:
    """Counters and histograms of one service.

    Parameters
    ----------
    admissions : dict of str to Admission
        By the names of the networks.
    images_waiting : callable
        Returns the number of images that wait for a run.
    """

    def __init__(self, admissions, images_waiting):
        self._registry = CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self._registry)
        self._requests = self._metric(Counter, 'requests', 'Answered requests', ('endpoint', 'model', 'status'))
        self._latency = self._metric(
            Histogram, 'request_seconds', 'Seconds from the headers of a request to its answer', ('endpoint', 'model'), buckets=_SECONDS
        )
        self._refused = self._metric(Counter, 'refused', 'Requests that were not computed, by reason', ('model', 'reason'))
        self._batches = self._metric(Histogram, 'batch_images', 'Images of a run', ('model',), buckets=_IMAGES)
        self._runs = self._metric(Histogram, 'run_seconds', 'Seconds of a run', ('model',), buckets=_SECONDS)
        in_progress = self._metric(Gauge, 'requests_in_progress', 'Requests that are read, waiting or computed', ('model',))
        for name, admission in admissions.items():
            in_progress.labels(name).set_function(lambda admission=admission: admission.in_progress)
        self._metric(Gauge, 'images_waiting', 'Images that wait for a run').set_function(images_waiting)

    def _metric(self, kind, name, described, labels=(), **options):
        return kind(f'bmx_melius_{name}', described, labels, registry=self._registry, **options)

    def observe_request(self, endpoint, model, status, seconds):
        """Count an answered request; `model` is empty for requests that name no network of the service."""
        self._requests.labels(endpoint, model, status).inc()
        self._latency.labels(endpoint, model).observe(seconds)

    def observe_refusal(self, model, reason):
        """Count a request that was refused."""
        self._refused.labels(model, reason).inc()

    def observe_run(self, network, images, seconds):
        """Count a run of a `ServedNetwork`; the function that `Batcher` calls."""
        self._batches.labels(network.name).observe(images)
        self._runs.labels(network.name).observe(seconds)

    def text(self):
        """Return all metrics, bytes."""
        return prometheus_client.generate_latest(self._registry)
