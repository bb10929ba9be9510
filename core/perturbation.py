"""Perturbations: deterministic rewordings of a Task that keep its answer. Pure."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from core.errors import TaskError
from core.message import Message
from core.task import Task, make_task


def _polite(text: str) -> str:
    return f"Hello! Could you please help me with this?\n\n{text}\n\nThank you."


def _framed(text: str) -> str:
    return f"Here is a task.\n---\n{text}\n---\nDo it exactly as it is described."


def _distracted(text: str) -> str:
    return f"It has been raining here since this morning, which does not matter for the following.\n\n{text}"


PERTURBATIONS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {"polite": _polite, "framed": _framed, "distracted": _distracted}
)
"""By name. Each keeps the question itself letter for letter, so that the answer cannot change."""


def perturbed(task: Task, name: str) -> Task:
    """``task`` with its last user message reworded: a Task of its own that names the first.

    Raises TaskError for a name that there is not, and for a Task whose last user message is not text.
    """
    try:
        reword = PERTURBATIONS[name]
    except KeyError:
        raise TaskError(f"there is no perturbation '{name}'", hint=f"known: {', '.join(PERTURBATIONS)}") from None
    place = max((at for at, one in enumerate(task.messages) if one.get("role") == "user"), default=None)
    if place is None or not isinstance(task.messages[place].get("content"), str):
        raise TaskError(f"{task.id} has no user message of text to reword")
    changed: Message = {**task.messages[place], "content": reword(str(task.messages[place]["content"]))}
    fields = {name: getattr(task, name) for name in type(task).model_fields if name != "id"}
    fields["messages"] = (*task.messages[:place], changed, *task.messages[place + 1 :])
    fields["metadata"] = task.metadata | {"perturbation": name, "perturbation_of": task.id}
    return make_task(**fields)
