import pytest
import yaml
from llava_checkpoints import build_llava, save_llava

from jobs.config.recipe import Job, RecipeError, load_job, parse_job
from tango_core.benchmarks import build_benchmark
from tango_core.compressors.options import raise_if_no_share

RECIPE = {
    "benchmark": {"name": "shapes"},
    "method": {"name": "tango", "retention": 0.1},
}


def parse(**changes):
    return parse_job({**RECIPE, **changes}, "recipe.yaml")


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, "model": {"name": "tiny"}}))
    return path


def test_the_resolved_job_is_a_recipe_for_the_same_job(recipe):
    job = load_job(recipe, ["model.num_frames=16", "pools.compress.num_gpus=0.5", "limit=3"])
    assert (job.model.num_frames, job.pools.compress.num_gpus, job.limit) == (16, 0.5, 3)
    assert parse_job(yaml.safe_load(job.to_yaml()), "again") == job


@pytest.mark.parametrize(
    ("limit", "clips"), [("3", 3), ("0.1", 7), ("0.001", 1), ("null", None)], ids=str
)
def test_a_limit_is_a_number_or_a_share_of_clips(recipe, tmp_path, limit, clips):
    """A share is rounded up, of decimal digits: 0.1 * 70 in floats is more than 7."""
    videos = tmp_path / "videos"
    videos.mkdir()
    for number in range(70):
        (videos / f"{number}.mp4").touch()
    job = load_job(recipe, [f"limit={limit}"])
    assert job.clips_of(build_benchmark("custom", root=str(videos))) == clips
    assert parse_job(yaml.safe_load(job.to_yaml()), "again") == job


def test_options_of_a_family_are_written_beside_the_common_ones():
    """As run directories hold them: `null` where nothing was chosen."""
    job = parse(model={"name": "qwen2.5-vl-7b", "max_pixels": 640, "pooling": None})
    assert job.model.options == {"max_pixels": 640}
    written = yaml.safe_load(job.to_yaml())["model"]
    assert list(written.items()) == [
        ("name", "qwen2.5-vl-7b"),
        ("path", None),
        ("num_frames", None),
        ("dtype", "auto"),
        ("device", "auto"),
        ("revision", None),
        ("saliency_from", None),
        ("pooling_step", None),
        ("merge_layers", None),
        ("merge_threshold", None),
        ("merge_momentum", None),
        ("merge_window", None),
        ("pooling", None),
        ("time_instruction", None),
        ("max_pixels", 640),
        ("frame_area", None),
        ("position_rule", None),
        ("seconds_per_grid", None),
        ("min_pixels", None),
        ("empty_blocks", None),
        ("outer_marks", None),
        ("system_turn", None),
        ("companions", None),
        ("frame_times", None),
        ("frame_label", None),
        ("sinks", None),
        ("sampling", None),
        ("encode_batch", "auto"),
    ]
    assert parse_job(yaml.safe_load(job.to_yaml()), "again") == job


def test_a_list_of_values_stands_for_one_method_per_value():
    job = Job(
        benchmarks=parse().all_benchmarks,
        methods=({"name": "full"}, {"name": "tango", "retention": [0.1, 0.2], "alpha": [1.0, 2.0]}),
    )
    assert [name for name, _ in job.all_methods] == [
        "full",
        "tango r=0.1 alpha=1.0",
        "tango r=0.1 alpha=2.0",
        "tango r=0.2 alpha=1.0",
        "tango r=0.2 alpha=2.0",
    ]


def test_overrides_use_the_recipe_s_dotted_keys(recipe):
    job = load_job(recipe, ["method.retention=0.2", "benchmark.seed=7", "executor=local"])
    assert job.method == {"name": "tango", "retention": 0.2}
    assert (job.benchmark.seed, job.executor) == (7, "local")


def test_methods_of_ones_own_are_shown_by_their_class():
    methods = [{"name": "one.methods:Mine", "retention": [0.1, 0.2]}, {"name": "full"}]
    job = parse_job({"benchmark": {"name": "shapes"}, "methods": methods}, "test")
    assert [name for name, _ in job.all_methods] == ["Mine r=0.1", "Mine r=0.2", "full"]
    assert parse_job(yaml.safe_load(job.to_yaml()), "again").all_methods == job.all_methods


def test_two_methods_that_would_be_shown_as_one_are_an_error():
    methods = [{"name": f"{module}.methods:Mine", "retention": 0.1} for module in ("one", "other")]
    message = r"one\.methods:Mine and other\.methods:Mine would both be shown as 'Mine'; rename"
    with pytest.raises(RecipeError, match=message):
        parse_job({"benchmark": {"name": "shapes"}, "methods": methods}, "test")


def test_a_checkpoint_is_a_name_of_a_model(recipe, tmp_path):
    path = str(save_llava(build_llava(), tmp_path / "org" / "name"))
    recipe.write_text(yaml.safe_dump({**RECIPE, "model": {"name": path, "num_frames": 4}}))
    model = load_job(recipe).model
    assert (model.name, model.path, model.num_frames) == ("llava-onevision-7b", path, 4)
    recipe.write_text(yaml.safe_dump({**RECIPE, "model": {"name": f"{path}/nothing"}}))
    with pytest.raises(RecipeError, match="is neither a known model nor a checkpoint"):
        load_job(recipe)


@pytest.mark.parametrize(
    ("retention", "message"), [("10%", "got '10%'; write 0.1"), (10, "write 0.1 for 10 %")]
)
def test_a_percentage_is_answered_with_the_share_it_means(retention, message):
    with pytest.raises(ValueError, match=message):
        raise_if_no_share("retention", retention)
