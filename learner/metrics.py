"""Prometheus metrics of the learner."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from core.run import TrainingRun


class LearnerMetrics:
    """Counters and gauges, labelled by Policy and algorithm."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("policy", "algorithm")
        self._steps = Counter("hone_learner_steps", "Optimizer steps recorded.", labels, registry=registry)
        self._reward = Gauge("hone_learner_reward_mean", "Mean reward of the newest step.", labels, registry=registry)
        self._loss = Gauge("hone_learner_loss", "Loss of the newest step.", labels, registry=registry)
        self._norm = Gauge("hone_learner_gradient_norm", "Gradient norm before clipping.", labels, registry=registry)
        self._version = Gauge("hone_learner_version", "Newest published version.", labels, registry=registry)
        self._values = Gauge(
            "hone_learner_step_value",
            "Other values of the newest step, such as ess and mismatch_kl.",
            (*labels, "name"),
            registry=registry,
        )
        self._alarms = Counter(
            "hone_learner_alarms", "Steps with an alarm, by its name.", (*labels, "name"), registry=registry
        )
        self._domains = Gauge(
            "hone_learner_domain_value",
            "Values of the newest step by Domain, such as reward_mean and response_tokens.",
            (*labels, "domain", "name"),
            registry=registry,
        )
        self._runs = Counter("hone_learner_runs", "Runs ended, by outcome.", (*labels, "outcome"), registry=registry)

    def observe(self, run: TrainingRun) -> None:
        """Show the run's newest step."""
        step, labels = run.steps[-1], (run.policy, run.algorithm)
        self._steps.labels(*labels).inc()
        self._loss.labels(*labels).set(step.loss)
        self._norm.labels(*labels).set(step.gradient_norm)
        self._version.labels(*labels).set(step.version)
        if step.reward_mean is not None:
            self._reward.labels(*labels).set(step.reward_mean)
        for name, value in step.values.items():
            self._values.labels(*labels, name).set(value)
        for alarm in step.alarms:
            self._alarms.labels(*labels, alarm.name).inc()
        for domain, metrics in step.domains.items():
            for name, number in metrics.model_dump().items():
                if number is not None:
                    self._domains.labels(*labels, domain, name).set(number)

    def ended(self, run: TrainingRun, outcome: str) -> None:
        """Count a run that ended: ``finished``, ``stopped`` by an alarm, or ``failed``."""
        self._runs.labels(run.policy, run.algorithm, outcome).inc()
