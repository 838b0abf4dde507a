"""Runs the command of a KubeRay RayJob, and says whether another cluster may end otherwise.

KubeRay starts a job that FAILED again on a new cluster, up to `backoffLimit` times, and knows no
exit codes; a job that was STOPPED stays over. So this stops its own job after exit code 1 (clips
failed, all results are written) and 2 (a mistake in the recipe), unless a node of the cluster was
lost, which ends with 2 as well. What kills the command, or the head, leaves the job FAILED.

    python /opt/attempt.py tango sweep recipe.yaml --address auto

Needs Ray and the variables that Ray gives to the entrypoint of a job.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from types import FrameType

# Another cluster would end the same way.
FINAL = (1, 2)
# Ray ends the processes of a job within RAY_JOB_STOP_WAIT_TIME_S.
STOP_S = 120


def main(command: list[str]) -> int:
    """The exit code of the command; after a final one Ray ends this process."""
    with subprocess.Popen(command) as child:

        def hand_on(number: int, _: FrameType | None) -> None:
            child.send_signal(number)

        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, hand_on)
        code = child.wait()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if code in FINAL and not lost_a_node():
        print(
            f"tango: exit code {code} would be that of another cluster, too: this job is stopped, "
            "not retried. What it has is kept; apply the RayJob again to go on",
            flush=True,
        )
        stop_own_job()
        time.sleep(STOP_S)
    return code if code >= 0 else 128 - code


def lost_a_node() -> bool:
    """Whether a node that was there is gone; also one that the autoscaler removed."""
    import ray

    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    gone = any(not node["Alive"] for node in ray.nodes())
    ray.shutdown()
    return gone


def stop_own_job() -> None:
    """Ask the head to stop the job whose entrypoint this is."""
    from ray.job_submission import JobSubmissionClient

    metadata = json.loads(os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])["metadata"]
    JobSubmissionClient().stop_job(metadata["job_submission_id"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
