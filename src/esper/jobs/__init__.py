"""Run independent jobs in processes of their own, on this machine or through Ray, so that nothing is done twice."""

from esper.jobs.records import Ending, Job, Workers
from esper.jobs.running import run_jobs

__all__ = ["Ending", "Job", "Workers", "run_jobs"]
