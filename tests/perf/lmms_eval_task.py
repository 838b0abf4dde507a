"""The embedded model and world as lmms-eval takes them: a checkpoint directory and a task."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tango_core.benchmarks.scoring.multiple_choice import LETTERS
from tango_core.benchmarks.shapes.benchmark import PROTOCOL, ShapesBenchmark
from tango_core.models.tiny import TINY_CHAT, embedded_checkpoint

TASK = "shapes_embedded"
MAX_NEW_TOKENS = PROTOCOL.max_new_tokens

_TEMPLATE = (
    "{% for message in messages %}"
    + TINY_CHAT.opening
    + "{{ message['content'] }}"
    + TINY_CHAT.closing
    + "{% endfor %}"
)

_TASK = """task: {task}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {documents}}}}}
test_split: test
output_type: generate_until
doc_to_visual: !function functions.visual
doc_to_text: !function functions.text
doc_to_target: answer
generation_kwargs: {{max_new_tokens: {new_tokens}, temperature: 0, do_sample: false}}
process_results: !function functions.score
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""

_FUNCTIONS = '''"""What the task file names."""


def visual(document):
    return [document["video"]]


def text(document, lmms_eval_specific_kwargs=None):
    return document["text"]


def score(document, results):
    return {"acc": float(results[0].strip()[-1:] == document["answer"])}
'''


def write_checkpoint(folder: Path) -> Path:
    """The embedded weights with the files that transformers' processors want beside them."""
    shutil.copytree(embedded_checkpoint(), folder)
    marks = {"image_token": "<image>", "video_token": "<video>"}
    _extend(folder / "tokenizer_config.json", chat_template=_TEMPLATE, **marks)
    sizes = json.loads((folder / "preprocessor_config.json").read_text())
    steps = {"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": 3}
    owner = {"processor_class": "LlavaOnevisionProcessor"}
    image = {**sizes, **steps, **owner, "image_processor_type": "LlavaOnevisionImageProcessor"}
    video = {**sizes, **steps, **owner, "video_processor_type": "LlavaOnevisionVideoProcessor"}
    whole = {**owner, **marks, "num_image_tokens": 256, "vision_feature_select_strategy": "full"}
    (folder / "preprocessor_config.json").write_text(json.dumps(image))
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video))
    (folder / "processor_config.json").write_text(json.dumps(whole))
    return folder


def write_task(folder: Path, shapes: Path, clips: int) -> list[str]:
    """Clips, questions and the task; returns the ids of the questions in the task's order."""
    folder.mkdir(parents=True)
    documents = [
        {
            "id": question.id,
            "video": item.path,
            "text": PROTOCOL.render(question).after,
            "answer": LETTERS[question.answer or 0],
        }
        for item in ShapesBenchmark(str(shapes)).items(clips)
        for question in item.questions
    ]
    listed = folder / "documents.jsonl"
    listed.write_text("\n".join(map(json.dumps, documents)) + "\n")
    (folder / f"{TASK}.yaml").write_text(
        _TASK.format(task=TASK, documents=listed, new_tokens=MAX_NEW_TOKENS)
    )
    (folder / "functions.py").write_text(_FUNCTIONS)
    return [str(document["id"]) for document in documents]


def _extend(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
