"""Secrets of every known kind disappear; everything else stays as it is."""

import logging
import sys

import pytest

from pipeline.redaction import RedactingFilter, holds_credentials, redacted

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCY"
URLS = [
    f"s3://AKIDEXAMPLE:{SECRET}@bucket/cache",
    f"s3://:{SECRET}@bucket",
    f"postgresql://mlflow:{SECRET}@db:5432/mlflow?sslmode=require",
    f"https://user:p@{SECRET}@host/x",
    f"https://host/a.mp4?X-Amz-Date=1&X-Amz-Signature={SECRET}",
    f"https://host/a.mp4?X-Amz-Security-Token={SECRET}&x=1",
    f"https://host/a.mp4?a=1&access_token={SECRET}",
    f"https://account.blob.core.windows.net/c?sv=2024&sig={SECRET}",
]


@pytest.mark.parametrize("url", URLS)
def test_a_secret_in_a_url_is_hidden(url):
    text = redacted(f"cannot open {url!r}: no route to host", {})
    assert SECRET not in text
    assert "***" in text
    assert text.endswith("no route to host")
    assert holds_credentials(url)


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/a/b@2x.mp4",
        "http://127.0.0.1:5000/#/experiments/1",
        "http://127.0.0.1:5000/a@b",
        "sqlite:////home/me@work/runs/mlflow.db",
        "file:///data/a@b.mp4",
        "write to me@example.org or see https://example.org/",
        "https://host/a.mp4?start=3&end=5",
        "C:/videos/a@b.mp4",
        "method 'tango r=0.1': layer must be 0 or larger",
        "num_tokens=12, batch_tokens: auto, tokens_total: 8192",
        "tokens: 26.0 %",
        "eos_token: <|im_end|>",
        "max_new_tokens=16",
        "the token set of clip a",
        "token 5 of 6",
        "key=value",
        "https://host/a?start=1&end=2#part",
        "policy: keep",
        "password: none",
        "http://head:8265 asks for a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN",
        "HF_TOKEN_PATH=/home/me/token",
    ],
)
def test_everything_else_stays(text):
    assert redacted(text, {}) == text
    assert not holds_credentials(text)


def test_values_of_secret_variables_are_hidden_wherever_they_stand():
    environment = {
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "HF_TOKEN": "my-own-token",
        "MLFLOW_TRACKING_PASSWORD": "short",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json",
        "PATH": "/usr/local/bin",
        "TOKENIZERS_PARALLELISM": "disabled",
    }
    quoted = SECRET.replace("/", "%2F").replace("+", "%2B")
    text = f"{SECRET} {quoted} my-own-token short /home/me/key.json /usr/local/bin disabled"
    assert redacted(text, environment) == (
        "*** *** *** short /home/me/key.json /usr/local/bin disabled"
    )


def test_tokens_and_headers_are_known_by_their_form():
    assert redacted("hf_abcdefghijklmnopqrstuv is wrong", {}) == "*** is wrong"
    assert redacted("key AKIAIOSFODNN7EXAMPLE", {}) == "key ***"
    assert redacted("Authorization: Bearer abc.def-ghi", {}) == "Authorization: Bearer ***"


HIDDEN_IN = [
    "password={}",
    "password: {}",
    "--token {}",
    "--token={}",
    "tango x --mlflow-password {} y",
    '{{"token": "{}"}}',
    "{{'api_key': '{}'}}",
    "AWS_SECRET_ACCESS_KEY={}",
    "export HF_TOKEN={} && run",
    "accessToken={}",
    "clientSecret: {}",
    "http://127.0.0.1:5000/#access_token={}",
    "https://host/a?x=1&api_key={}&y=2",
    "https://host/a?password={} with a space",
    "api-key: '{}'",
]


@pytest.mark.parametrize("form", HIDDEN_IN)
def test_a_secret_that_is_assigned_is_hidden(form):
    text = redacted(form.format(SECRET), {})
    assert SECRET not in text
    assert "with a space" not in text
    assert "***" in text
    assert redacted(text, {}) == text


@pytest.mark.parametrize(
    "repeated", ["token_", "token=", "a.a:", "a://", "?token_", "x@", "--token ", '"token": ']
)
def test_a_long_text_without_an_end_is_read_in_linear_time(repeated):
    """Quadratic time would be minutes here, and the suite's limit per test would end it."""
    text = repeated * (240_000 // len(repeated))
    assert redacted(text, {}).startswith(repeated[:3])


def test_a_log_has_no_secret_in_its_message_nor_in_its_traceback(caplog):
    def fail(at):
        raise ValueError(f"cannot open {URLS[0]} at {at}")

    try:
        fail(1)
    except ValueError:
        record = logging.LogRecord(
            "a", logging.ERROR, "f", 1, "while reading %s", (URLS[4],), sys.exc_info()
        )
    assert RedactingFilter().filter(record)
    text = logging.Formatter().format(record)
    assert SECRET not in text
    assert "while reading https://host/a.mp4?" in text
    assert "ValueError: cannot open s3://***@bucket" in text
