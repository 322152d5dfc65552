"""Tasks by name: what comes with Esper, and what you register."""

import inspect
import re
from collections.abc import Callable
from typing import Any, get_type_hints

from esper.leyline.errors import EsperError, unknown
from esper.leyline.state import Split, Task
from esper.tasks import local_files, packaged, synthetic
from esper.tasks.data import TaskData

Builder = Callable[..., TaskData]

_tasks: dict[str, Builder] = {
    "mnist1d": packaged.mnist1d,
    "digits": packaged.digits,
    "spirals": synthetic.spirals,
    "waves": synthetic.waves,
    "glyphs": synthetic.glyphs,
    "planted": synthetic.planted,
    "images": local_files.images,
    "text": local_files.text,
}


def register_task(name: str, build: Builder) -> None:
    """Make a task available by name. `build(**options)` returns a `TaskData`."""
    if name in _tasks:
        raise EsperError(f"a task named {name!r} exists already; choose another name")
    _tasks[name] = build


def unregister_task(name: str) -> None:
    _builder(name)
    del _tasks[name]


def task_names() -> tuple[str, ...]:
    return tuple(_tasks)


def task_summary(name: str) -> str:
    """Return the first sentence of the docstring of a task's builder; empty if it has none."""
    build = _builder(name)
    paragraph = (inspect.getdoc(getattr(build, "func", build)) or "").partition("\n\n")[0]
    return re.split(r"(?<=[.?!])\s", " ".join(paragraph.split()), maxsplit=1)[0]


def load_task(name: str, /, **options: object) -> Task:
    """A task with its training and validation data."""
    data = _build(name, options)
    return Task(data.spec, data.train, data.validation)


def load_test(name: str, /, **options: object) -> Split:
    """The test data of a task, for exams only."""
    return _build(name, options).test


def _builder(name: str) -> Builder:
    if name not in _tasks:
        raise unknown("task", name, _tasks)
    return _tasks[name]


def _build(name: str, options: dict[str, object]) -> TaskData:
    build = _builder(name)
    known = inspect.signature(build).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in known.values())
    for option in options:
        if option not in known and not takes_any:
            raise unknown(f"option of task {name!r}", option, known)
    for option, kind in _hints(build).items():
        kinds = (int, float) if kind is float else kind
        if option in options and kind in (int, float, str) and not isinstance(options[option], kinds):
            raise EsperError(
                f"option {option} of task {name!r} must be of type {kind.__name__}, not {options[option]!r}"
            )
    return build(**options)


def _hints(build: Builder) -> dict[str, Any]:
    """What a builder says of its options; one that says nothing, such as a partial, takes what it gets."""
    try:
        return get_type_hints(build)
    except (TypeError, NameError):
        return {}
