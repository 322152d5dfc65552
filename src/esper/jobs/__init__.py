"""Run independent jobs in processes of their own, on this machine or through Ray, so that nothing is done twice."""

from esper.jobs.records import Ending, Executor, Job
from esper.jobs.running import run_jobs

__all__ = ["Ending", "Executor", "Job", "run_jobs"]
