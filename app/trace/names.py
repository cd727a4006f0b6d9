"""What a job is called: "project/job" inside the service, only "job" to those who ask about it."""

import re

DEFAULT_PROJECT = "default"
LONGEST_JOB = 96
LONGEST_PROJECT = 31
JOB_PATTERN = rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_JOB - 1}}}$"
PROJECT_PATTERN = rf"^[a-z0-9][a-z0-9-]{{0,{LONGEST_PROJECT - 1}}}$"

_JOB = re.compile(JOB_PATTERN)
_PROJECT = re.compile(PROJECT_PATTERN)


def qualified(project: str, job: str) -> str:
    """The key under which the store, the queue and the consumers know this job."""
    return f"{project}/{job}"


def project_of(key: str) -> str:
    """Project of a job's key; of one that names none, the default one."""
    project, slash, _ = key.partition("/")
    return project if slash else DEFAULT_PROJECT


def plain(key: str) -> str:
    """A job's id as its own project knows it."""
    return key.partition("/")[2] or key


def is_job(text: str) -> bool:
    """Whether a job may be called this."""
    return _JOB.fullmatch(text) is not None


def is_project(text: str) -> bool:
    """Whether a project may be called this."""
    return _PROJECT.fullmatch(text) is not None
