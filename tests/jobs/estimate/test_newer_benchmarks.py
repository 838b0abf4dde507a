"""`--dry-run` on benchmarks whose prompts depend on the question's form or on subtitles."""

import pytest
from numbered_videos import write_clip
from releases import (
    LAYOUTS,
    RECORDED,
    charades_text,
    load,
    tempcompass_release,
    videomme_release,
    videomme_v2_release,
)

from jobs.config.recipe import parse_job
from jobs.run.dry_run import DryRun, estimate_job
from jobs.run.locations import Locations

TAG = '<font color="white" size=".72c">{}</font>'


def promised(name, root, tmp_path, **options):
    """Tokens of the mean prompt and number of answers that a job with one method would give."""
    for item in load(name, root).items():
        (root / item.path).parent.mkdir(parents=True, exist_ok=True)
        if not (root / item.path).exists():
            write_clip(root / item.path, 12)
    recipe = {
        "benchmark": {"name": name, "root": str(root), **options},
        "model": {"name": "tiny", "num_frames": 4},
        "method": {"name": "full"},
        "executor": "local",
    }
    job = parse_job(recipe, "test")
    found = estimate_job(job, "evaluate", Locations(tmp_path / "out"), DryRun())
    return found["methods"][0]["prompt"], found["counts"]["answers"]


@pytest.mark.parametrize(
    ("name", "write", "answers"),
    [
        ("tempcompass", tempcompass_release, 9),
        ("videomme_v2", videomme_v2_release, 12),
        ("charades_sta", charades_text, 5),
        *(
            (name, LAYOUTS[name][0], len(recorded["prompts"]))
            for name, recorded in RECORDED.items()
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_form_of_question_is_counted(name, write, answers, tmp_path):
    prompt, count = promised(name, write(tmp_path / "root"), tmp_path)
    assert prompt > 4 * 64
    assert count == answers


def test_subtitles_are_counted(tmp_path):
    root = videomme_release(tmp_path / "root")
    (root / "subtitle").mkdir()
    words = TAG.format("one two three four five six seven eight nine ten")
    cue = f"1\n00:00:00,000 --> 00:00:09,000\n{words}\n\n"
    (root / "subtitle" / "aAaAaAaAaA0.srt").write_text(cue)
    plain, _ = promised("videomme", root, tmp_path)
    shown, count = promised("videomme", root, tmp_path, subtitles=True)
    assert shown > plain + 10
    assert count == 4
