import pytest
import yaml
from llava_checkpoints import build_llava, save_llava

from jobs.config.identity import job_digest
from jobs.config.recipe import Job, RecipeError, load_job, parse_job
from jobs.run.build import model_of
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


def test_what_a_prompt_holds_is_part_of_a_job_s_identity():
    """A run under another rule is another run, though its tokens come from the same cache."""
    plain = job_digest(parse(model={"name": "qwen3-vl-8b"}))
    for option in ({"empty_blocks": "drop"}, {"outer_marks": True}, {"companions": "anchor"}):
        assert job_digest(parse(model={"name": "qwen3-vl-8b", **option})) != plain


def test_compiled_kernels_make_another_run_as_another_device_does():
    """Older runs, which know no such key, are those without it."""
    plain, off = (parse(model={"name": "tiny", **one}) for one in ({}, {"compile": False}))
    on = parse(model={"name": "tiny", "compile": True})
    assert "compile" not in yaml.safe_load(plain.to_yaml())["model"]
    assert parse_job(yaml.safe_load(on.to_yaml()), "again") == on
    assert job_digest(plain) == job_digest(off) != job_digest(on)
    assert job_digest(plain) != job_digest(parse(model={"name": "tiny", "device": "cpu"}))
    assert [model_of(job).compile for job in (plain, off, on)] == [False, False, True]


def test_another_engine_makes_another_run():
    """Older runs, which know no such key, are those of the engine `native`."""
    on_vllm = parse(engine="vllm")
    assert job_digest(parse(engine="native")) == job_digest(parse()) != job_digest(on_vllm)
    assert "engine" not in yaml.safe_load(parse().to_yaml())
    assert parse_job(yaml.safe_load(on_vllm.to_yaml()), "again") == on_vllm
    assert [model_of(job).engine for job in (parse(), on_vllm)] == ["native", "vllm"]
    with pytest.raises(RecipeError, match="engine: input should be 'native' or 'vllm', got 'tgi'"):
        parse(engine="tgi")


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"benchmrk": {}}, r"unknown key 'benchmrk'; did you mean 'benchmark'\?"),
        ({"model": {"nam": "tiny"}}, r"unknown key 'model.nam'; did you mean 'name'\?"),
        ({"model": {"poling": "average"}}, r"unknown key 'model.poling'; did you mean 'pooling'\?"),
        ({"model": {"options": {}}}, r"unknown key 'model.options'; write its keys directly"),
        ({"model": {"pooling": "average"}}, r"model.pooling is no setting of model tiny"),
        (
            {"model": {"name": "llava-video-7b", "pooling": "max"}},
            r"recipe.yaml: model.pooling must be one of average, bilinear, got 'max'",
        ),
        (
            {"model": {"name": "qwen2.5-vl-7b", "max_pixels": 0}},
            r"model.max_pixels must be 1 or larger, got 0",
        ),
        (
            {"model": {"name": "qwen2.5-vl-7b", "seconds_per_grid": "fast"}},
            r"model.seconds_per_grid must be a number, got 'fast'",
        ),
        (
            {"benchmark": None, "benchmarks": [{"name": "shapes", "rot": "x"}]},
            r"unknown key 'benchmarks.0.rot'; did you mean 'root'\?",
        ),
        ({"pools": {"decode": {"gpus": 1}}}, r"unknown key 'pools.decode.gpus'; .*num_cpus"),
        (
            {"answer": {"batch_tokens": True}},
            r"answer.batch_tokens: must be auto, or a number of tok",
        ),
        ({"model": {"encode_batch": 0}}, r"model.encode_batch: .* of at least 1, got 0$"),
        ({"cache": {"features": "signals"}}, r"cache.features: .*'all', got 'signals'"),
        (
            {"cache": {"feature_dtype": "int8"}},
            r"cache.feature_dtype int8 needs a feature store; set cache.features to tokens or all",
        ),
        (
            {"cache": {"features": "all"}, "mode": "profile"},
            r"cache.features all cannot be used with mode profile.*; set cache.features to none",
        ),
        ({"executor": "rey"}, r"executor: .*'ray' or 'local', got 'rey'"),
        ({"benchmark": {}}, r"key 'benchmark.name' is missing"),
        (
            {"benchmark": {"nam": "shapes"}},
            r"unknown key 'benchmark.nam'; did you mean 'name'\?",
        ),
        ({"method": {"retention": 0.1}}, r"every method needs a name"),
        (
            {"method": {"name": "tango", "retention": []}},
            r"method 'tango': retention is an empty list; give one value or several",
        ),
        ({"method": None}, r"give either 'method' or 'methods'"),
        (
            {"method": None, "methods": [{"name": "full"}, {"name": "full"}]},
            r"'full' is listed twice",
        ),
        ({"shard": "2/2"}, r"0 <= i < n, got '2/2'"),
        ({"shard": "first"}, r"^recipe.yaml: shard: must be i/n .* 0/8, got 'first'$"),
        ({"methods": ["full"]}, r"methods.0: must be a mapping such as {name: .*, got 'full'$"),
        ({"method": "full"}, r"method: must be a mapping such as {name: tango.*, got 'full'$"),
        ({"benchmark": ["shapes"]}, r"benchmark: must be one mapping such as {name: shapes}, got"),
    ],
)
def test_a_mistake_ends_in_one_line_that_helps(changes, message):
    with pytest.raises(RecipeError, match=message) as error:
        parse(**changes)
    assert "\n" not in str(error.value)


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


def test_a_feature_store_changes_no_answer_and_eight_bits_do():
    """A run may be continued with the store or without it."""
    plain = parse()
    stored = parse(cache={"features": "all"})
    rounded = parse(cache={"features": "all", "feature_dtype": "int8"})
    assert "cache" not in yaml.safe_load(plain.to_yaml()), "older runs have no such key"
    assert parse_job(yaml.safe_load(rounded.to_yaml()), "again") == rounded
    assert job_digest(plain) == job_digest(stored)
    assert job_digest(plain) != job_digest(rounded)


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
