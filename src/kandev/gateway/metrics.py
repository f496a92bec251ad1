"""What `GET /metrics` shows. Counts come from the hub's events, gauges are read when somebody asks."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kandev.domain.models import Event
from kandev.gateway.hub import Hub

COMMIT_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


class Metrics:
    """The metrics of one backend, in a registry of their own. `commit_seconds.observe` is for the store."""

    def __init__(self, hub: Hub, *, clients: Callable[[], int], sessions: Callable[[], Mapping[str, int]]) -> None:
        self._registry = CollectorRegistry()
        self._resumes = Counter("kandev_resumes", "Resumes that ended, by how.", ["how"], registry=self._registry)
        self._prompts = Counter("kandev_prompts", "Prompts sent to agents.", registry=self._registry)
        self.commit_seconds = Histogram(
            "kandev_commit_seconds", "Duration of a commit.", buckets=COMMIT_BUCKETS_S, registry=self._registry
        )
        self._registry.register(_Readings(hub, clients, sessions))
        hub.watch("session.resume.completed", self._resumed)
        hub.watch("session.resume.failed", lambda _: self._resumes.labels(how="failed").inc())
        hub.watch("session.turn.started", lambda _: self._prompts.inc())

    def render(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def _resumed(self, event: Event) -> None:
        self._resumes.labels(how=str(event.payload.get("how", "unknown"))).inc()


class _Readings(Collector):
    def __init__(self, hub: Hub, clients: Callable[[], int], sessions: Callable[[], Mapping[str, int]]) -> None:
        self._hub = hub
        self._clients = clients
        self._sessions = sessions

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily("kandev_events_published", "Events published.", value=self._hub.published)
        yield GaugeMetricFamily("kandev_websocket_clients", "Open WebSockets.", value=self._clients())
        states = GaugeMetricFamily("kandev_sessions", "Sessions by state.", labels=["state"])
        for state, count in self._sessions().items():
            states.add_metric([state], count)
        yield states
