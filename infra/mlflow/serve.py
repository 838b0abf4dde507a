"""Start an MLflow server that asks for a password, from settings in the environment.

    TANGO_MLFLOW_DATABASE           SQLAlchemy URL of the database of runs and users
    TANGO_MLFLOW_ARTIFACTS          folder or s3:// URL of the artifacts; a bucket that is not there
                                    is created
    MLFLOW_AUTH_ADMIN_PASSWORD      of the user `admin`, 12 characters or more; MLflow reads it when
                                    it finds no users
    MLFLOW_FLASK_SERVER_SECRET_KEY  any long random text, the same in all servers of one database
    TANGO_MLFLOW_HOSTS              names, with commas between them, under which others reach the
                                    server: MLflow refuses all but localhost and private addresses
    MLFLOW_S3_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY
                                    for an s3:// URL

Options of this command are handed on to `mlflow server`, e.g. `--host 0.0.0.0 --port 5000`. Secrets
are never arguments, which every user of the machine can read.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

NEEDED = (
    "TANGO_MLFLOW_DATABASE",
    "TANGO_MLFLOW_ARTIFACTS",
    "MLFLOW_AUTH_ADMIN_PASSWORD",
    "MLFLOW_FLASK_SERVER_SECRET_KEY",
)
AUTHENTICATION = """\
[mlflow]
default_permission = READ
database_uri = {database}
admin_username = admin
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
"""
# How long the store of the artifacts may take to start.
WAIT_S = 120


def main(options: list[str]) -> None:
    """Check the settings, prepare the stores, and become `mlflow server`."""
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        sys.exit(f"serve.py: set {', '.join(missing)}; infra/mlflow/new_env.sh writes all of them")
    if len(os.environ["MLFLOW_AUTH_ADMIN_PASSWORD"]) < 12:
        sys.exit("serve.py: MLFLOW_AUTH_ADMIN_PASSWORD must have 12 characters or more")
    artifacts = os.environ["TANGO_MLFLOW_ARTIFACTS"]
    if artifacts.startswith("s3://"):
        make_bucket(artifacts)
    os.environ.update(settings(os.environ, Path(tempfile.mkdtemp(prefix="mlflow-"))))
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth"]
    os.execv(sys.executable, [*command, "--artifacts-destination", artifacts, *options])


def settings(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What `mlflow server` reads from its environment.

    Args:
        environment: With `NEEDED`.
        folder: Of this user alone; receives the file with the settings of the authentication.
    """
    database = environment["TANGO_MLFLOW_DATABASE"]
    file = folder / "basic_auth.ini"
    file.touch(mode=0o600)
    # The file is read by configparser, to which a single % means something else.
    file.write_text(AUTHENTICATION.format(database=database.replace("%", "%%")))
    return {
        **allowed_hosts(environment.get("TANGO_MLFLOW_HOSTS", "")),
        "MLFLOW_BACKEND_STORE_URI": database,
        "MLFLOW_AUTH_CONFIG_PATH": str(file),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # Seven more processes for the evaluation of prompts, which this project does not use.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }


def allowed_hosts(names: str) -> dict[str, str]:
    """The setting with which MLflow takes more names than its own; what is set replaces those."""
    given = [name.strip() for name in names.split(",") if name.strip()]
    if not given:
        return {}
    from mlflow.server.security_utils import get_default_allowed_hosts

    patterns = [pattern for name in given for pattern in (name, f"{name}:*")]
    return {"MLFLOW_SERVER_ALLOWED_HOSTS": ",".join([*get_default_allowed_hosts(), *patterns])}


def make_bucket(url: str) -> None:
    """Create the bucket of an s3:// URL, once its store answers."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    bucket = urlsplit(url).netloc
    store = boto3.client("s3", endpoint_url=os.environ.get("MLFLOW_S3_ENDPOINT_URL") or None)
    end = time.monotonic() + WAIT_S
    while True:
        try:
            if bucket not in [one["Name"] for one in store.list_buckets()["Buckets"]]:
                store.create_bucket(Bucket=bucket)
            return
        except (BotoCoreError, ClientError) as error:
            if time.monotonic() > end:
                sys.exit(f"serve.py: no bucket {bucket!r} after {WAIT_S} s: {error}")
            time.sleep(2)


if __name__ == "__main__":
    main(sys.argv[1:])
