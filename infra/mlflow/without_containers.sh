#!/usr/bin/env bash
# The stack of compose.yaml without containers: PostgreSQL of Debian and MLflow with authentication.
#
#   without_containers.sh FOLDER [options of mlflow server]
#
# FOLDER receives the database, the artifacts and the settings with new secrets (FOLDER/env), or is one that
# an earlier start made. Ends with Ctrl-C, and PostgreSQL with it. PYTHON is the interpreter with mlflow[auth]
# and psycopg2. PostgreSQL listens on a socket in FOLDER only; MLflow on 127.0.0.1:5000 unless told otherwise.
# PostgreSQL refuses to be root: started by root, it runs as the user `postgres` of the Debian package.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
[ $# -ge 1 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift

fail() {
    echo "without_containers.sh: $*" >&2
    exit 1
}

bin=$(find /usr/lib/postgresql/*/bin -name initdb -printf '%h\n' 2>/dev/null | sort -V | tail -n 1)
[ -n "$bin" ] || bin=$(dirname "$(command -v initdb || fail "no PostgreSQL; install the Debian package postgresql")")
[ -e "$folder/env" ] || "$here/new_env.sh" "$folder/env" >/dev/null
set -a
# shellcheck source=/dev/null
. "$folder/env"
set +a

as_owner() { # runs a command as the user that PostgreSQL runs as, in a directory that it may enter
    if [ "$(id -u)" -eq 0 ]; then
        (cd / && setpriv --reuid=postgres --regid=postgres --init-groups -- "$@")
    else
        "$@"
    fi
}

if [ ! -e "$folder/database/PG_VERSION" ]; then
    mkdir -p "$folder/database" "$folder/socket"
    if [ "$(id -u)" -eq 0 ]; then
        chown postgres:postgres "$folder/database" "$folder/socket"
        as_owner test -x "$folder" || fail "the user postgres may not enter $folder; choose another folder"
    fi
    chmod 700 "$folder/database"
    # A file of the owner alone: arguments can be read by every user of the machine.
    # shellcheck disable=SC2016
    printf '%s\n' "$POSTGRES_PASSWORD" | as_owner sh -c 'umask 077; cat >"$1"' sh "$folder/socket/password"
    as_owner "$bin/initdb" --pgdata "$folder/database" --username mlflow --pwfile "$folder/socket/password" \
        --auth scram-sha-256 --encoding UTF8 --locale C >"$folder/initdb.log" ||
        fail "initdb failed, see $folder/initdb.log"
    as_owner rm "$folder/socket/password"
    # Only the socket; there is no port to choose and nothing to reach from elsewhere.
    as_owner tee -a "$folder/database/postgresql.conf" >/dev/null <<EOF
listen_addresses = ''
unix_socket_directories = '$folder/socket'
EOF
fi

stop() {
    trap - EXIT INT TERM
    [ -z "${server:-}" ] || kill "$server" 2>/dev/null || true
    [ -z "${server:-}" ] || wait "$server" 2>/dev/null || true
    as_owner "$bin/pg_ctl" --pgdata "$folder/database" --mode fast --timeout 60 stop >/dev/null || true
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

as_owner "$bin/pg_ctl" --pgdata "$folder/database" --log "$folder/database/log" --timeout 120 --wait start >/dev/null ||
    fail "PostgreSQL did not start, see $folder/database/log"
export PGPASSWORD=$POSTGRES_PASSWORD PGHOST=$folder/socket PGUSER=mlflow
there=$("$bin/psql" --no-psqlrc --dbname postgres --tuples-only --no-align \
    --command "SELECT 1 FROM pg_database WHERE datname = 'mlflow'")
[ "$there" = 1 ] || "$bin/createdb" mlflow

mkdir -p "$folder/artifacts"
export TANGO_MLFLOW_DATABASE="postgresql+psycopg2://mlflow:$POSTGRES_PASSWORD@/mlflow?host=$folder/socket"
export TANGO_MLFLOW_ARTIFACTS=$folder/artifacts
echo "MLflow: user admin, password MLFLOW_AUTH_ADMIN_PASSWORD in $folder/env"
"$python" "$here/serve.py" --host 127.0.0.1 --port 5000 "$@" &
server=$!
wait "$server"
