"""Load tasks: built-in data sets, your own files, and tasks that you register."""

from esper.tasks.data import TaskData
from esper.tasks.registry import load_task, load_test, register_task, task_names, task_summary, unregister_task

__all__ = ["TaskData", "load_task", "load_test", "register_task", "task_names", "task_summary", "unregister_task"]
