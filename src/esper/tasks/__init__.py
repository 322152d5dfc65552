"""Data to train hosts on."""

from esper.tasks.data import TaskData
from esper.tasks.registry import load_task, load_test, register_task, task_names, unregister_task

__all__ = ["TaskData", "load_task", "load_test", "register_task", "task_names", "unregister_task"]
