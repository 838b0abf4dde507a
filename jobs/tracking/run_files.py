"""What the upload reads of a run: its facts, summary, recipe and files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import yaml

from jobs.results.facts import FACTS_FILE, JOB_FILE, JobFacts
from jobs.results.run_summary import RunSummary
from jobs.results.summary import SUMMARY_FILE
from pipeline.remote.urls import Url

ARTIFACTS = (JOB_FILE, FACTS_FILE, SUMMARY_FILE, "report.html", "failures.parquet")
FOLDERS = ("answers", "plots")


@dataclass(frozen=True)
class RunDirectory:
    """A finished run on disk, as the upload sees it.

    Attributes:
        path: Of the run, or of a local copy of it.
        home: URL of the run that `path` is a copy of; `None` if it is the run itself.
    """

    path: Path
    home: Url | None = None

    def facts(self) -> JobFacts:
        """What the run says about itself.

        Raises:
            FileNotFoundError: If this is not a finished run.
        """
        return JobFacts.load(self.path)

    def summary(self) -> RunSummary:
        """The numbers of the run.

        Raises:
            FileNotFoundError: If the run was not summarised.
            ValueError: If its summary is damaged.
        """
        path = self.path / SUMMARY_FILE
        if not path.is_file():
            raise FileNotFoundError(
                f"{self.path} holds no {SUMMARY_FILE}; write it with `tango report {self.path}`"
            )
        try:
            return RunSummary.from_json(json.loads(path.read_text()))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} is damaged ({type(error).__name__}: {error}); "
                f"write it again with `tango report {self.path}`"
            ) from error

    def job(self) -> object | None:
        """The resolved recipe as plain data; `None` for an imported run."""
        path = self.path / JOB_FILE
        job: object = yaml.safe_load(path.read_text()) if path.is_file() else None
        return job

    def artifacts(self) -> list[Path]:
        """Files to upload."""
        return [self.path / name for name in ARTIFACTS if (self.path / name).is_file()]

    def folders(self) -> list[Path]:
        """Folders to upload under their own names."""
        return [self.path / name for name in FOLDERS if (self.path / name).is_dir()]

    def artifact_root(self) -> str:
        """URI under which a local store keeps the files of all runs."""
        if self.home is not None:
            return str(self.home.parent / "mlartifacts")
        return (self.path.parent.resolve() / "mlartifacts").as_uri()
