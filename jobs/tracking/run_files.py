"""What the upload reads of a run: its facts, summary, recipe and files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jobs.config.bounded_yaml import load_yaml
from jobs.results.facts import FACTS_FILE, FAILURES_FILE, JOB_FILE, JobFacts
from jobs.results.run_summary import RunSummary
from jobs.results.summary import SUMMARY_FILE
from pipeline.remote.copies import home_of
from pipeline.remote.urls import Place
from tango_core.local_files import parse_json, read_text

ARTIFACTS = (JOB_FILE, FACTS_FILE, SUMMARY_FILE, "report.html", FAILURES_FILE)
FOLDERS = ("answers", "plots")


@dataclass(frozen=True)
class RunDirectory:
    """A finished run on disk, as the upload sees it.

    Attributes:
        path: Of the run, or of a local copy of it.
    """

    path: Path

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
            return RunSummary.from_json(parse_json(read_text(path), path.name))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} is damaged ({type(error).__name__}: {error}); "
                f"write it again with `tango report {self.path}`"
            ) from error

    def counts(self) -> dict[str, object]:
        """What `tango precompute` counted."""
        path = self.path / SUMMARY_FILE
        if not path.is_file():
            raise FileNotFoundError(
                f"{self.path} holds no {SUMMARY_FILE}; run `tango precompute` again"
            )
        counts: dict[str, object] = parse_json(read_text(path), str(path))
        return counts

    def job(self) -> object | None:
        """The resolved recipe as plain data; `None` for an imported run."""
        path = self.path / JOB_FILE
        return load_yaml(path.read_bytes()) if path.is_file() else None

    def artifacts(self) -> list[Path]:
        """Files to upload."""
        return [self.path / name for name in ARTIFACTS if (self.path / name).is_file()]

    def in_folders(self) -> list[Path]:
        """Files to upload into folders named as theirs."""
        return [
            path
            for name in FOLDERS
            for path in sorted((self.path / name).glob("*"))
            if path.is_file()
        ]

    def figures(self) -> list[Path]:
        """Plots that the UI shows beside the charts."""
        return sorted((self.path / "plots").glob("*.png"))

    def home(self) -> Place:
        """Where the run is: the directory itself, or the URL that it is a copy of."""
        return home_of(self.path.absolute())

    def artifact_root(self) -> str:
        """URI under which a local store keeps the files of all runs."""
        home = self.home()
        if isinstance(home, Path):
            return (home.parent.resolve() / "mlartifacts").as_uri()
        return str(home.parent / "mlartifacts")
