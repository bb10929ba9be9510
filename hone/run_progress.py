"""A run's steps as they come: a line each, and a bar with the time that is left."""

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from core.run import StepMetrics


class RunProgress:
    """Shows steps on a console; opened as a block."""

    def __init__(self, screen: Console, *, steps: int) -> None:
        """``steps``: planned ones; 0: unknown."""
        self._screen = screen
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=screen,
            transient=True,
        )
        self._task = self._bar.add_task("waiting for the first step", total=steps or None)

    def __enter__(self) -> "RunProgress":
        # Without a terminal only the lines are wanted.
        if self._screen.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._screen.is_terminal:
            self._bar.stop()

    def step(self, step: StepMetrics) -> None:
        """Show a step and what alarmed in it."""
        self._screen.print(step_line(step), markup=False)
        for alarm in step.alarms:
            self._screen.print(f"  [yellow]alarm: {escape(str(alarm))}[/]")
        self._bar.update(self._task, completed=step.step, description=f"@{step.version}")


def step_line(step: StepMetrics) -> str:
    """A step in one line: what is known of it."""
    values = step.values
    parts = [f"step {step.step}: @{step.version}"]
    if step.reward_mean is not None:
        parts.append(f"reward {step.reward_mean:.3f}")
        if len(step.domains) > 1:
            rewards = {name: one.reward_mean for name, one in step.domains.items() if one.reward_mean is not None}
            parts.append("(" + ", ".join(f"{name} {reward:.2f}" for name, reward in rewards.items()) + ")")
    if "train_seconds" not in values and step.domains:
        return " ".join([*parts, "nothing to learn: every group's rewards were alike"])
    parts.append(f"loss {step.loss:.4f} norm {step.gradient_norm:.3g}")
    shown = (("entropy", "entropy", ".3f"), ("mismatch_kl", "mismatch", ".2g"), ("ess", "ESS", ".2f"))
    parts += [f"{label} {format(values[name], form)}" for name, label, form in shown if name in values]
    parts += [f"{label} {values[name]:.1f} s" for name, label in _SECONDS if name in values]
    return " ".join(parts)


_SECONDS = (("generate_seconds", "waited"), ("train_seconds", "trained"))
