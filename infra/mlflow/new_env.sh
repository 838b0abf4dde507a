#!/usr/bin/env bash
# Write the settings of the MLflow stack with new random secrets into a file that only you can read.
#
#   new_env.sh [FILE]     FILE is infra/mlflow/.env by default, which git ignores; one that is there is kept
set -euo pipefail
file=${1:-$(cd "$(dirname "$0")" && pwd)/.env}
if [ -e "$file" ]; then
    echo "new_env.sh: $file is there already; remove it for new secrets, which an old database will refuse" >&2
    exit 1
fi
secret() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
umask 077
cat >"$file" <<EOF
MLFLOW_AUTH_ADMIN_PASSWORD=$(secret)
MLFLOW_FLASK_SERVER_SECRET_KEY=$(secret)
POSTGRES_PASSWORD=$(secret)
S3_ACCESS_KEY=tango-mlflow
S3_SECRET_KEY=$(secret)
EOF
echo "wrote $file; user admin, password MLFLOW_AUTH_ADMIN_PASSWORD"
