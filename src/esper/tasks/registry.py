"""Register tasks, and load them by name."""

import inspect
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
    "phrases": synthetic.phrases,
    "source": packaged.source,
    "images": local_files.images,
    "text": local_files.text,
}


def register_task(name: str, build: Builder) -> None:
    """Make a task available to `load_task` under a name.

    Args:
        name: The new name.
        build: A function that returns the `TaskData` of the task. Its parameters are the options of the task, and the
            first line of its docstring is the summary.

    Raises:
        EsperError: If the name is taken.

    Example:
        >>> register_task("sign", build)
        >>> task = load_task("sign", examples=600)
    """
    if name in _tasks:
        raise EsperError(f"a task named {name!r} already exists: choose another name")
    _tasks[name] = build


def unregister_task(name: str) -> None:
    """Remove a task from those that `load_task` knows.

    Args:
        name: The name it was registered under.

    Raises:
        EsperError: If there is no such task.
    """
    _builder(name)
    del _tasks[name]


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks, in order of registration.

    Example:
        >>> task_names()
        ('mnist1d', 'digits', 'spirals', 'waves', 'glyphs', 'planted', 'phrases', 'source', 'images', 'text')
    """
    return tuple(_tasks)


def task_summary(name: str) -> str:
    """Return a one-line description of a task: the first line of the docstring of its builder.

    Args:
        name: The name of the task.

    Returns:
        What the task is, its inputs and classes; an empty string if its builder has no docstring.

    Raises:
        EsperError: If there is no such task.

    Example:
        >>> task_summary("spirals")
        'Classify points in the plane by spiral arm (2 inputs, 3 classes).'
    """
    build = _builder(name)
    return (inspect.getdoc(getattr(build, "func", build)) or "").partition("\n")[0]


def load_task(name: str, /, **options: object) -> Task:
    """Load a task with its training and validation data.

    Args:
        name: The name of the task; `task_names()` lists all.
        **options: Options of the task, such as `examples=600`.

    Returns:
        The task, on the CPU.

    Raises:
        EsperError: If the task or an option is unknown, or an option has another type.
        FileError: If its data is missing or damaged.

    Example:
        >>> load_task("spirals", arms=2).train.x.shape
        torch.Size([2000, 2])
    """
    data = _build(name, options)
    return Task(data.spec, data.train, data.validation)


def load_test(name: str, /, **options: object) -> Split:
    """Load the test data of a task. Only exams should use it.

    Args:
        name: The name of the task.
        **options: Options of the task, as for `load_task`.

    Returns:
        The test examples and their targets.

    Raises:
        EsperError: If the task or an option is unknown, or an option has another type.
        FileError: If its data is missing or damaged.
    """
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
    """Return the type hints of a builder; empty if it has none that can be read, such as a partial."""
    try:
        return get_type_hints(build)
    except (TypeError, NameError):
        return {}
