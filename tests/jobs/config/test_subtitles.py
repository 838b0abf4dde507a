"""`benchmark.subtitles` in a recipe: another job, and one line where there are none."""

import pytest
import yaml

from jobs.config.recipe import parse_job
from jobs.submit.request import check_names


def job(name="videomme", **options):
    content = {"benchmark": {"name": name, "root": "/data", **options}, "method": {"name": "full"}}
    return parse_job(content, "test")


def test_it_is_kept_for_each_of_several_benchmarks():
    sections = [
        {"name": "videomme", "root": "/a", "subtitles": True},
        {"name": "mlvu", "root": "/b"},
    ]
    built = parse_job({"benchmarks": sections, "method": {"name": "full"}}, "test")
    written = yaml.safe_load(built.to_yaml())["benchmarks"]
    assert [section.get("subtitles") for section in written] == [True, None]


@pytest.mark.parametrize("name", ["mvbench", "longvideobench", "mlvu", "tempcompass", "shapes"])
def test_a_benchmark_without_a_prompt_for_them_is_refused_before_anything_starts(name):
    with pytest.raises(
        ValueError, match=r"^benchmark\.subtitles true: .* set benchmark\."
    ) as error:
        check_names([job(name, subtitles=True)])
    assert "\n" not in str(error.value)


def test_longvideobench_shows_them_to_internvl_alone():
    section = {"name": "longvideobench", "root": "/data", "subtitles": True}
    recipe = {"benchmark": section, "method": {"name": "full"}}
    check_names([parse_job({**recipe, "model": {"name": "internvl3.5-8b"}}, "test")])
    for name in ("tiny", "qwen3-vl-8b"):
        with pytest.raises(ValueError, match=r"to models of the family internvl alone; set benchm"):
            check_names([parse_job({**recipe, "model": {"name": name}}, "test")])
